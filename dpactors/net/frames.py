"""What travels on a link: greetings and frames as CBOR arrays of seven items.

A greeting is ``[kind, link version, process, incarnation, digest, package version, addressed]``; a frame is
``[kind, sender, addressed, first, ack, latest_ack, body]``, where sender and addressed are incarnations. The numbers
of a frame's head have a fixed width, so that one ``struct.pack`` writes them all, and envelopes were encoded when
they were sent, so that a batch is joined and never encoded twice.
"""

import struct
from collections.abc import Sequence
from functools import lru_cache
from typing import Any, Final, TypeAlias

import cbor2
from attrs import define, frozen

from dpactors import __version__
from dpactors.message.codec import DECODERS, FRAME_BYTES_MAX, loads
from dpactors.message.errors import FrameTooLarge, MalformedMessage

LINK_VERSION: Final = 1

HELLO: Final = 0
"""Who I am; `addressed` is 0."""
WELCOME: Final = 1
"""Who I am, and that I know the addressed incarnation."""
DATA: Final = 2
"""Reliable envelopes from sequence `first`; without envelopes a heartbeat and acknowledgement."""
LATEST: Final = 3
"""Envelopes of which only the newest per route counts; `first` is the stamp of the frame."""
NACK: Final = 4
"""Send again from sequence `first`."""
REJECT: Final = 5
"""The message at sequence `first` could not be read; body ``[why]``."""
REFUSE: Final = 6
"""The addressed incarnation is stale; `first` is the lowest that would be heard."""
BYE: Final = 7
"""This incarnation leaves in good order."""

HEAD_BYTES_MAX: Final = 1024
"""More than any head and array header takes."""
MESSAGE_BYTES_MAX: Final = FRAME_BYTES_MAX - 2 * HEAD_BYTES_MAX
"""Of one encoded message, so that its envelope and frame fit as well."""
PREFIXES_MAX: Final = 4096
"""Openings of envelopes kept ready: an actor's turn sends many messages of one route and trace."""
ROUTE_MAX: Final = (1 << 16) - 1
TRACE_CHARS_MAX: Final = 128
NUMBER_MAX: Final = (1 << 63) - 1
"""Of every number in a head, so that one more still fits its eight bytes."""
TEXT_CHARS_MAX: Final = 200
"""Of a foreign text that is shown to an operator."""

_ITEMS: Final = 7
_ARRAY_7, _WIDE = 0x87, 0x1B  # CBOR: array of seven items; an unsigned number in eight bytes
_SHORT_ARRAYS = [bytes((0x80 | count,)) for count in range(24)]  # CBOR: counts below 24 fit the first byte
_HEAD = struct.Struct(">BBBQBQBQBQBQ")


@frozen
class Greeting:
    """A HELLO or WELCOME."""

    kind: int
    version: int
    name: str
    incarnation: int
    digest: str
    package: str
    addressed: int


@define
class Frame:
    """Any other frame; not frozen, because one is made per frame received."""

    kind: int
    sender: int
    addressed: int
    first: int
    ack: int
    latest_ack: int
    body: list[Any]


Incoming: TypeAlias = Greeting | Frame


def write_greeting(greeting: Greeting) -> bytes:
    """The bytes of a greeting."""
    return cbor2.dumps(
        [
            greeting.kind,
            greeting.version,
            greeting.name,
            greeting.incarnation,
            greeting.digest,
            greeting.package,
            greeting.addressed,
        ]
    )


def write_frame(
    kind: int, sender: int, addressed: int, first: int, ack: int, latest_ack: int, items: Sequence[bytes] = ()
) -> bytes:
    """The bytes of a frame; `items` are CBOR already."""
    head = _HEAD.pack(_ARRAY_7, kind, _WIDE, sender, _WIDE, addressed, _WIDE, first, _WIDE, ack, _WIDE, latest_ack)
    return b"".join((head, _array_head(len(items)), *items))


def write_single(sender: int, addressed: int, first: int, ack: int, latest_ack: int, item: bytes) -> bytes:
    """The bytes of a DATA frame with one envelope."""
    head = _HEAD.pack(_ARRAY_7, DATA, _WIDE, sender, _WIDE, addressed, _WIDE, first, _WIDE, ack, _WIDE, latest_ack)
    return head + b"\x81" + item


