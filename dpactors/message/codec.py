"""CBOR bytes <-> checked messages, through an encoder and a decoder generated once per class.

A message travels as a positional array ``[tag, field, ...]``, a nested record as the array of its fields.
Decoding checks arity, type, range and size, so that an actor only ever sees well-formed fields.
"""

from typing import Any, Final, cast

import attrs
import cbor2

from dpactors.message.errors import FrameTooLarge, MalformedMessage, MessageError, UnknownTag
from dpactors.message.generate import Codec, Decode, Encode, generate
from dpactors.message.message import class_of, is_message

FRAME_BYTES_MAX = 64 << 20
"""The largest frame that is looked at: a prompt of millions of tokens, never more."""
DEPTH_MAX = 12
"""Nested CBOR containers; the deepest message of ours needs 7."""

_CODECS: dict[type, Codec] = {}
_BEING_MADE: set[type] = set()


class _Encoders(dict[type, Encode]):
    """Encoders by class, each made at its first use."""

    def __missing__(self, cls: type) -> Encode:
        if not is_message(cls):
            raise MessageError(f"{cls.__qualname__} is no message: decorate it with @message(tag)")
        made = self[cls] = _codec(cls).encode
        return made


class _Decoders(dict[str, Decode]):
    """Decoders by tag, each made at its first use; they take the whole array, tag included."""

    def __missing__(self, tag: str) -> Decode:
        cls = class_of(tag)
        if cls is None:
            raise UnknownTag(f"no class for tag {tag[:80]!r} in this process")
        made = self[tag] = _codec(cls).decode
        return made


ENCODERS: Final = _Encoders()
DECODERS: Final = _Decoders()


def encode(message: object) -> bytes:
    """One message as CBOR bytes; raises MessageError for what is no message or has a field of another type."""
    try:
        return ENCODERS[type(message)](message)
    except MessageError:
        raise
    except (AttributeError, TypeError, ValueError, KeyError, IndexError) as error:
        raise _misfit(message, error) from error


def decode(data: bytes) -> Any:
    """The message in `data`, every field checked; raises a MessageError that names the field."""
    return from_wire(loads(data))


def from_wire(item: Any) -> Any:
    """The message in one decoded CBOR item; raises UnknownTag or MalformedMessage."""
    if item.__class__ is not list or not item or item[0].__class__ is not str:
        raise MalformedMessage("a message is an array that starts with its tag")
    return DECODERS[item[0]](item)


def loads(data: bytes) -> Any:
    """One CBOR item under strict options; raises FrameTooLarge or MalformedMessage."""
    if len(data) > FRAME_BYTES_MAX:
        raise FrameTooLarge(f"frame of {len(data)} bytes, limit {FRAME_BYTES_MAX}")
    try:
        return cbor2.loads(data, **_STRICT)
    except MessageError:
        raise
    except Exception as error:
        raise MalformedMessage(f"not CBOR of ours: {type(error).__name__}") from error


def source_of(cls: type) -> str:
    """The generated Python source of a message or record class, for reading and debugging."""
    return _codec(cls).source


def _refuse_tag(*_: object) -> object:
    raise MalformedMessage("CBOR tags are not part of any message")


_BUILT_IN_TAGS = (0, 1, 2, 3, 4, 5, 25, 28, 29, 30, 35, 36, 37, 100, 256, 258, 260, 261, 1004, 43000, 55799)
"""cbor2 decodes these by itself: numbers without bound, shared values, regular expressions to be compiled."""
_STRICT: Final[dict[str, Any]] = {
    "max_depth": DEPTH_MAX,
    "allow_indefinite": False,
    "allow_duplicate_keys": False,
    "strict_hashable_types": True,
    "tag_hook": _refuse_tag,
    "semantic_decoders": dict.fromkeys(_BUILT_IN_TAGS, _refuse_tag),
}


def _codec(cls: type) -> Codec:
    codec = _CODECS.get(cls)
    if codec is None:
        if cls in _BEING_MADE:
            raise MessageError(f"{cls.__qualname__} contains itself: such a message cannot travel")
        _BEING_MADE.add(cls)
        try:
            codec = _CODECS[cls] = generate(cls, _codec)
        finally:
            _BEING_MADE.discard(cls)
    return codec


def _misfit(message: Any, error: Exception) -> MessageError:
    """Names what each field holds, by type only: values may be a user's."""
    cls = cast("type[Any]", type(message))
    held = ", ".join(f"{one.name}: {type(getattr(message, one.name)).__name__}" for one in attrs.fields(cls))
    return MessageError(f"{cls.__qualname__}({held}) has a field that is not of its type: {error}")
