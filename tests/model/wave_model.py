"""A model of one lockstep group, built from the protocol's own code; everything may interleave.

Links are first in, first out; a step and an agreement are barriers of all ranks; how long a request runs is left open.
"""

from collections.abc import Callable, Iterator
from typing import Any

from attrs import evolve, frozen

from dpactors.serving.messages import FirstRequest, StartWave, WaveComplete, WaveJoined, WaveWanted
from dpactors.serving.protocol.wave import CoordinatorWave, EngineWave

Link = tuple[str, int]
"""Kind of link and the rank (or client) at its end."""


@frozen(cache_hash=True)
class Rank:
    wave: EngineWave
    work: int = 0
    at: str = "idle"
    """idle, or agree while its vote is in; inside a wave, idle means ready for the next step."""
    vote: bool = False


@frozen
class Client:
    running: bool = False
    wave: int = 0
    """Its belief, from the coordinator alone."""
    left: int = 0
    """Requests it will still send."""


@frozen(cache_hash=True)
class State:
    coordinator: CoordinatorWave
    ranks: tuple[Rank, ...]
    clients: tuple[Client, ...]
    links: tuple[tuple[Link, tuple[Any, ...]], ...] = ()
    aborts: int = 0
    losses: int = 0
    restarts: int = 0


@frozen
class Rules:
    """What the model may switch off, to show that a repair is what holds the protocol together."""

    first_request: bool = True
    wanted: bool = True
    retry: bool = True


def start(ranks: int, clients: int, requests: int, interval: int, **budget: int) -> State:
    return State(
        CoordinatorWave(ranks),
        tuple(Rank(EngineWave(r, interval)) for r in range(ranks)),
        tuple(Client(left=requests) for _ in range(clients)),
        **budget,
    )


def at_rest(state: State) -> bool:
    """Nobody has work, everybody sleeps in the same wave, and everything sent has been sent."""
    asleep = all(r.work == 0 and r.at == "idle" and not r.wave.running for r in state.ranks)
    return asleep and not any(c.left for c in state.clients) and not state.links


def make_moves(rules: Rules | None = None) -> Callable[[State], Iterator[tuple[str, State]]]:
    rules = rules or Rules()

    def moves(state: State) -> Iterator[tuple[str, State]]:
        yield from _client_moves(state, rules)
        for link, queue in state.links:
            name = f"{link[0]} {link[1]}: {queue[0]}"
            yield f"deliver {name}", _deliver(_popped(state, link), link, queue[0])
            if state.losses and isinstance(queue[0], FirstRequest | StartWave | WaveWanted | WaveJoined | WaveComplete):
                yield f"lose {name}", evolve(_popped(state, link), losses=state.losses - 1)
        yield from _rank_moves(state, rules)
        yield from _barrier(state)
        if rules.retry and (again := state.coordinator.retry()) is not None and _quiet(state, "start", "news"):
            yield "coordinator repeats START", _to_ranks(state, again)
        if state.restarts:
            yield "coordinator restarts", _restart(state)

    return moves


def _client_moves(state: State, rules: Rules) -> Iterator[tuple[str, State]]:
    for c, client in enumerate(state.clients):
        if client.left:
            for rank in range(len(state.ranks)):
                after = _put(state, ("add", rank), "add")
                if not client.running and rules.first_request:
                    after = _put(after, ("first", c), FirstRequest(rank, client.wave))
                yield f"client {c} sends to {rank}", _client(after, c, evolve(client, left=client.left - 1))
    if state.aborts:
        for rank in range(len(state.ranks)):
            if state.ranks[rank].work or dict(state.links).get(("add", rank)):
                yield f"abort at {rank}", evolve(_put(state, ("add", rank), "abort"), aborts=state.aborts - 1)


def _quiet(state: State, *kinds: str) -> bool:
    """Timers are slower than the network: a repeat comes when nothing of its kind is under way."""
    return not any(link[0] in kinds for link, _ in state.links)


def _rank_moves(state: State, rules: Rules) -> Iterator[tuple[str, State]]:
    for r, rank in enumerate(state.ranks):
        if not rules.wanted or rank.at != "idle" or not rank.work or ("news", r) in dict(state.links):
            continue
        if (wanted := rank.wave.wants()) is not None:
            yield f"rank {r} wants a wave", _put(state, ("news", r), wanted)


