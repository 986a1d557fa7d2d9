"""One lockstep group: the two roles of protocol/wave.py, clients, and lines that are first in, first out.

A step and an agreement are barriers of all ranks; how long a request runs is left open; all else may interleave.
A rank does not know its own number here, nor does a message, until the coordinator reads it: ranks are equal, and so
are clients, and states that differ only in who is who are one state.
"""

from collections.abc import Iterator
from typing import TypeAlias

from attrs import evolve, frozen

from dpactors.serving.messages import FirstRequest, StartWave
from dpactors.serving.protocol.wave import CoordinatorWave, EngineWave, RankNews
from dpactors.simulation.explore import Model

ADD, ABORT = "request", "abort"
Move: TypeAlias = "tuple[str, State]"


@frozen(cache_hash=True)
class Rank:
    """One rank and its lines."""

    wave: EngineWave
    work: int = 0
    agreeing: bool = False
    """Its vote is in and not yet counted."""
    vote: bool = False
    requests: tuple[str, ...] = ()
    """On their way from clients."""
    starts: tuple[StartWave, ...] = ()
    """On their way from the coordinator."""
    news: tuple[RankNews, ...] = ()
    """On their way to the coordinator."""


@frozen(cache_hash=True)
class Client:
    """One client and its lines."""

    wave: int = 0
    """Its belief, from the coordinator alone."""
    running: bool = False
    first: tuple[FirstRequest, ...] = ()
    """On their way to the coordinator."""
    snapshot: tuple[int, bool] | None = None
    """On its way from the coordinator; the latest wins."""


@frozen
class Budget:
    """What may still happen."""

    requests: int = 1
    aborts: int = 0
    rejects: int = 0
    """Requests that a rank refuses."""
    losses: int = 0
    """Lost messages."""
    doubles: int = 0
    """FIRST_REQ that arrive twice."""
    repeats: int = 0
    """START that is repeated though its answers are under way."""


@frozen(cache_hash=True)
class State:
    """Everything."""

    coordinator: CoordinatorWave
    ranks: tuple[Rank, ...]
    clients: tuple[Client, ...]
    budget: Budget


@frozen
class Rules:
    """What may be switched off, to show that a repair is what holds the protocol together."""

    first_request: bool = True
    wanted: bool = True
    retry: bool = True


def wave_model(ranks: int, clients: int, interval: int, budget: Budget, rules: Rules | None = None) -> Model[State]:
    """The model of so many ranks and clients, with a vote every `interval` steps."""
    begin = tuple(Rank(EngineWave(0, interval)) for _ in range(ranks))
    given = [f"{name} {count}" for name, count in _fields(budget) if count]
    off = [f"without {name}" for name, on in _fields(rules or Rules()) if not on]
    about = ", ".join([f"ranks {ranks}", f"clients {clients}", f"steps between votes {interval}", *given, *off])
    start = State(CoordinatorWave(ranks), begin, (Client(),) * clients, budget)
    made = _Moves(rules or Rules())
    return Model(about, start, made.of, at_rest, describe, stuck, wrong, _Names().same)


def _fields(record: Budget | Rules) -> list[tuple[str, int]]:
    return [(name, getattr(record, name)) for name in type(record).__annotations__]


def at_rest(state: State) -> bool:
    """Nobody has work, everybody sleeps in the same wave, nothing is on its way and everything was asked."""
    quiet = not any(r.work or r.wave.running or r.requests or r.starts or r.news for r in state.ranks)
    heard = not any(c.first or c.snapshot for c in state.clients)
    return quiet and heard and not state.budget.requests and len({r.wave.wave for r in state.ranks}) == 1


def stuck(state: State) -> str:
    """A stuck state by its kind."""
    if any(r.work or ADD in r.requests for r in state.ranks):
        return "STUCK: a request waits, and no order of events will ever let it run"
    return "ORPHAN: no request waits, but some ranks sit in a collective that others will never join"


def wrong(state: State) -> str:
    """Ranks in one collective agree on wave and step, and none is left behind in a wave that another has ended."""
    running = [r.wave for r in state.ranks if r.wave.running]
    if not running:
        return ""
    if max(r.wave.wave for r in state.ranks) > min(one.wave for one in running):
        return "a rank runs in a wave that another rank has left"
    if len(running) == len(state.ranks) and len({(one.wave, one.step) for one in running}) > 1:
        return "the ranks meet in one collective with different waves or steps"
    return ""


