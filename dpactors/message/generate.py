"""Writes, once per class, the Python source of its encoder and decoder, and compiles it.

For ``class Point: x: int; name: str | None`` the source is, but for the names of its constants::

    def encode(o, head=HEAD):
        x_ = o.x
        name_ = o.name
        return join((
            head,
            INTS[x_] if 0 <= x_ < TABLED else int_item(x_),
            NULL if name_ is None else text_item(name_),
        ))

    def decode(item):
        try:
            _, x_, name_ = item
        except ValueError:
            raise arity("Point", 2, item) from None
        if type(x_) is not int: raise wrong("Point.x", "int", x_)
        if name_ is not None:
            if type(name_) is not str: raise wrong("Point.name", "str", name_)
        made = twin(x_, name_)
        made.__class__ = cls
        return made

``source_of`` shows the source of any class. Only annotations of our own classes reach it, never a peer's bytes.
"""

import sys
import typing
from array import array
from collections.abc import Callable, Iterator
from types import NoneType, UnionType
from typing import Any, get_args, get_origin, get_type_hints

import attrs
from attrs import define, field

from dpactors.message import items
from dpactors.message.errors import MalformedMessage, MessageError
from dpactors.message.message import is_message, tag_of

Encode = Callable[..., bytes]
Decode = Callable[[Any], Any]

SHOWN_MAX = 80
"""Characters of a foreign value's type that an error shows."""


@define
class Codec:
    """The compiled pair of one class, as a record (its fields) and as a message (its tag, then its fields)."""

    encode: Encode
    decode: Decode
    decode_record: Decode
    source: str


@define
class Writer:
    """What the source of one class names beside the common tools. Mutable, used once."""

    codec_of: Callable[[type], Codec]
    constants: dict[str, Any] = field(factory=dict[str, Any])

    def constant(self, value: Any, stem: str) -> str:
        """A name for a value that the source refers to."""
        name = f"{stem}_{len(self.constants)}"
        self.constants[name] = value
        return name


def generate(cls: type, codec_of: Callable[[type], Codec]) -> Codec:
    """The compiled codec of an attrs class; `codec_of` gives those of the classes inside it.

    Raises MessageError for a field whose type cannot travel.
    """
    hints = get_type_hints(cls)
    names = [one.name for one in attrs.fields(cls)]
    writer = Writer(codec_of)
    fields = [(f"{name}_", _kind(hints[name], f"{cls.__qualname__}.{name}", writer)) for name in names]
    tagged = items.array_head(len(names) + 1) + items.text_item(tag_of(cls)) if is_message(cls) else b""
    record = items.array_head(len(names))
    # One function for both forms, because most time is spent calling: a record hands its own head over.
    writer.constants["HEAD"] = tagged or record
    encode = [
        "def encode(o, head=HEAD):",
        *[f"    {name}_ = o.{name}" for name in names],
        *[f"    {line}" for name, kind in fields for line in kind.prepare(name)],
        "    return join((",
        "        head,",
        *[f"        {kind.items(name)}," for name, kind in fields],
        "    ))",
    ]
    twin = _twin(cls)
    lines = [*encode, *_decoder("decode", cls, fields, tagged=bool(tagged), thawed=twin is not None)]
    lines += _decoder("decode_record", cls, fields, tagged=False, thawed=twin is not None)
    source = "\n".join(lines) + "\n"
    space: dict[str, Any] = {**_TOOLS, **writer.constants, "cls": cls, "twin": twin}
    exec(compile(source, f"<codec of {cls.__qualname__}>", "exec"), space)  # noqa: S102 - our own source, made above
    return Codec(space["encode"], space["decode"], space["decode_record"], source)