def envelope(route: int, trace: str, message: bytes) -> bytes:
    """The CBOR of ``[route, trace, message]`` around an encoded message; raises FrameTooLarge or ValueError."""
    if len(message) > MESSAGE_BYTES_MAX:
        raise FrameTooLarge(f"message of {len(message)} bytes, limit {MESSAGE_BYTES_MAX}")
    return _opening(route, trace) + message


@lru_cache(maxsize=PREFIXES_MAX)
def _opening(route: int, trace: str) -> bytes:
    if not 0 <= route <= ROUTE_MAX or len(trace) > TRACE_CHARS_MAX:
        raise ValueError(f"route {route} of {ROUTE_MAX}, trace of {len(trace)} characters of {TRACE_CHARS_MAX}")
    return b"\x83" + cbor2.dumps(route) + cbor2.dumps(trace)


def text_item(text: str) -> bytes:
    """A short text as an item of a frame's body."""
    return cbor2.dumps(text[:TEXT_CHARS_MAX])


def why_no_match(hello: Greeting, peer: str, digest: str) -> str:
    """What keeps the sender of `hello` from being `peer` under the same topology, both values named; else empty."""
    if hello.version != LINK_VERSION:
        return f"link protocol {LINK_VERSION} here, {hello.version} at {hello.name[:TEXT_CHARS_MAX] or 'the peer'}"
    if hello.name != peer:
        return f"{peer} was expected, {hello.name[:TEXT_CHARS_MAX]} greets"
    if hello.digest != digest:
        return (
            f"topology {digest} here, {hello.digest[:TEXT_CHARS_MAX]} at {peer} "
            f"(dpactors {__version__} here, {hello.package[:TEXT_CHARS_MAX]} there)"
        )
    return ""


def read(data: bytes) -> Incoming:
    """The greeting or frame in `data`; raises MessageError for anything that no correct peer sends."""
    if len(data) < _HEAD.size or data[1] <= WELCOME:
        return _greeting(loads(data))
    array, kind, a, sender, b, addressed, c, first, d, ack, e, latest_ack = _HEAD.unpack_from(data)
    if array != _ARRAY_7 or kind > BYE or not a == b == c == d == e == _WIDE:
        raise MalformedMessage("a frame is seven items, the head five unsigned numbers of eight bytes")
    body = loads(data[_HEAD.size :])
    if body.__class__ is not list:
        raise MalformedMessage("a frame ends with an array")
    return Frame(kind, sender, addressed, first, ack, latest_ack, body)


def open_envelope(item: Any) -> tuple[int, str, Any]:
    """Route, trace and checked message of one envelope; raises MessageError."""
    if item.__class__ is not list or len(item) != 3:  # noqa: PLR2004 - route, trace, message
        raise MalformedMessage("an envelope is [route, trace, message]")
    [route, trace, wire] = item
    if type(route) is not int:
        raise MalformedMessage("a route is a number")
    if type(trace) is not str or len(trace) > TRACE_CHARS_MAX:
        raise MalformedMessage(f"a trace is a text of up to {TRACE_CHARS_MAX} characters")
    if wire.__class__ is not list or not wire or type(wire[0]) is not str:
        raise MalformedMessage("a message is an array that starts with its tag")
    return route, trace, DECODERS[wire[0]](wire)  # as from_wire, less one call for each message of a stream


def _greeting(item: Any) -> Greeting:
    items: list[Any] = item if item.__class__ is list else []
    # The version is looked at before the rest: another version may have another shape.
    if len(items) > 1 and type(items[1]) is int and items[1] != LINK_VERSION:
        name = items[2] if len(items) > 2 and type(items[2]) is str else ""  # noqa: PLR2004 - the name's place
        return Greeting(HELLO, items[1], name, 0, "", "", 0)
    if len(items) != _ITEMS or [type(one) for one in items] != [int, int, str, int, str, str, int]:
        raise MalformedMessage("a greeting is kind, version, process, incarnation, digest, package, addressed")
    if items[0] not in {HELLO, WELCOME}:
        raise MalformedMessage("a frame starts with its kind")
    if not (0 <= items[3] <= NUMBER_MAX and 0 <= items[6] <= NUMBER_MAX):
        raise MalformedMessage("an incarnation is an unsigned number")
    return Greeting(*items)


def _array_head(count: int) -> bytes:
    if count < len(_SHORT_ARRAYS):
        return _SHORT_ARRAYS[count]
    return b"\x99" + count.to_bytes(2, "big")