def describe(state: State) -> list[str]:
    """Who stands where, and what is on its way."""
    known = state.coordinator
    lines = [f"coordinator: wave {known.wave}, {_word(known.running)}, joined: {sorted(known.joined) or 'nobody'}"]
    for number, rank in enumerate(state.ranks):
        where = f"in a wave since {rank.wave.step} steps" if rank.wave.running else "asleep"
        lines.append(f"rank {number}: wave {rank.wave.wave}, {where}, requests: {rank.work}")
        lines += [f"  on its way to it: {one}" for one in (*rank.requests, *rank.starts)]
        lines += [f"  on its way from it: {type(one).__name__}(wave={one.wave})" for one in rank.news]
    for number, client in enumerate(state.clients):
        lines.append(f"client {number}: believes wave {client.wave}, {_word(client.running)}")
        lines += [f"  on its way from it: FIRST_REQ(wave={one.wave})" for one in client.first]
    return lines


def _word(running: bool) -> str:
    return "running" if running else "paused"


class _Names:
    """Equal parts in a fixed order; the joined ranks of the coordinator follow."""

    def __init__(self) -> None:
        self._ranks: dict[Rank, tuple[int, Rank]] = {}
        self._clients: dict[Client, tuple[int, Client]] = {}

    def same(self, state: State) -> State:
        coordinator, clients, known = state.coordinator, state.clients, self._clients
        if not state.budget.requests:
            # What a client believes matters to its next request alone.
            clients = tuple(Client(first=client.first) for client in clients)
        listed = sorted((known.setdefault(c, (len(known), c)) for c in clients), key=_number)
        joined, seen = coordinator.joined, self._ranks
        ranks = [(*seen.setdefault(r, (len(seen), r)), n in joined) for n, r in enumerate(state.ranks)]
        ordered = sorted(ranks, key=_number_and_joined)
        if joined and ordered != ranks:
            coordinator = evolve(coordinator, joined=frozenset(n for n, rank in enumerate(ordered) if rank[2]))
        return State(coordinator, tuple(r[1] for r in ordered), tuple(c[1] for c in listed), state.budget)


def _number(known: tuple[int, Client]) -> int:
    return known[0]


def _number_and_joined(known: tuple[int, Rank, bool]) -> tuple[int, bool]:
    return known[0], known[2]


class _Moves:
    def __init__(self, rules: Rules) -> None:
        self.rules = rules

    def of(self, state: State) -> Iterator[Move]:
        """All moves of a state."""
        for number, client in enumerate(state.clients):
            yield from self._client(state, number, client)
        for number, rank in enumerate(state.ranks):
            yield from self._arrivals(state, number, rank)
            yield from self._told(state, number, rank)
        yield from _barrier(state)
        # Timers are slower than the network: a repeat comes when nothing of its kind is under way.
        again, repeats = state.coordinator.retry() if self.rules.retry else None, state.budget.repeats
        if again is not None and not any(r.starts or r.news for r in state.ranks):
            yield f"the coordinator repeats START of wave {again.wave}", _start(state, again)
        elif again is not None and repeats:
            early = evolve(state, budget=evolve(state.budget, repeats=repeats - 1))
            yield f"the coordinator repeats START of wave {again.wave} early", _start(early, again)

    def _client(self, state: State, number: int, client: Client) -> Iterator[Move]:
        budget = state.budget
        if budget.requests:
            fewer = evolve(budget, requests=budget.requests - 1)
            says = not client.running and self.rules.first_request
            told = evolve(client, first=(*client.first, FirstRequest(0, client.wave))) if says else client
            for at, rank in enumerate(state.ranks):
                sent = _rank(evolve(state, budget=fewer), at, evolve(rank, requests=(*rank.requests, ADD)))
                yield f"client {number} sends a request to rank {at}" + ", and FIRST_REQ" * says, _c(sent, number, told)
        if client.snapshot is not None:
            wave, running = client.snapshot
            heard = evolve(client, wave=wave, running=running, snapshot=None)
            yield f"client {number} hears: wave {wave}, {_word(running)}", _c(state, number, heard)
        if client.first:
            one, *rest = client.first
            popped, name = _c(state, number, evolve(client, first=tuple(rest))), f"FIRST_REQ of client {number}"
            yield f"{name} arrives (wave {one.wave})", _coordinator(popped, one)
            if budget.doubles:
                fewer = evolve(budget, doubles=budget.doubles - 1)
                yield f"{name} arrives (wave {one.wave}) and will again", _coordinator(evolve(state, budget=fewer), one)
            yield from _lost(popped, name)

    def _arrivals(self, state: State, number: int, rank: Rank) -> Iterator[Move]:
        budget = state.budget
        if rank.requests:
            left = evolve(rank, requests=rank.requests[1:])
            if rank.requests[0] == ADD:
                yield f"rank {number} takes a request", _rank(state, number, evolve(left, work=rank.work + 1))
                if budget.rejects:
                    fewer = evolve(state, budget=evolve(budget, rejects=budget.rejects - 1))
                    yield f"rank {number} refuses a request", _rank(fewer, number, left)
            else:
                yield f"rank {number} takes an abort", _rank(state, number, evolve(left, work=max(0, rank.work - 1)))
        if budget.aborts and (rank.work or ADD in rank.requests):
            fewer = evolve(state, budget=evolve(budget, aborts=budget.aborts - 1))
            gone = evolve(rank, requests=(*rank.requests, ABORT))
            yield f"the user of a request at rank {number} leaves", _rank(fewer, number, gone)
        if rank.starts:
            start, left = rank.starts[0], evolve(rank, starts=rank.starts[1:])
            wave, news = rank.wave.on_start(start)
            assert wave.wave >= rank.wave.wave, f"rank {number} goes back from wave {rank.wave.wave} to {wave.wave}"
            took = _says(evolve(left, wave=wave), news)
            yield f"START of wave {start.wave} reaches rank {number}", _rank(state, number, took)
            yield from _lost(_rank(state, number, left), f"START of wave {start.wave} to rank {number}")

    def _told(self, state: State, number: int, rank: Rank) -> Iterator[Move]:
        if rank.news:
            one, popped = rank.news[0], _rank(state, number, evolve(rank, news=rank.news[1:]))
            name = f"{type(one).__name__} of rank {number}"
            yield f"{name} arrives (wave {one.wave})", _coordinator(popped, evolve(one, rank=number))
            yield from _lost(popped, name)
        elif self.rules.wanted and rank.work and (wanted := rank.wave.wants()) is not None:
            yield f"rank {number} has work and asks for wave {wanted.wave}", _rank(state, number, _says(rank, wanted))


