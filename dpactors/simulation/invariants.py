"""What must hold after every event of every simulated run, and what must hold at rest.

Actors check themselves (`check()`); here stands what only a look at several of them shows.
"""

from collections.abc import Iterable
from typing import Any

from attrs import define, field

from dpactors.actor.address import Address
from dpactors.actor.effects import Effect, Event, FeedJob, JobDone, Note, Received, Send, Started
from dpactors.serving.client import Client
from dpactors.serving.coordinator import Coordinator
from dpactors.serving.engine import Engine
from dpactors.serving.jobs import Agreed, StepResult, StreamWrite
from dpactors.serving.messages import Abort, Dispatch, Reply, StepOutputs
from dpactors.simulation.world import World


@define
class _Request:
    """A request as seen from outside."""

    client: Address
    rank: Address
    """Where its owner sent it last."""
    taken: int = 0
    """Output tokens handed on."""
    ended: bool = False


@define
class _Rank:
    """One life of one rank."""

    epoch: int = 0
    forwards: int = 0
    """Of this epoch."""
    agreements: int = 0
    wave: int = 0
    work: int = 0
    """Requests, waiting or running, after its last event."""
    dummies: int = 0
    arrived: set[str] = field(factory=set[str])
    """Requests that have reached it."""


class Invariants:
    """An observer of a world; raises AssertionError at the event that breaks a rule."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._requests: dict[str, _Request] = {}
        self._ranks: dict[Address, _Rank] = {}
        self._meetings: dict[tuple[int, int], tuple[int, int | None]] = {}
        self._waves: dict[Address, int] = {}
        self._heard: dict[Address, tuple[int, int]] = {}
        self._ended: set[int] = set()
        world.observers.append(self.observe)

    def observe(self, target: Address, event: Event, effects: list[Effect]) -> None:
        """Hold one event against all rules."""
        actor = self._world.actor(target)
        if isinstance(actor, Client):
            self._client(actor, effects)
        elif isinstance(actor, Engine):
            self._engine(actor, event, effects)
        elif isinstance(actor, Coordinator):
            if isinstance(event, Started):
                self._waves.pop(target, None)
            known = self._waves.get(target, 0)
            assert actor.wave.wave >= known, f"{target} goes back from wave {known} to {actor.wave.wave}"
            self._waves[target] = actor.wave.wave
        for effect in effects:
            if isinstance(effect, FeedJob) and isinstance(effect.item, StreamWrite):
                self._stream(effect.item)

    # ------------------------------------------------------------- requests

    def _client(self, client: Client, effects: Iterable[Effect]) -> None:
        newest = self._heard.get(client.address, (0, 0))
        assert client.newest >= newest, f"{client.address} took an older snapshot"
        self._heard[client.address] = client.newest
        for sent in effects:
            match sent:
                case Send("requests", Dispatch(generate=generate), rank) if rank is not None:
                    assert generate.rank in (None, rank.index), f"{generate.request_id} is pinned to {generate.rank}"
                    one = self._requests.setdefault(generate.request_id, _Request(client.address, rank))
                    assert not one.ended, f"{generate.request_id} is dispatched after its end"
                    one.rank = rank
                case Send("replies", Reply(output=output)):
                    self._reply(output.request_id, output.position, len(output.tokens), ends=output.finish is not None)
                case _:
                    pass

    def _reply(self, request_id: str, position: int, tokens: int, *, ends: bool) -> None:
        """Positions seen by a user are 0, 1, 2, ... up to one end."""
        one = self._requests.get(request_id)
        if one is None:
            assert ends, f"{request_id} was refused without an end"
            return
        assert not one.ended or not tokens, f"{request_id}: tokens after its end"
        assert not tokens or position == one.taken, f"{request_id}: position {position} after {one.taken} tokens"
        one.taken += tokens
        one.ended |= ends

    def _stream(self, write: StreamWrite) -> None:
        assert write.stream not in self._ended, f"stream {write.stream} is written to after its end"
        if write.finish is not None:
            self._ended.add(write.stream)

    # ------------------------------------------------------------- ranks

    def _engine(self, engine: Engine, event: Event, effects: list[Effect]) -> None:
        if isinstance(event, Started) or engine.address not in self._ranks:
            self._ranks[engine.address] = _Rank()
        seen = self._ranks[engine.address]
        if engine.epoch != seen.epoch:
            seen.epoch, seen.forwards, seen.agreements = engine.epoch, 0, 0
        assert engine.wave.wave >= seen.wave, f"{engine.address} goes back from wave {seen.wave}"
        seen.wave = engine.wave.wave
        work = engine.scheduler.waiting + engine.scheduler.running if engine.scheduler else 0
        match event:
            case Received("requests", _, Dispatch(generate=generate)):
                seen.arrived.add(generate.request_id)
            case Received("requests", sender, Abort(request_ids=ids)):
                ahead = [one for one in ids if one not in seen.arrived and self._requests[one].client == sender]
                assert not ahead, f"{engine.address}: abort of {ahead} came before the request"
            case JobDone(_, StepResult()):
                seen.forwards += 1
                if engine.dummy_steps > seen.dummies:
                    assert work == seen.work, f"{engine.address}: a dummy step changed its queue"
                    assert not _outputs(effects), f"{engine.address}: a dummy step has an output"
            case JobDone(_, Agreed()):
                self._agreed(engine, seen, effects)
            case _:
                pass
        seen.work, seen.dummies = work, engine.dummy_steps
        for to, sent in _outputs(effects):
            for output in sent.outputs:
                one = self._requests[output.request_id]
                assert one.client == to, f"{engine.address} answers {output.request_id} to {to}, not {one.client}"

    def _agreed(self, engine: Engine, seen: _Rank, effects: list[Effect]) -> None:
        """At each agreement of an epoch all ranks have taken as many forwards, and they end the same wave or none."""
        ended = [e.fields["wave"] for e in effects if isinstance(e, Note) and e.event == "wave.complete"]
        mine = (seen.forwards, ended[0] if ended else None)
        theirs = self._meetings.setdefault((seen.epoch, seen.agreements), mine)
        assert mine == theirs, f"{engine.address}: forwards and ended wave {mine}, another rank has {theirs}"
        assert not ended or engine.wave.wave > ended[0], f"{engine.address} stays in the wave that it ended"
        seen.agreements += 1


def _outputs(effects: Iterable[Effect]) -> list[tuple[Address | None, StepOutputs]]:
    return [(e.to, e.message) for e in effects if isinstance(e, Send) and isinstance(e.message, StepOutputs)]


def assert_rest(world: World) -> None:
    """Nobody has work, ranks of a group sleep in one wave and one epoch, every count is 0 and everybody knows it."""
    actors: list[Any] = [world.actor(one.setup.address) for p in world.plan.processes for one in p.actors]
    engines = [one for one in actors if isinstance(one, Engine)]
    assert world.engines.waiting_in_collectives() == {}
    assert len({(one.epoch, one.wave.wave) for one in engines}) == 1, "ranks are not in one epoch and wave"
    for one in engines:
        assert one.scheduler is not None
        assert not one.scheduler.unfinished, f"{one.address} has work"
        assert one.scheduler.kv_used == 0, f"{one.address} holds KV"
        assert not one.wave.running, f"{one.address} is in a wave"
    for one in actors:
        if isinstance(one, Client):
            assert one.in_flight == {}, f"{one.address} has requests in flight"
            for view in one.load.ranks.values():
                assert view.in_flight == 0, f"{one.address} counts requests on rank {view.rank}"
                assert view.requests == 0, f"{one.address} believes that rank {view.rank} has work"