def _decoder(name: str, cls: type, fields: "list[tuple[str, Kind]]", *, tagged: bool, thawed: bool) -> Iterator[str]:
    locals_ = [name for name, _ in fields]
    targets = ["_", *locals_] if tagged else locals_
    yield f"def {name}(item):"
    yield "    try:"
    yield f"        [{', '.join(targets)}] = item"
    yield "    except ValueError:"
    yield f"        raise arity({cls.__qualname__!r}, {len(fields)}, item) from None"
    for name_, kind in fields:
        yield from (f"    {line}" for line in kind.check(name_))
    if thawed:
        yield f"    made = twin({', '.join(locals_)})"
        yield "    made.__class__ = cls"
        yield "    return made"
    else:
        yield f"    return cls({', '.join(locals_)})"


def _twin(cls: type) -> type | None:
    """A subclass whose instances take assignments, None where `cls` does more at its making than keep its fields.

    A frozen attrs class sets each field by a call, at three times the cost. An instance of the twin takes the fields
    and then becomes one of `cls`, which is allowed because the twin adds no slot.
    """
    fields = attrs.fields(cls)
    plain = all(one.init and one.validator is None and one.converter is None for one in fields)
    if not plain or not fields or hasattr(cls, "__attrs_post_init__") or "__slots__" not in vars(cls):
        return None
    names = [one.name for one in fields]
    lines = [f"def __init__(self, {', '.join(names)}):", *[f"    self.{name} = {name}" for name in names]]
    body: dict[str, Any] = {}
    exec(compile("\n".join(lines), f"<twin of {cls.__qualname__}>", "exec"), body)  # noqa: S102 - our own source
    return type(
        cls.__name__,
        (cls,),
        {
            "__slots__": (),
            "__init__": body["__init__"],
            "__setattr__": object.__setattr__,
            "__delattr__": object.__delattr__,
        },
    )


# ------------------------------------------------------------- kinds of fields


@define
class Kind:
    """How one annotated type is written and checked: source, with ``{v}`` for the value's name.

    `before` are statements ahead of `wire`, the item's expressions; `tests` are statements that check or replace a
    decoded value. An inner type stands inside comprehensions, so it has one expression each way: `item`, `value`.
    """

    wire: str
    before: tuple[str, ...] = ()
    tests: tuple[str, ...] = ()
    item: str = ""
    value: str = ""

    def prepare(self, name: str) -> list[str]:
        """Statements before the item of the field called `name`."""
        return [line.replace("{v}", name) for line in self.before]

    def items(self, name: str) -> str:
        """Expressions of the field's bytes."""
        return self.wire.replace("{v}", name)

    def check(self, name: str) -> list[str]:
        """Statements that check the decoded field."""
        return [line.replace("{v}", name) for line in self.tests]


def _scalar(wire: str, wrong: str, wanted: str, where: str, read: str, after: str = "") -> Kind:
    tests = (f"if {wrong}: raise wrong({where!r}, {wanted!r}, {{v}})", *([after] if after else []))
    return Kind(wire=wire, tests=tests, item=wire, value=f"{read}({{v}}, {where!r})")


