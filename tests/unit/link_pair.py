"""Two ends of a link with nothing between them, for transcripts."""

from typing import Any

from dpactors.message.message import message
from dpactors.net.limits import LinkLimits
from dpactors.net.link import LinkMachine, LinkState
from dpactors.net.notices import Delivered, Undelivered


@message("test.link.count/1")
class Count:
    """One numbered message."""

    number: int


@message("test.link.blob/1")
class Blob:
    data: bytes


def pair(digest: str = "d", **limits: int) -> tuple[LinkMachine, LinkMachine]:
    made = LinkLimits(**limits)
    return LinkMachine("a", "b", 1, "d", made), LinkMachine("b", "a", 1, digest, made)


def talk(one: LinkMachine, other: LinkMachine, now_s: float = 0.0) -> list[Any]:
    """Carry frames both ways until both are quiet; the notices of both, in order."""
    notices: list[Any] = []
    while True:
        out, back = one.frames_to_send(now_s), other.frames_to_send(now_s)
        if not out and not back:
            return notices
        for frame in out:
            notices += other.receive(frame, now_s)
        for frame in back:
            notices += one.receive(frame, now_s)


def meet(one: LinkMachine, other: LinkMachine, now_s: float = 0.0) -> list[Any]:
    return [*one.join(now_s), *other.join(now_s), *talk(one, other, now_s)]


def up(**limits: int) -> tuple[LinkMachine, LinkMachine]:
    one, other = pair(**limits)
    meet(one, other)
    assert one.state is other.state is LinkState.UP
    return one, other


def put(machine: LinkMachine, *numbers: int, latest: bool = False, route: int = 0) -> list[Any]:
    return [one for n in numbers for one in machine.send(route, f"t{n}", Count(n), latest=latest)]


def numbers(notices: list[Any]) -> list[int]:
    return [one.message.number for one in notices if type(one) is Delivered]


def undelivered(notices: list[Any]) -> list[tuple[int, bool]]:
    return [(one.message.number, one.may_have_run) for one in notices if type(one) is Undelivered]
