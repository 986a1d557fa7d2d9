"""Engine jobs in virtual time: a fake model, and a group whose collectives hang while a rank is missing."""

import hashlib
from array import array
from collections.abc import Callable
from typing import Any

from attrs import define, field, frozen

from dpactors.actor.address import Address
from dpactors.actor.effects import Event, JobDone, JobFailed, JobSaid
from dpactors.serving.jobs import (
    Agreed,
    AgreeIdle,
    JoinExchange,
    KeySet,
    LoadModel,
    ModelLoaded,
    RunStep,
    SequenceSlice,
    StepResult,
)


@frozen
class Latency:
    """Seconds that engine jobs take in the simulated world."""

    load_s: float = 0.5
    step_s: float = 0.010
    token_s: float = 0.0001
    """Added per token of a step."""
    agree_s: float = 0.0005


@define
class _Waiting:
    key: str
    job: Any


@define
class _Epoch:
    """One life of a group: who is in it, and who waits in its next collective."""

    size: int
    members: dict[Address, str] = field(factory=dict[Address, str])
    """Member to the key of its join job."""
    waiting: dict[Address, _Waiting] = field(factory=dict[Address, _Waiting])
    met: bool = False
    dead: bool = False


Later = Callable[[float, Address, Event], None]
"""Deliver an event to an actor after some seconds."""


class SimulatedEngines:
    """Performs the engine jobs of all ranks of a world."""

    def __init__(self, later: Later, latency: Latency | None = None) -> None:
        self._later = later
        self._latency = latency or Latency()
        self._epochs: dict[int, _Epoch] = {}
        self._epoch_of: dict[Address, int] = {}
        self.steps: dict[Address, int] = {}
        """Forwards taken by each rank, real and dummy."""

    def run(self, address: Address, key: str, job: Any) -> None:
        """Begin an engine job."""
        match job:
            case LoadModel():
                limit = job.max_model_len or 2048
                loaded = ModelLoaded(job.model, limit, job.kv_blocks, array("i", [0]))
                self._later(self._latency.load_s, address, JobDone(key, loaded))
            case JoinExchange():
                self._join(address, key, job)
            case RunStep() | AgreeIdle():
                self._collective(address, key, job)
            case _:
                raise AssertionError(f"{address}: no engine performs {type(job).__name__}")

    def cancel(self, address: Address, key: str) -> None:
        """A join gives up."""
        epoch = self._epochs.get(self._epoch_of.get(address, 0))
        if epoch is not None and epoch.members.pop(address, None) is not None:
            del self._epoch_of[address]
            self._later(0.0, address, JobFailed(key, "ExchangeLost", "cancelled"))

    def lose(self, address: Address) -> None:
        """A rank's process is gone: whoever is or comes into a collective of its epoch is told."""
        self.steps.pop(address, None)
        epoch = self._epochs.get(self._epoch_of.pop(address, 0))
        if epoch is None:
            return
        epoch.members.pop(address, None)
        epoch.waiting.pop(address, None)
        if epoch.met:
            epoch.dead = True
            for member, waits in epoch.waiting.items():
                self._later(0.03, member, JobFailed(waits.key, "ExchangeLost", f"{address} is gone"))
            epoch.waiting.clear()

    def waiting_in_collectives(self) -> dict[Address, str]:
        """Who waits in a collective now, and in which: an orphan if this lasts."""
        return {a: w.key for epoch in self._epochs.values() for a, w in epoch.waiting.items()}

    def _join(self, address: Address, key: str, job: JoinExchange) -> None:
        old = self._epochs.get(self._epoch_of.get(address, 0))
        if old is not None and self._epoch_of[address] != job.epoch:
            self.lose_membership(address, old)
        epoch = self._epochs.setdefault(job.epoch, _Epoch(job.size))
        epoch.members[address] = key
        self._epoch_of[address] = job.epoch
        self._later(0.0, address, JobSaid(key, KeySet(f"rank{job.rank}", b"address")))
        if len(epoch.members) == epoch.size:
            epoch.met = True
            for member, member_key in epoch.members.items():
                self._later(self._latency.agree_s, member, JobDone(member_key, None))

    def lose_membership(self, address: Address, epoch: _Epoch) -> None:
        """A rank leaves its old epoch, which is over with that."""
        epoch.members.pop(address, None)
        epoch.dead = epoch.dead or epoch.met
        for member, waits in epoch.waiting.items():
            self._later(0.03, member, JobFailed(waits.key, "ExchangeLost", f"{address} left"))
        epoch.waiting.clear()

    def _collective(self, address: Address, key: str, job: RunStep | AgreeIdle) -> None:
        number = self._epoch_of.get(address)
        if isinstance(job, RunStep):
            self.steps[address] = self.steps.get(address, 0) + 1
        if number is None:
            assert isinstance(job, RunStep), f"{address}: an agreement needs a group"
            self._later(self._took(job), address, JobDone(key, _result(job, self._took(job))))
            return
        epoch = self._epochs[number]
        if epoch.dead:
            self._later(0.0, address, JobFailed(key, "ExchangeLost", "a member is gone"))
            return
        epoch.waiting[address] = _Waiting(key, job)
        if len(epoch.waiting) < epoch.size:
            return  # hangs, as the real one does, until every member has come
        kinds = {type(one.job).__name__ for one in epoch.waiting.values()}
        assert len(kinds) == 1, f"ranks are in different collectives: {sorted(kinds)}"
        waiting, epoch.waiting = epoch.waiting, {}
        if isinstance(job, AgreeIdle):
            total = sum(one.job.unfinished for one in waiting.values())
            for member, one in waiting.items():
                self._later(self._latency.agree_s, member, JobDone(one.key, Agreed(total)))
            return
        took = max(self._took(one.job) for one in waiting.values())  # lockstep: the slowest rank sets the pace
        for member, one in waiting.items():
            self._later(took, member, JobDone(one.key, _result(one.job, took)))

    def _took(self, job: RunStep) -> float:
        return self._latency.step_s + self._latency.token_s * len(job.tokens)


def _result(job: RunStep, took_s: float) -> StepResult:
    return StepResult(array("i", [_next_token(one) for one in job.sequences if one.sampling is not None]), took_s)


def _next_token(sequence: SequenceSlice) -> int:
    """A token that depends on seed and position alone, never an end token."""
    assert sequence.sampling is not None
    digest = hashlib.blake2b(f"{sequence.sampling.seed}/{sequence.position}".encode(), digest_size=4).digest()
    return 3 + int.from_bytes(digest, "little") % 3000
