"""A lockstep group of the very Coordinator and Engine actors, while ranks and the coordinator are killed and restart.

Lines are first in, first out, and end with the loss of their peer. Each end of a job is a move of its own; a
collective is joined by all ranks of an epoch or fails. Timers are slower than the network: they fire when nothing is
on its way. A client is played by the moves: it dispatches, says FIRST_REQ, and dispatches again what a dead rank had.
"""

from collections.abc import Iterator
from typing import Any, TypeAlias

from attrs import evolve, frozen

from dpactors.actor.actor import Actor, handle
from dpactors.actor.address import Address, Group, Setup
from dpactors.actor.effects import (
    CancelJob,
    Effect,
    Event,
    FeedJob,
    JobDone,
    JobFailed,
    JobSaid,
    PeerJoined,
    PeerLost,
    Received,
    RunJob,
    Send,
    SetTimer,
    Started,
    TimerFired,
)
from dpactors.message.message import tokens
from dpactors.serving.coordinator import Coordinator
from dpactors.serving.engine import AGREE, JOIN, LOAD, LOST, STEP, Engine
from dpactors.serving.jobs import Agreed, AgreeIdle, JoinExchange, KeySet, ModelLoaded, RunStep, StepResult
from dpactors.serving.messages import Dispatch, FirstRequest, Generate, Sampling
from dpactors.serving.settings import CoordinatorSettings, EngineSettings
from dpactors.simulation.explore import Model
from dpactors.simulation.models.cells import Cells

CLIENT, COORDINATOR = Address("client", 0), Address("coordinator", 0)
SHOWN_ONLY = frozenset(
    {"setup", "settings", "accepted", "real_steps", "dummy_steps", "last_step_s", "preemptions", "model"}
    | {"_report", "_reported", "sequence", "_quiet", "_changed", "rank_loads", "step"}
)
"""What the actors count for others. A wave's `step` too: every step votes here, so all steps are alike."""
IDLE_TIMERS = frozenset({"report", "publish"})
"""They only publish loads and snapshots, which nobody reads here."""
CARRIED = frozenset({"starts", "epochs", "waves", "membership"})
"""Outlets, and inlets of the same names, between ranks and coordinator."""
CANCELLED = -1
"""In place of a join's epoch."""
MEETING_MOVES_MAX = 1000
"""More than any sound group needs to meet; one that has not met by then is explored from there."""
Move: TypeAlias = "tuple[str, State]"


@frozen(cache_hash=True)
class Job:
    """Work under way."""

    key: str
    """The engine's own name of it."""
    epoch: int = 0
    """Of a collective."""
    says: int = 0
    """What it brings along: how many tokens a step draws, or whether an agreement's rank has work."""
    keys: frozenset[str] = frozenset()
    """Rendezvous keys that a join knows."""
    total: int | None = None
    """What came of a collective that all have joined; None before."""


@frozen(cache_hash=True)
class Process:
    """One actor's process; number 0 of its machine is that of one that is dead."""

    machine: int
    incarnation: int = 1
    timers: frozenset[str] = frozenset()
    job: Job | None = None
    epoch: int = 0
    """The exchange that it is a member of."""


@frozen(cache_hash=True)
class State:
    """Everything; process 0 is the coordinator, rank r is process r + 1."""

    processes: tuple[Process, ...]
    up: tuple[tuple[Event, ...], ...]
    """Events on their way from each rank to the coordinator."""
    down: tuple[tuple[Event, ...], ...]
    """Events on their way from the coordinator to each rank."""
    requests: int
    """That the client has still to dispatch."""
    kills: int
    """Ranks that may still be killed."""
    restarts: int
    """Coordinators that may still be killed."""


def group_model(ranks: int, requests: int, kills: int, restarts: int) -> Model[State]:
    """A group that serves so many requests and loses so many ranks and coordinators at any moment.

    Where nothing is killed it starts up before and meanwhile, else it has met.
    """
    about = f"ranks {ranks}, requests {requests}, killed ranks {kills}, killed coordinators {restarts}"
    made = _Group(ranks)
    start = made.start()
    for _ in range(MEETING_MOVES_MAX if kills or restarts else 0):
        if made.at_rest(start):
            break
        _, start = next(made.moves(start))
    start = evolve(start, requests=requests, kills=kills, restarts=restarts)
    return Model(about, start, made.moves, made.at_rest, made.describe, made.stuck, made.wrong)


