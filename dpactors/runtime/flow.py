"""Keeps what passes through a host, and turns it into flow records; the trace file and its story live in trace.py.

A record names requests only by id: prompts and outputs never enter a trace.
"""

import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from typing import Any, TypeAlias

from dpactors.actor.address import Address
from dpactors.actor.effects import (
    Event,
    JobDone,
    JobFailed,
    JobSaid,
    Note,
    PeerJoined,
    PeerLost,
    Received,
    RunJob,
    Send,
    TimerFired,
    Undelivered,
)
from dpactors.message.errors import MessageError
from dpactors.net import frames
from dpactors.net.frames import Frame
from dpactors.topology.plan import Route

Record: TypeAlias = dict[str, Any]
Told: TypeAlias = tuple[str, str, dict[str, Any], Any]
"""Kind, what, further fields, and the message whose facts belong to it."""
Entry: TypeAlias = tuple[float, Callable[..., Any], Any, Any, Any, str]
"""Time, who spells it out, actor (or the peer of a frame), subject, target and trace; a tuple, for it must be cheap."""

ENTRIES_MAX = 10_000
"""Entries of a process that wait to be spelled out; beyond it the oldest are dropped and counted."""
FRAME_BYTES_KEPT = 16 << 20
"""Of frames that wait to be spelled out."""
MESSAGE_KINDS = frozenset({frames.DATA, frames.LATEST})
EMPTY_FRAME_BYTES = len(frames.write_frame(frames.DATA, 0, 0, 0, 0, 0))
"""Heartbeats and acknowledgements are no longer than this."""
SHARE_S = 0.006
"""Of every flush: with five in a second, tracing takes 3 % of a process at most, and a flood is told as a number."""
STRIDE = 64
"""Entries between two looks at the clock."""
_PULSE = frozenset({"publish", "report", "ranks"})
"""Timers that tell nothing."""

_FACTS = (
    "rank",
    "wave",
    "epoch",
    "sequence",
    "position",
    "finish",
    "error",
    "running",
    "step",
    "unfinished",
    "attempts",
)
"""Plain fields worth showing, wherever a message or its load has them."""


def about(message: Any) -> tuple[str, ...]:
    """The request ids a message or job item speaks of, in order; empty for the rest."""
    for name in ("generate", "output"):
        inner = getattr(message, name, None)
        if inner is not None:
            return (inner.request_id,)
    if (one := getattr(message, "request_id", None)) is not None:
        return (one,)
    if (outputs := getattr(message, "outputs", None)) is not None:
        return tuple(output.request_id for output in outputs)
    return tuple(getattr(message, "request_ids", ()))


def facts(message: Any) -> dict[str, Any]:
    """The plain facts of a message: wave, rank, counts of tokens; never a token."""
    found: dict[str, Any] = {}
    for part in (getattr(message, "load", None), message, getattr(message, "output", None)):
        for name in _FACTS:
            value = getattr(part, name, None)
            if value is not None and isinstance(value, str | int | float | bool):
                found[name] = value
    outputs = getattr(message, "outputs", None) or [o for o in (getattr(message, "output", None),) if o is not None]
    if outputs:
        found["tokens"] = sum(len(output.tokens) for output in outputs)
        ends = [output.finish for output in outputs if output.finish is not None]
        if ends:
            found["finish"] = ends[0] if len(ends) == 1 else ",".join(ends)
    generate = getattr(message, "generate", None)
    if generate is not None:
        found["prompt_tokens"] = len(generate.prompt)
        found["max_tokens"] = generate.max_tokens
    return found