def _kind(hint: Any, where: str, writer: Writer) -> Kind:
    if hint is int:
        wire = "INTS[{v}] if 0 <= {v} < TABLED else int_item({v})"
        return _scalar(wire, "type({v}) is not int", "int", where, "an_int")
    if hint is str:
        kind = _scalar("text_item({v})", "type({v}) is not str", "str", where, "a_str")
        kind.before = ("{v} = {v}.encode()", "{v}_size = len({v})")
        kind.wire = "TEXTS[{v}_size] if {v}_size < TABLED else text_head({v}_size), {v}"
        return kind
    if hint is bool:
        return _scalar("TRUE if {v} else FALSE", "type({v}) is not bool", "bool", where, "a_bool")
    if hint is float:
        return _scalar("float_item({v})", "type({v}) is not float", "float", where, "a_float")
    if hint is bytes:
        return _scalar("bytes_item({v})", "type({v}) is not bytes", "bytes", where, "some_bytes")
    if hint is array or get_origin(hint) is array:
        kind = _scalar(
            "tokens_item({v})", "type({v}) is not bytes or len({v}) & 3", "int32 bytes", where, "some_tokens"
        )
        kind.before = ("{v} = token_bytes({v})", "{v}_size = len({v})")
        kind.wire = "BYTES[{v}_size] if {v}_size < TABLED else bytes_head({v}_size), {v}"
        kind.tests += ("{v} = tokens_of({v})",)
        if _LITTLE:  # as memory has them: no call of ours is needed
            kind.before = ("if {v}.typecode != 'i': raise no_tokens({v})", "{v} = {v}.tobytes()", "{v}_size = len({v})")
            kind.tests = (kind.tests[0], "{v} = array('i', {v})")
        return kind
    if isinstance(hint, type) and attrs.has(hint):
        return _record(hint, where, writer)
    if get_origin(hint) is tuple:
        return _tuple(get_args(hint), where, writer)
    if get_origin(hint) in (UnionType, typing.Union):
        return _union(get_args(hint), where, writer)
    if get_origin(hint) is typing.Literal:
        return _literal(get_args(hint), where, writer)
    raise MessageError(f"{where}: {hint} cannot travel; use bool, int, float, str, bytes, Tokens, a record or a tuple")


def _record(hint: type, where: str, writer: Writer) -> Kind:
    codec = writer.codec_of(hint)
    head = writer.constant(items.array_head(len(attrs.fields(hint))), "HEAD")
    encode = writer.constant(codec.encode, "encode")
    decode = writer.constant(codec.decode_record, "decode")
    tests = (f"if type({{v}}) is not list: raise wrong({where!r}, 'array', {{v}})", f"{{v}} = {decode}({{v}})")
    wire = f"{encode}({{v}}, {head})"
    return Kind(wire=wire, tests=tests, item=wire, value=f"{decode}(a_list({{v}}, {where!r}))")


def _tuple(args: tuple[Any, ...], where: str, writer: Writer) -> Kind:
    if len(args) != 2 or args[1] is not Ellipsis:  # noqa: PLR2004 - the two words of tuple[X, ...]
        raise MessageError(f"{where}: only tuple[X, ...] can travel; a fixed tuple is a record")
    inner = _kind(args[0], where, writer)
    item, value = inner.item.replace("{v}", "x"), inner.value.replace("{v}", "x")
    # A name of its own in the comprehension, which is a scope of its own: no other x is near.
    listed = f"join([{item} for x in {{v}}])"
    got = f"tuple([{value} for x in a_list({{v}}, {where!r})])"
    return Kind(
        wire=f"array_head(len({{v}})), {listed}",
        tests=(f"{{v}} = {got}",),
        item=f"array_head(len({{v}})) + {listed}",
        value=got,
    )


def _union(args: tuple[Any, ...], where: str, writer: Writer) -> Kind:
    """``X | None``, or a union of messages, which then carries its tag."""
    rest = [one for one in args if one is not NoneType]
    if len(rest) > 1 and all(is_message(one) for one in rest):
        encoders = {one: writer.codec_of(one).encode for one in rest}
        decoders = {tag_of(one): writer.codec_of(one).decode for one in rest}
        encode, decode = writer.constant(encoders, "encoders"), writer.constant(decoders, "decoders")
        wire = f"{encode}[type({{v}})]({{v}})"
        got = f"one_of({{v}}, {decode}, {where!r})"
        inner = Kind(wire=wire, tests=(f"{{v}} = {got}",), item=wire, value=got)
    elif len(rest) == 1:
        inner = _kind(rest[0], where, writer)
    else:
        raise MessageError(f"{where}: a union on the wire is X | None or a union of messages")
    if len(rest) == len(args):
        return inner
    wire = f"NULL if {{v}} is None else {inner.item}"
    tests = ("if {v} is not None:", *[f"    {line}" for line in inner.tests])
    return Kind(wire=wire, tests=tests, item=f"({wire})", value=f"(None if {{v}} is None else {inner.value})")


