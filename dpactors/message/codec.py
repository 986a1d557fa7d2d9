"""CBOR bytes <-> checked messages, through a plan made once per class.

A message travels as a positional array ``[tag, field, ...]``, a nested record as the array of its fields.
Decoding checks arity, type, range and size, so that an actor only ever sees well-formed fields.
"""

import sys
import typing
from array import array
from collections.abc import Callable
from types import NoneType, UnionType
from typing import Any, TypeAlias, cast, get_args, get_origin, get_type_hints

import attrs
import cbor2

from dpactors.message.errors import FrameTooLarge, MalformedMessage, MessageError, UnknownTag
from dpactors.message.message import class_of, is_message, tag_of

FRAME_BYTES_MAX = 64 << 20
"""The largest frame that is looked at: a prompt of millions of tokens, never more."""
DEPTH_MAX = 12
"""Nested CBOR containers; the deepest message of ours needs 7."""
INT_BITS_MAX = 64

Write: TypeAlias = Callable[[Any], Any]
Read: TypeAlias = Callable[[Any, str], Any]

_INT_MIN, _INT_MAX = -(1 << (INT_BITS_MAX - 1)), (1 << INT_BITS_MAX) - 1
_LITTLE = sys.byteorder == "little"


@attrs.frozen
class Plan:
    """How one class crosses the wire."""

    write: Write
    read: Read


_PLANS: dict[type, Plan] = {}


def encode(message: object) -> bytes:
    """One message as CBOR bytes; raises MessageError for an object that is no message."""
    return cbor2.dumps(to_wire(message))


def decode(data: bytes) -> Any:
    """The message in `data`, every field checked; raises a MessageError that names the field."""
    return from_wire(loads(data))


def to_wire(message: Any) -> list[Any]:
    """The positional array of a message, ready to be embedded in a frame."""
    cls = cast("type[Any]", type(message))
    if not is_message(cls):
        raise MessageError(f"{cls.__qualname__} is no message: decorate it with @message(tag)")
    return [tag_of(cls), *_plan(cls).write(message)]


def from_wire(item: Any) -> Any:
    """The message in one decoded CBOR item; raises UnknownTag or MalformedMessage."""
    fields = cast("list[Any]", item) if type(item) is list else []
    if not fields or type(fields[0]) is not str:
        raise MalformedMessage("a message is an array that starts with its tag")
    cls = class_of(fields[0])
    if cls is None:
        raise UnknownTag(f"no class for tag {fields[0][:80]!r} in this process")
    return _plan(cls).read(fields[1:], cls.__qualname__)


def loads(data: bytes) -> Any:
    """One CBOR item under strict options; raises FrameTooLarge or MalformedMessage."""
    if len(data) > FRAME_BYTES_MAX:
        raise FrameTooLarge(f"frame of {len(data)} bytes, limit {FRAME_BYTES_MAX}")
    try:
        return cbor2.loads(
            data,
            max_depth=DEPTH_MAX,
            allow_indefinite=False,
            allow_duplicate_keys=False,
            strict_hashable_types=True,
            tag_hook=_refuse_tag,
        )
    except MessageError:
        raise
    except Exception as error:
        raise MalformedMessage(f"not CBOR of ours: {type(error).__name__}") from error


def _refuse_tag(*_: object) -> object:
    raise MalformedMessage("CBOR tags are not part of any message")


def _plan(cls: type) -> Plan:
    plan = _PLANS.get(cls)
    if plan is None:
        plan = _PLANS[cls] = _make_plan(cls)
    return plan


def _make_plan(cls: type) -> Plan:
    hints = get_type_hints(cls)
    names = [a.name for a in attrs.fields(cls)]
    plans = [_of_type(hints[name], f"{cls.__qualname__}.{name}") for name in names]
    writes = [(name, plan.write) for name, plan in zip(names, plans, strict=True)]
    reads = list(zip(names, (plan.read for plan in plans), strict=True))

    def write(value: Any) -> list[Any]:
        return [w(getattr(value, name)) for name, w in writes]

    def read(item: Any, where: str) -> Any:
        if type(item) is not list or len(cast("list[Any]", item)) != len(reads):
            raise MalformedMessage(f"{where}: wants an array of {len(reads)} fields")
        fields = cast("list[Any]", item)
        return cls(*[r(field, f"{where}.{name}") for field, (name, r) in zip(fields, reads, strict=True)])

    return Plan(write, read)