class _Group:
    def __init__(self, ranks: int) -> None:
        self.ranks = ranks
        self.engines = tuple(Address("engine", rank) for rank in range(ranks))
        self.cells = Cells(SHOWN_ONLY)
        self.cells.number(None)
        group = Group("expert-parallel", self.engines)
        wires = {"starts": self.engines, "epochs": self.engines, "snapshots": ()}
        self.setups = [Setup(COORDINATOR, CoordinatorSettings(), wires, group=group)]
        settings = EngineSettings(sync_interval=1, kv_blocks=2)
        peers = {"outputs": (CLIENT,), "waves": (COORDINATOR,), "membership": (COORDINATOR,), "loads": ()}
        self.setups += [Setup(address, settings, peers, group=group) for address in self.engines]

    def start(self) -> State:
        nothing: tuple[tuple[Event, ...], ...] = ((),) * self.ranks
        dead = Process(0, 0)
        state = State((dead,) * (self.ranks + 1), nothing, nothing, 0, 0, 0)
        for at in range(self.ranks + 1):
            state = self._begin(state, at)
        return state

    def actor(self, state: State, at: int) -> Any:
        return self.cells.machine(state.processes[at].machine)

    # ------------------------------------------------------------- what is good and what is bad

    def at_rest(self, state: State) -> bool:
        """All ranks live in one epoch and sleep in one wave, nobody has work, and the coordinator knows all that."""
        if state.requests or any((*state.up, *state.down)) or any(not p.machine or p.job for p in state.processes):
            return False
        ranks = [self.actor(state, rank + 1) for rank in range(self.ranks)]
        busy = any(one.wave.running or one.scheduler is None or one.scheduler.unfinished for one in ranks)
        known = self.actor(state, 0)
        places = {(one.epoch, one.wave.wave) for one in ranks}
        return not busy and known.group.complete and places == {(known.group.epoch, known.wave.wave)}

    def wrong(self, state: State) -> str:
        """Members of an epoch that are in its collectives at once are in the same one of the same wave."""
        there: dict[int, tuple[str, int]] = {}
        for at, process in enumerate(state.processes[1:], 1):
            job = process.job
            if job is not None and job.key in (STEP, AGREE) and job.total is None:
                mine = (job.key, self.actor(state, at).wave.wave)
                if there.setdefault(job.epoch, mine) != mine:
                    return "ranks of one epoch are in different collectives or waves"
        return ""

    def stuck(self, state: State) -> str:
        """A stuck state by its kind."""
        ranks = [self.actor(state, rank + 1) for rank in range(self.ranks) if state.processes[rank + 1].machine]
        if state.requests or any(one.scheduler is not None and one.scheduler.unfinished for one in ranks):
            return "STUCK: a request waits, and no order of events will ever let it run"
        return "ORPHAN: no request waits, but the group never meets or never sleeps again"

    def describe(self, state: State) -> list[str]:
        """Each process, and what is on its way."""
        lines: list[str] = []
        for at, process in enumerate(state.processes):
            if not process.machine:
                lines.append(f"{self.setups[at].address}: dead")
                continue
            facts = {key: value for key, value in self.actor(state, at).status().items() if key not in SHOWN_ONLY}
            job = f", in {process.job.key} of epoch {process.epoch}" if process.job else ""
            lines.append(f"{self.setups[at].address}: {facts}{job}")
        for rank in range(self.ranks):
            lines += [f"  on its way to engine.{rank}: {_name(one)}" for one in state.down[rank]]
            lines += [f"  on its way from engine.{rank}: {_name(one)}" for one in state.up[rank]]
        return lines

    # ------------------------------------------------------------- what may happen

    def moves(self, state: State) -> Iterator[Move]:
        """All moves of a state."""
        quiet = not any((*state.up, *state.down))
        for at, process in enumerate(state.processes):
            name = str(self.setups[at].address)
            if not process.machine:
                yield f"{name} starts again", self._begin(state, at)
                continue
            if process.job is not None:
                yield from self._job(state, at, process.job, quiet=quiet)
            for timer in sorted(process.timers) if quiet else ():
                rung = _process(state, at, evolve(process, timers=process.timers - {timer}))
                yield f"timer {timer} of {name} is due", self._do(rung, at, TimerFired(timer))
            if state.kills if at else state.restarts:
                yield f"{name} is killed", self._kill(state, at)
        for rank in range(self.ranks):
            yield from self._lines(state, rank)
        yield from self._meet(state)
        if state.requests:
            yield from self._dispatch(state)

    def _lines(self, state: State, rank: int) -> Iterator[Move]:
        if state.up[rank] and state.processes[0].machine:
            event, popped = state.up[rank][0], evolve(state, up=_with(state.up, rank, state.up[rank][1:]))
            yield f"{_name(event)} reaches the coordinator from engine.{rank}", self._do(popped, 0, event)
        if state.down[rank] and state.processes[rank + 1].machine:
            event, popped = state.down[rank][0], evolve(state, down=_with(state.down, rank, state.down[rank][1:]))
            yield f"{_name(event)} reaches engine.{rank}", self._do(popped, rank + 1, event)

    def _dispatch(self, state: State) -> Iterator[Move]:
        fewer, coordinator = evolve(state, requests=state.requests - 1), self.actor(state, 0)
        for rank in range(self.ranks):
            engine = self.actor(state, rank + 1)
            if engine is None or not engine.ready:
                continue
            name = f"request {len(engine.scheduler.owned_by(CLIENT))}"
            if coordinator is not None and not coordinator.wave.running:
                wave: int = coordinator.wave.wave
                sent = self._do(fewer, rank + 1, _dispatched(name, wave, woke=True))
                said = Received("waves", CLIENT, FirstRequest(rank, wave))
                yield f"the client dispatches to engine.{rank} with FIRST_REQ", self._do(sent, 0, said)
            late = self._do(fewer, rank + 1, _dispatched(name, 0, woke=False))
            yield f"the client dispatches to engine.{rank} without FIRST_REQ", late

    def _job(self, state: State, at: int, job: Job, *, quiet: bool) -> Iterator[Move]:
        name = f"{job.key} of {self.setups[at].address}"
        done = _process(state, at, evolve(state.processes[at], job=None))
        together = [p for p in state.processes[1:] if p.machine and p.epoch == job.epoch]
        whole = len(together) == self.ranks
        if job.key == LOAD:
            loaded = ModelLoaded("m", 64, 2, tokens([0]))
            yield f"{name} ends", self._do(done, at, JobDone(LOAD, loaded))
        elif job.key == JOIN:
            if whole and all(len(p.job.keys) == self.ranks for p in together if p.job and p.job.key == JOIN):
                yield f"{name} ends: all have met", self._do(done, at, JobDone(JOIN, None))
            elif job.epoch == CANCELLED:
                yield f"{name} is over: cancelled", self._lost(done, at, JOIN)
            elif quiet and not any(p.job and p.job.epoch == CANCELLED for p in state.processes):
                yield f"{name} gives up", self._lost(done, at, JOIN)  # its limit is longer than all else takes
        else:
            if job.total is not None:
                drawn = StepResult(tokens([1] * job.says), 0.0)
                result = drawn if job.key == STEP else Agreed(job.total)
                yield f"{name} ends", self._do(done, at, JobDone(job.key, result))
            if not whole:
                yield f"{name} fails: a member is gone", self._lost(done, at, job.key)

    def _lost(self, state: State, at: int, key: str) -> State:
        left = _process(state, at, evolve(state.processes[at], epoch=0))
        return self._do(left, at, JobFailed(key, LOST, "a member is gone"))

    def _meet(self, state: State) -> Iterator[Move]:
        """A collective that all ranks of an epoch have joined gets its result; each rank hears of it on its own."""
        jobs = [p.job for p in state.processes[1:] if p.job and p.job.total is None]
        if len(jobs) < self.ranks or len({(one.key, one.epoch) for one in jobs}) > 1 or jobs[0].key in (LOAD, JOIN):
            return
        total = sum(one.says for one in jobs)
        met = [evolve(p, job=p.job and evolve(p.job, total=total)) for p in state.processes]
        yield f"all ranks meet in {jobs[0].key}", evolve(state, processes=tuple(met))

    # ------------------------------------------------------------- what comes of it

    def _begin(self, state: State, at: int) -> State:
        """A process starts; whoever lives on the other end of its lines is told."""
        incarnation = state.processes[at].incarnation + 1
        actor = (Engine if at else Coordinator)(self.setups[at])
        state = _process(state, at, Process(self.cells.number(actor), incarnation))
        state = self._do(state, at, Started())
        for rank in [at - 1] if at else range(self.ranks):
            if state.processes[rank + 1].machine and state.processes[0].machine:
                joined = PeerJoined(self.engines[rank], state.processes[rank + 1].incarnation)
                state = evolve(state, up=_with(state.up, rank, (*state.up[rank], joined)))
                joined = PeerJoined(COORDINATOR, state.processes[0].incarnation)
                state = evolve(state, down=_with(state.down, rank, (*state.down[rank], joined)))
        return state

    def _kill(self, state: State, at: int) -> State:
        """What it has sent may still arrive, then its loss; what is sent to it is gone."""
        actor, lost = self.actor(state, at), PeerLost(self.setups[at].address, "killed")
        state = _process(state, at, Process(0, state.processes[at].incarnation))
        if at == 0:
            down = tuple((*line, lost) if state.processes[n + 1].machine else () for n, line in enumerate(state.down))
            return evolve(state, up=((),) * self.ranks, down=down, restarts=state.restarts - 1)
        up = (*state.up[at - 1], lost) if state.processes[0].machine else ()
        again = len(actor.scheduler.owned_by(CLIENT)) if actor.scheduler else 0
        lines = {"up": _with(state.up, at - 1, up), "down": _with(state.down, at - 1, ())}
        return evolve(state, **lines, kills=state.kills - 1, requests=state.requests + again)

    def _do(self, state: State, at: int, event: Event) -> State:
        """An event reaches a process; all that its actor asks for is done."""
        process = state.processes[at]
        machine, effects = self.cells.do(process.machine, repr(event), lambda actor: _handled(actor, event))
        state = _process(state, at, evolve(process, machine=machine))
        for effect in effects:
            state = self._perform(state, at, effect)
        return state

    def _perform(self, state: State, at: int, effect: Effect) -> State:
        process = state.processes[at]
        match effect:
            case Send(outlet, message, to) if outlet in CARRIED:
                event = Received(outlet, self.setups[at].address, message)
                return self._up(state, at - 1, event) if at else self._down(state, event, to)
            case SetTimer(timer, _) if timer not in IDLE_TIMERS:
                return _process(state, at, evolve(process, timers=process.timers | {timer}))
            case RunJob(key, job):
                epoch = job.epoch if isinstance(job, JoinExchange) else process.epoch
                state = _process(state, at, evolve(process, epoch=epoch, job=Job(key, epoch, _brings(job))))
                return self._do(state, at, JobSaid(key, KeySet(f"rank{at}", b""))) if key == JOIN else state
            case FeedJob(key, item) if process.job is not None and process.job.key == key:
                job = evolve(process.job, keys=process.job.keys | {item.key})
                return _process(state, at, evolve(process, job=job))
            case CancelJob(key) if process.job is not None and process.job.key == key:
                # It gives up when it comes round to it: no longer a member, it can but end so.
                return _process(state, at, evolve(process, epoch=0, job=evolve(process.job, epoch=CANCELLED)))
            case _:
                return state

    def _up(self, state: State, rank: int, event: Event) -> State:
        line = state.up[rank]
        if not state.processes[0].machine or line[-1:] == (event,):
            return state  # a repeat right behind its equal changes nothing: leaving it out keeps the model finite
        return evolve(state, up=_with(state.up, rank, (*line, event)))

    def _down(self, state: State, event: Event, to: Address | None) -> State:
        for rank, engine in enumerate(self.engines):
            line = state.down[rank]
            if to in (None, engine) and state.processes[rank + 1].machine and line[-1:] != (event,):
                state = evolve(state, down=_with(state.down, rank, (*line, event)))
        return state


def _handled(actor: Actor, event: Event) -> list[Effect]:
    effects = handle(actor, event, 0.0)
    actor.check()
    return effects


def _brings(job: Any) -> int:
    match job:
        case RunStep():
            return sum(one.sampling is not None for one in job.sequences)
        case AgreeIdle():
            return int(job.unfinished)
        case _:
            return 0


def _dispatched(name: str, wave: int, *, woke: bool) -> Received:
    sampling = Sampling(0.0, 1.0, 0, 0, tokens(), ignore_eos=True, min_tokens=0)
    generate = Generate(name, tokens([5]), 2, sampling, None)
    return Received("requests", CLIENT, Dispatch(generate, wave, 1, woke, tokens()))


def _process(state: State, at: int, process: Process) -> State:
    return evolve(state, processes=_with(state.processes, at, process))


def _with(items: tuple[Any, ...], at: int, item: Any) -> Any:
    return (*items[:at], item, *items[at + 1 :])


def _name(event: Event) -> str:
    match event:
        case Received(_, _, message):
            return str(message)
        case PeerJoined(peer, _):
            return f"word that {peer} is there"
        case PeerLost(peer, _):
            return f"word that {peer} is gone"
        case _:
            return str(event)