class FlowRecorder:
    """Keeps what passes through one process by reference, in a bounded ring, and spells it out in a share of its time.

    Messages of links are kept a frame at a time, so one costs next to nothing; names, facts and JSON come off their
    path, and a frame is decoded a second time there.
    """

    def __init__(self, process: str, entries_max: int = ENTRIES_MAX) -> None:
        self.process = process
        self._ring: deque[Entry] = deque()
        self._entries_max = entries_max
        self._frame_bytes = 0
        self._dropped = 0
        self._routes: dict[str, dict[int, Route]] = {}

    def learn(self, peer: str, number: int, route: Route) -> None:
        """Messages under this number of the link with `peer` belong to `route`."""
        self._routes.setdefault(peer, {})[number] = route

    def frame(self, peer: str, sent: bool, data: bytes) -> None:
        """A frame left for a process, or came from it."""
        if len(data) > EMPTY_FRAME_BYTES and data[1] in MESSAGE_KINDS and peer in self._routes:
            self._frame_bytes += len(data)
            self._keep((time.time(), _of_frame, peer, data, sent, ""))

    def event(self, address: Address, event: Event, trace: str) -> None:
        """Something reached an actor, other than a message of a link."""
        self._keep((time.time(), _of_event, address, event, None, trace))

    def send(self, address: Address, send: Send, target: Address, trace: str) -> None:
        """An actor sent a message to one of its own process."""
        self._keep((time.time(), _of_send, address, send, target, trace))

    def job(self, address: Address, job: RunJob, trace: str) -> None:
        """An actor started a job."""
        self._keep((time.time(), _of_job, address, job, None, trace))

    def note(self, address: Address, note: Note, trace: str) -> None:
        """An actor logged something."""
        self._keep((time.time(), _of_note, address, note, None, trace))

    def take(self, limit_s: float = SHARE_S) -> list[Record]:
        """Records of the oldest entries, as many as `limit_s` seconds allow, and of how many were overrun."""
        ring, found = self._ring, list[Record]()
        ends_s = time.monotonic() + limit_s
        while ring and time.monotonic() < ends_s:
            for _ in range(min(STRIDE, len(ring))):
                found.extend(self._describe(self._oldest()))
        if self._dropped:
            found.append({"t": time.time(), "process": self.process, "kind": "dropped", "count": self._dropped})
            self._dropped = 0
        return found

    def _keep(self, entry: Entry) -> None:
        self._ring.append(entry)
        while len(self._ring) > self._entries_max or self._frame_bytes > FRAME_BYTES_KEPT:
            self._oldest()
            self._dropped += 1

    def _oldest(self) -> Entry:
        entry = self._ring.popleft()
        if entry[1] is _of_frame:
            self._frame_bytes -= len(entry[3])
        return entry

    def _describe(self, entry: Entry) -> Iterator[Record]:
        at, spell, where, subject, more, trace = entry
        if spell is _of_frame:
            told = _of_frame(self._routes[where], subject, sent=more)
        else:
            told = [(where, trace, one) for one in [spell(subject, more)] if one is not None]
        for actor, name, (kind, what, fields, message) in told:
            record: Record = {"t": at, "process": self.process, "actor": str(actor), "kind": kind, "what": what}
            record["trace"] = name
            record.update(fields)
            if message is not None:
                record.update(facts(message))
                if requests := about(message):
                    record["requests"] = list(requests)
            yield record


def _of_frame(routes: Mapping[int, Route], data: bytes, *, sent: bool) -> Iterator[tuple[Address, str, Told]]:
    """Actor, trace and what is told of each message of a frame, up to one that cannot be read, which was refused."""
    with suppress(MessageError):
        frame = frames.read(data)
        for item in frame.body if isinstance(frame, Frame) else ():
            number, trace, message = frames.open_envelope(item)
            route = routes.get(number)
            if route is None:
                continue
            what = type(message).__name__
            if sent:
                yield route.source, trace, ("send", what, {"port": route.outlet, "peer": str(route.target)}, message)
            else:
                yield route.target, trace, ("recv", what, {"port": route.inlet, "peer": str(route.source)}, message)


def _of_event(event: Event, _: object) -> Told | None:
    match event:
        case Received(inlet, sender, message):
            return "recv", type(message).__name__, {"port": inlet, "peer": str(sender)}, message
        case JobSaid(key, item):
            return "job.said", type(item).__name__, {"port": key}, item
        case JobDone(key, result):
            return "job.done", type(result).__name__, {"port": key}, result
        case JobFailed(key, kind, error):
            return "job.failed", kind, {"port": key, "error": error}, None
        case TimerFired(timer):
            return None if timer in _PULSE else ("timer", timer, {}, None)
        case PeerJoined(peer, _) | PeerLost(peer, _):
            return "peer", type(event).__name__, {"peer": str(peer)}, None
        case Undelivered(outlet, peer, message, may_have_run):
            fields = {"port": outlet, "peer": str(peer), "may_have_run": may_have_run}
            return "undelivered", type(message).__name__, fields, message
        case _:
            return "event", type(event).__name__, {}, None


def _of_send(send: Send, target: Address) -> Told:
    return "send", type(send.message).__name__, {"port": send.outlet, "peer": str(target)}, send.message


def _of_job(run: RunJob, _: object) -> Told:
    job = run.job
    fields: dict[str, Any] = {"port": run.key}
    sequences = getattr(job, "sequences", None)
    if sequences is not None:
        fields.update(sequences=len(sequences), tokens=len(job.tokens), dummy=not sequences)
    return "job", type(job).__name__, fields, job


def _of_note(note: Note, _: object) -> Told:
    fields = dict(note.fields)
    if "request" in fields:
        fields["requests"] = [fields["request"]]
    return "note", note.event, fields, None
