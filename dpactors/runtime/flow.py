"""Turns what passes through a host into flow records; the trace file and its story live in trace.py.

A record names requests only by id: prompts and outputs never enter a trace.
"""

import time
from collections.abc import Callable
from typing import Any

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
    TimerFired,
    Undelivered,
)

Append = Callable[[dict[str, Any]], None]

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
    """Writes one record an event, send, job and note of one process."""

    def __init__(self, process: str, append: Append) -> None:
        self._process = process
        self._append = append

    def event(self, address: Address, event: Event, trace: str) -> None:
        """Something reached an actor."""
        match event:
            case Received(inlet, sender, message):
                self._add(address, "recv", type(message).__name__, trace, message, port=inlet, peer=str(sender))
            case JobSaid(key, item):
                self._add(address, "job.said", type(item).__name__, trace, item, port=key)
            case JobDone(key, result):
                self._add(address, "job.done", type(result).__name__, trace, result, port=key)
            case JobFailed(key, kind, error):
                self._add(address, "job.failed", kind, trace, None, port=key, error=error)
            case TimerFired(timer):
                if timer not in ("publish", "report", "ranks"):  # the pulse, of no interest to any story
                    self._add(address, "timer", timer, trace, None)
            case PeerJoined(peer, _) | PeerLost(peer, _):
                self._add(address, "peer", type(event).__name__, trace, None, peer=str(peer))
            case Undelivered(outlet, peer, message, may_have_run):
                name = type(message).__name__
                self._add(
                    address, "undelivered", name, trace, message, port=outlet, peer=str(peer), may_have_run=may_have_run
                )
            case _:
                self._add(address, "event", type(event).__name__, trace, None)

    def send(self, address: Address, outlet: str, target: Address, message: Any, trace: str) -> None:
        """An actor sent a message."""
        self._add(address, "send", type(message).__name__, trace, message, port=outlet, peer=str(target))

    def job(self, address: Address, key: str, job: Any, trace: str) -> None:
        """An actor started a job."""
        sequences = getattr(job, "sequences", None)
        extra: dict[str, Any] = {}
        if sequences is not None:
            extra = {"sequences": len(sequences), "tokens": len(job.tokens), "dummy": not sequences}
        self._add(address, "job", type(job).__name__, trace, job, port=key, **extra)

    def note(self, address: Address, note: Note, trace: str) -> None:
        """An actor logged something."""
        record = self._base(address, "note", note.event, trace)
        record.update(note.fields)
        if "request" in note.fields:
            record["requests"] = [note.fields["request"]]
        self._append(record)

    def _base(self, address: Address, kind: str, what: str, trace: str) -> dict[str, Any]:
        return {
            "t": time.time(),
            "process": self._process,
            "actor": str(address),
            "kind": kind,
            "what": what,
            "trace": trace,
        }

    def _add(self, address: Address, kind: str, what: str, trace: str, message: Any, **extra: Any) -> None:
        record = self._base(address, kind, what, trace)
        record.update(extra)
        if message is not None:
            record.update(facts(message))
            if requests := about(message):
                record["requests"] = list(requests)
        self._append(record)
