"""What a link tells the process that owns it; one vocabulary for every transport."""

from typing import Any, TypeAlias

from attrs import define, frozen


@define
class Delivered:
    """A message arrived: each reliable one exactly once and in order, of a `latest` route the newest only.

    Not frozen, because one is made per message and a frozen class costs 2.5 times as much to build.
    """

    peer: str
    route: int
    trace: str
    message: Any


@frozen
class LinkUp:
    """Both ends know each other; `incarnation` is the peer's."""

    peer: str
    incarnation: int


@frozen
class LinkDown:
    """That incarnation of the peer is gone for good; nothing of it will be delivered any more."""

    peer: str
    incarnation: int
    reason: str


@frozen
class Undelivered:
    """A reliable message of ours that the peer never acknowledged, or refused to take."""

    peer: str
    route: int
    trace: str
    message: Any
    may_have_run: bool
    """True where it was sent at least once and only the acknowledgement is missing."""
    reason: str


@frozen
class Silent:
    """Nothing was heard for longer than the lease; the link waits, the owner decides."""

    peer: str
    silent_s: float


@frozen
class Heard:
    """A silent peer speaks again, as the same incarnation."""

    peer: str


@frozen
class Refused:
    """The two ends do not fit, or one of them is a stale incarnation; the text names both values."""

    peer: str
    reason: str


@frozen
class BadFrame:
    """Bytes that no correct peer sends; counted and dropped, the link goes on."""

    peer: str
    reason: str


LinkNotice: TypeAlias = Delivered | LinkUp | LinkDown | Undelivered | Silent | Heard | Refused | BadFrame