def _barrier(state: State) -> Iterator[Move]:
    if not all(rank.wave.running for rank in state.ranks):
        return
    if state.ranks[0].agreeing:
        total = sum(rank.vote for rank in state.ranks)
        done: list[Rank] = []
        for rank in state.ranks:
            wave, news = rank.wave.on_agreed(total)
            done.append(_says(evolve(rank, wave=wave, agreeing=False, vote=False), *news))
        yield f"all vote: {total} with work", evolve(state, ranks=tuple(done))
        return
    for ends in (0, 1):  # a running request ends in this step, or goes on
        done = []
        for rank in state.ranks:
            wave, due = rank.wave.on_step()
            work = max(0, rank.work - ends)
            done.append(evolve(rank, wave=_bounded(wave), work=work, agreeing=due, vote=due and work > 0))
        yield "all step" + ", and requests end" * ends, evolve(state, ranks=tuple(done))


def _lost(popped: State, name: str) -> Iterator[Move]:
    if popped.budget.losses:
        yield f"{name} is lost", evolve(popped, budget=evolve(popped.budget, losses=popped.budget.losses - 1))


def _coordinator(state: State, message: FirstRequest | RankNews) -> State:
    before = state.coordinator
    now, start = before.step(message)
    assert now.wave >= before.wave, f"the coordinator goes back from wave {before.wave} to {now.wave}"
    state = evolve(state, coordinator=now)
    if start is not None:
        state = _start(state, start)
    if (before.wave, before.running) != (now.wave, now.running):
        heard = (now.wave, now.running)
        state = evolve(state, clients=tuple(evolve(c, snapshot=heard) for c in state.clients))
    return state


def _start(state: State, start: StartWave) -> State:
    # A repeat right behind its equal changes nothing: leaving it out keeps the model finite.
    ranks = (r if r.starts[-1:] == (start,) else evolve(r, starts=(*r.starts, start)) for r in state.ranks)
    return evolve(state, ranks=tuple(ranks))


def _says(rank: Rank, *news: RankNews | None) -> Rank:
    said = rank.news
    for one in news:
        if one is not None and said[-1:] != (one,):
            said = (*said, one)
    return rank if said is rank.news else evolve(rank, news=said)


def _rank(state: State, number: int, rank: Rank) -> State:
    return evolve(state, ranks=(*state.ranks[:number], rank, *state.ranks[number + 1 :]))


def _c(state: State, number: int, client: Client) -> State:
    return evolve(state, clients=(*state.clients[:number], client, *state.clients[number + 1 :]))


def _bounded(wave: EngineWave) -> EngineWave:
    """Steps count for ever; only their place in the interval matters after the first."""
    return evolve(wave, step=wave.step - wave.sync_interval) if wave.step > wave.sync_interval else wave
