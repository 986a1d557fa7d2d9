"""Everything that can reach an actor (events) and everything that it can do (effects)."""

from collections.abc import Mapping
from typing import Any, Literal, TypeAlias

from attrs import field, frozen

from dpactors.actor.address import Address

# ---------------------------------------------------------------- events


@frozen
class Started:
    """The first event of every actor."""


@frozen
class Received:
    """A message came in by `inlet`."""

    inlet: str
    sender: Address
    message: Any


@frozen
class TimerFired:
    """The timer set under this name is due."""

    timer: str


@frozen
class JobSaid:
    """A running job has something to tell before it ends (a request, progress, a rendezvous key)."""

    key: str
    item: Any


@frozen
class JobDone:
    """A job ended with a result."""

    key: str
    result: Any


@frozen
class JobFailed:
    """A job ended with an error; `kind` is the exception's class name."""

    key: str
    kind: str
    error: str


@frozen
class PeerJoined:
    """The link to the process of `peer` is up; `incarnation` tells a restart from a reconnect."""

    peer: Address
    incarnation: int


@frozen
class PeerLost:
    """The process of `peer` is gone; nothing of that incarnation will come any more."""

    peer: Address
    reason: str


@frozen
class Undelivered:
    """A reliable message that its peer never acknowledged."""

    outlet: str
    peer: Address
    message: Any
    may_have_run: bool
    """True where it was sent and only the acknowledgement is missing."""


@frozen
class ChildExited:
    """A spawned process ended; `code` is negative for a signal."""

    child: str
    incarnation: int
    code: int


Event: TypeAlias = (
    Started | Received | TimerFired | JobSaid | JobDone | JobFailed | PeerJoined | PeerLost | Undelivered | ChildExited
)

# ---------------------------------------------------------------- effects


@frozen
class Send:
    """Hand `message` to one peer of an outlet, or to each where `to` is None."""

    outlet: str
    message: Any
    to: Address | None


@frozen
class SetTimer:
    """Fire `timer` after `after_s` seconds; setting a name again moves it."""

    timer: str
    after_s: float


@frozen
class CancelTimer:
    """Forget a timer; one that is not set is no error."""

    timer: str


@frozen
class RunJob:
    """Start work that takes time under `key`; its host performs it in a task or thread."""

    key: str
    job: Any


@frozen
class FeedJob:
    """Hand an item to a running job; a job that ended drops it."""

    key: str
    item: Any


@frozen
class CancelJob:
    """Ask a running job to give up; it then ends as JobFailed, unless it ended before."""

    key: str


@frozen
class Spawn:
    """Start a child process under its name as the given incarnation."""

    child: str
    incarnation: int


@frozen
class Signal:
    """Send a signal to a child process that this actor spawned."""

    child: str
    name: Literal["TERM", "KILL", "STOP", "CONT"]


def _no_fields() -> Mapping[str, Any]:
    return {}


@frozen
class Note:
    """One structured log event."""

    event: str
    fields: Mapping[str, Any] = field(factory=_no_fields)
    level: Literal["debug", "info", "warning", "error"] = "info"


@frozen
class Phase:
    """What this actor is doing on its way to ready; shown in the start table.

    `state` is one of starting, ready, draining; `waits_for` names what is missing; `progress` is 0 to 1.
    """

    state: Literal["starting", "ready", "draining"]
    doing: str = ""
    waits_for: str = ""
    progress: float | None = None


@frozen
class Stop:
    """End this process with an exit code; `reason` is shown to the operator."""

    code: int
    reason: str


Effect: TypeAlias = Send | SetTimer | CancelTimer | RunJob | FeedJob | CancelJob | Spawn | Signal | Note | Phase | Stop


def note(event: str, level: Literal["debug", "info", "warning", "error"] = "info", /, **fields: Any) -> Note:
    """A Note with its fields as keywords."""
    return Note(event, fields, level)