def _same(value: Any) -> Any:
    return value


def _of_type(hint: Any, where: str) -> Plan:
    """The plan of one annotated type; raises MessageError at first use for a type that cannot travel."""
    if hint in (bool, str, bytes, NoneType):
        return Plan(_same, _exact(hint))
    if hint is int:
        return Plan(_same, _read_int)
    if hint is float:
        return Plan(float, _read_float)
    if hint is array or get_origin(hint) is array:
        return Plan(_write_tokens, _read_tokens)
    if isinstance(hint, type) and attrs.has(hint):
        return Plan(lambda value: _plan(hint).write(value), lambda item, at: _plan(hint).read(item, at))
    if get_origin(hint) is tuple:
        return _of_tuple(get_args(hint), where)
    if get_origin(hint) in (UnionType, typing.Union):
        return _of_union(get_args(hint), where)
    if get_origin(hint) is typing.Literal:
        return Plan(_same, _one_of(get_args(hint)))
    raise MessageError(f"{where}: {hint} cannot travel; use bool, int, float, str, bytes, Tokens, a record or a tuple")


def _of_tuple(args: tuple[Any, ...], where: str) -> Plan:
    if len(args) != 2 or args[1] is not Ellipsis:  # noqa: PLR2004 - the two words of tuple[X, ...]
        raise MessageError(f"{where}: only tuple[X, ...] can travel; a fixed tuple is a record")
    inner = _of_type(args[0], where)

    def write(value: Any) -> list[Any]:
        return [inner.write(one) for one in value]

    def read(item: Any, at: str) -> tuple[Any, ...]:
        if type(item) is not list:
            raise MalformedMessage(f"{at}: wants an array")
        return tuple(inner.read(one, at) for one in cast("list[Any]", item))

    return Plan(write, read)


def _of_union(args: tuple[Any, ...], where: str) -> Plan:
    """``X | None``, or a union of messages, which then carries its tag."""
    rest = [arg for arg in args if arg is not NoneType]
    if all(is_message(arg) for arg in rest) and len(rest) > 1:
        inner = Plan(to_wire, _one_message_of(tuple(rest)))
    elif len(rest) == 1:
        inner = _of_type(rest[0], where)
    else:
        raise MessageError(f"{where}: a union on the wire is X | None or a union of messages")
    if len(rest) == len(args):
        return inner
    return Plan(
        lambda value: None if value is None else inner.write(value),
        lambda item, at: None if item is None else inner.read(item, at),
    )


def _one_message_of(classes: tuple[type, ...]) -> Read:
    def read(item: Any, at: str) -> Any:
        made = from_wire(item)
        if type(made) not in classes:
            raise MalformedMessage(f"{at}: {type(made).__qualname__} is none of its messages")
        return made

    return read


def _one_of(words: tuple[Any, ...]) -> Read:
    def read(item: Any, at: str) -> Any:
        if type(item) is not str or item not in words:
            raise MalformedMessage(f"{at}: wants one of {words}")
        return item

    return read


def _exact(cls: type) -> Read:
    def read(item: Any, at: str) -> Any:
        if type(item) is not cls:
            raise MalformedMessage(f"{at}: wants {cls.__name__}, got {type(item).__name__}")
        return item

    return read


def _read_int(item: Any, at: str) -> int:
    if type(item) is not int or not _INT_MIN <= item <= _INT_MAX:
        raise MalformedMessage(f"{at}: wants an int of {INT_BITS_MAX} bits, got {type(item).__name__}")
    return item


def _read_float(item: Any, at: str) -> float:
    if type(item) is not float:
        raise MalformedMessage(f"{at}: wants float, got {type(item).__name__}")
    return item


def _write_tokens(value: "array[int]") -> bytes:
    return value.tobytes() if _LITTLE else _swapped(value).tobytes()


def _read_tokens(item: Any, at: str) -> "array[int]":
    if type(item) is not bytes or len(item) % 4:
        raise MalformedMessage(f"{at}: wants int32 bytes")
    made = array("i")
    made.frombytes(item)
    return made if _LITTLE else _swapped(made)


def _swapped(value: "array[int]") -> "array[int]":
    copy = value[:]
    copy.byteswap()
    return copy