def _literal(words: tuple[Any, ...], where: str, writer: Writer) -> Kind:
    table = writer.constant({word: items.text_item(word) for word in words}, "words")
    wanted = f"one of {words}"
    test = f"if type({{v}}) is not str or {{v}} not in {table}: raise wrong({where!r}, {wanted!r}, {{v}})"
    value = f"a_word({{v}}, {table}, {where!r})"
    return Kind(wire=f"{table}[{{v}}]", tests=(test,), item=f"{table}[{{v}}]", value=value)


# ------------------------------------------------------------- what generated source calls


def wrong(where: str, wanted: str, got: object) -> MalformedMessage:
    """The error for a field that is not what its class says."""
    return MalformedMessage(f"{where}: wants {wanted}, got {type(got).__name__[:SHOWN_MAX]}")


def arity(where: str, count: int, got: Any) -> MalformedMessage:
    """The error for an array of another length."""
    return MalformedMessage(f"{where}: wants {count} fields, the array has {len(got)}")


def _exact(cls: type) -> Callable[[Any, str], Any]:
    def read(item: Any, where: str) -> Any:
        if type(item) is not cls:
            raise wrong(where, cls.__name__, item)
        return item

    return read


def a_word(item: Any, words: dict[str, bytes], where: str) -> str:
    """A checked word of a Literal."""
    if type(item) is not str or item not in words:
        raise wrong(where, f"one of {tuple(words)}", item)
    return item


def one_of(item: list[Any], decoders: dict[str, Decode], where: str) -> Any:
    """A message of a union, by its tag."""
    if item.__class__ is not list or not item or type(item[0]) is not str:
        raise wrong(where, "a message", item)
    decode = decoders.get(item[0])
    if decode is None:
        raise MalformedMessage(f"{where}: {item[0][:SHOWN_MAX]!r} is none of its messages")
    return decode(item)


def no_tokens(value: "array[Any]") -> MessageError:
    """The error for an array of other numbers."""
    return MessageError(f"token ids are array('i'), not array({value.typecode!r})")


def token_bytes(value: "array[int]") -> bytes:
    """Token ids as little-endian int32 bytes."""
    if value.typecode != "i":
        raise no_tokens(value)
    return (value if _LITTLE else items.swapped(value)).tobytes()


def tokens_item(value: "array[int]") -> bytes:
    """Token ids as a byte string."""
    return items.bytes_item(token_bytes(value))


def tokens_of(data: bytes) -> "array[int]":
    """Token ids from bytes whose length was checked."""
    made = array("i", data)
    return made if _LITTLE else items.swapped(made)


def some_tokens(item: Any, where: str) -> "array[int]":
    """Checked token ids."""
    if type(item) is not bytes or len(item) & 3:
        raise wrong(where, "int32 bytes", item)
    return tokens_of(item)


_LITTLE = sys.byteorder == "little"
_TOOLS: dict[str, Any] = {
    "join": b"".join,
    "wrong": wrong,
    "arity": arity,
    "one_of": one_of,
    "an_int": _exact(int),
    "a_word": a_word,
    "a_str": _exact(str),
    "a_bool": _exact(bool),
    "a_float": _exact(float),
    "a_list": _exact(list),
    "some_bytes": _exact(bytes),
    "array": array,
    "no_tokens": no_tokens,
    "token_bytes": token_bytes,
    "tokens_item": tokens_item,
    "tokens_of": tokens_of,
    "some_tokens": some_tokens,
    **{
        name: getattr(items, name)
        for name in (
            "INTS",
            "BYTES",
            "bytes_head",
            "TEXTS",
            "TABLED",
            "NULL",
            "TRUE",
            "FALSE",
            "int_item",
            "float_item",
            "text_item",
            "text_head",
            "bytes_item",
            "array_head",
        )
    },
}
