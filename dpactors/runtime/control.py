"""What supervisors, the processes they start and the operator say to each other."""

from typing import Literal, TypeAlias

from attrs import frozen

from dpactors.message.message import message

SUPERVISOR = "@supervisor"
"""Name of the supervisor on the links with its children; no role can have it."""
ORDERS, REPORTS, STATUS = 0, 1, 2
"""Routes of the link between a supervisor and a child: down, up, and the heartbeat of which only the newest counts."""

ProcessState: TypeAlias = Literal["starting", "up", "down"]


@frozen
class Endpoint:
    """Where a bound link waits for one peer."""

    peer: str
    """The process that may connect there."""
    address: str
    """As ZeroMQ writes it: ``ipc://...`` or ``tcp://host:port``."""


@frozen
class Entry:
    """What is known of one process."""

    process: str
    incarnation: int
    """0 where it was never started."""
    host: str
    state: ProcessState
    """``up`` once its endpoints are bound."""
    endpoints: tuple[Endpoint, ...]


@message("control.announce/1")
class Announce:
    """A process has bound its endpoints; sent again whenever one of them is replaced."""

    process: str
    incarnation: int
    endpoints: tuple[Endpoint, ...]


@message("control.phase/1")
class PhaseReport:
    """What one actor is doing on its way to ready."""

    process: str
    incarnation: int
    actor: str
    state: Literal["starting", "ready", "draining"]
    doing: str
    waits_for: str
    progress: float | None
    """0 to 1, None where nobody counts."""


@message("control.status/1")
class StatusReport:
    """The heartbeat of a process, with its actors' plain facts for ``ps``."""

    process: str
    incarnation: int
    facts: str
    """JSON: ``{"lag_ms": ..., "actors": [{"address": ..., ...}]}``."""


@message("control.failed/1")
class Failed:
    """The last words of a process that ends with an error."""

    process: str
    incarnation: int
    reason: str


@message("control.directory/1")
class Directory:
    """All that the receiver needs to know of others; replaces what it was told before."""

    version: int
    entries: tuple[Entry, ...]


@message("control.stop/1")
class StopOrder:
    """End in order: take nothing new, finish what runs within `drain_s`, close."""

    drain_s: float


@message("control.stop_request/1")
class StopRequest:
    """The operator wants the deployment to end; asked a second time, at once."""

    drain_s: float
    code: int
    """Exit code of a stop that was asked for: 0, or 130 after an interrupt."""
    cause: str


@message("control.fault_request/1")
class FaultRequest:
    """The operator wants a signal sent to processes, to see what happens."""

    signal: Literal["KILL", "STOP", "CONT"]
    processes: tuple[str, ...]