def _barrier(state: State) -> Iterator[tuple[str, State]]:
    at = {rank.at if rank.wave.running else "asleep" for rank in state.ranks}
    if at == {"idle"}:
        for ends in range(2):  # a running request ends in this step, or goes on
            after = state
            for r, rank in enumerate(state.ranks):
                wave, due = rank.wave.on_step()
                work = max(0, rank.work - ends)
                moved = evolve(rank, wave=_bounded(wave), work=work, at="agree" if due else "idle", vote=work > 0)
                after = _rank(after, r, moved)
            yield ("step, requests end" if ends else "step, requests go on"), after
    elif at == {"agree"}:
        total = sum(rank.vote for rank in state.ranks)
        after = state
        for r, rank in enumerate(state.ranks):
            wave, news = rank.wave.on_agreed(total)
            after = _rank(after, r, evolve(rank, wave=wave, at="idle", vote=False))
            for one in news:
                after = _put(after, ("news", r), one)
        yield f"agree {total}", after


def _deliver(state: State, link: Link, message: Any) -> State:
    kind, end = link
    if kind == "add":
        rank = state.ranks[end]
        return _rank(state, end, evolve(rank, work=rank.work + 1 if message == "add" else max(0, rank.work - 1)))
    if kind == "start":
        rank = state.ranks[end]
        wave, news = rank.wave.on_start(message)
        after = _rank(state, end, evolve(rank, wave=wave))
        return after if news is None else _put(after, ("news", end), news)
    if kind == "snapshot":
        wave, running = message
        return _client(state, end, evolve(state.clients[end], wave=wave, running=running))
    before = state.coordinator
    coordinator, start_wave = before.step(message)
    after = evolve(state, coordinator=coordinator)
    if start_wave is not None:
        after = _to_ranks(after, start_wave)
    if (before.wave, before.running) != (coordinator.wave, coordinator.running):
        after = _publish(after)
    return after


def _restart(state: State) -> State:
    """A new coordinator knows nothing; links to and from the old one are gone; ranks tell it where they are."""
    kept = tuple((link, queue) for link, queue in state.links if link[0] == "add")
    after = evolve(state, coordinator=CoordinatorWave(len(state.ranks)), links=kept, restarts=state.restarts - 1)
    for r, rank in enumerate(state.ranks):
        if rank.wave.running:
            after = _put(after, ("news", r), WaveJoined(r, rank.wave.wave))
        elif rank.wave.wave:
            after = _put(after, ("news", r), WaveComplete(r, rank.wave.wave - 1))
    return _publish(after)


def _publish(state: State) -> State:
    for c in range(len(state.clients)):
        state = _popped_all(state, ("snapshot", c))  # latest wins
        state = _put(state, ("snapshot", c), (state.coordinator.wave, state.coordinator.running))
    return state


def _to_ranks(state: State, message: StartWave) -> State:
    for r in range(len(state.ranks)):
        state = _put(state, ("start", r), message)
    return state


def _put(state: State, link: Link, message: Any) -> State:
    links = dict(state.links)
    queue = links.get(link, ())
    if queue and queue[-1] == message and message != "add":
        return state  # a repeat right behind its equal changes nothing: it keeps the model finite
    links[link] = (*queue, message)
    return evolve(state, links=tuple(sorted(links.items(), key=lambda item: item[0])))


def _popped(state: State, link: Link) -> State:
    return evolve(state, links=tuple((k, q[1:] if k == link else q) for k, q in state.links if k != link or len(q) > 1))


def _popped_all(state: State, link: Link) -> State:
    return evolve(state, links=tuple((k, q) for k, q in state.links if k != link))


def _rank(state: State, index: int, rank: Rank) -> State:
    return evolve(state, ranks=tuple(rank if i == index else r for i, r in enumerate(state.ranks)))


def _client(state: State, index: int, client: Client) -> State:
    return evolve(state, clients=tuple(client if i == index else c for i, c in enumerate(state.clients)))


def _bounded(wave: EngineWave) -> EngineWave:
    """Steps count for ever; only their place in the interval matters after the first."""
    limit = 2 * wave.sync_interval
    return evolve(wave, step=wave.step - wave.sync_interval) if wave.step > limit else wave
