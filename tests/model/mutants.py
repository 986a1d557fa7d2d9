"""Bugs that one could write into the protocols, each with the check that must find it."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from attrs import evolve, frozen

from dpactors.actor.actor import handle
from dpactors.actor.address import Address, Group, Setup
from dpactors.actor.effects import Effect, Note, Received, Send
from dpactors.message.message import tokens
from dpactors.net.incoming import Incoming
from dpactors.net.link import LinkMachine
from dpactors.net.outgoing import Outgoing
from dpactors.serving.client import Client
from dpactors.serving.coordinator import Coordinator
from dpactors.serving.engine import Engine
from dpactors.serving.messages import GroupJoin, StartWave, WaveJoined
from dpactors.serving.protocol.load import LoadView
from dpactors.serving.protocol.membership import Membership
from dpactors.serving.protocol.wave import CoordinatorWave, EngineWave
from dpactors.serving.settings import CoordinatorSettings
from dpactors.simulation.explore import Model, explore
from dpactors.simulation.models import link, wave
from dpactors.simulation.models.group import group_model
from dpactors.simulation.models.link import link_model
from dpactors.simulation.models.wave import wave_model
from tests.world.town import Town

STATES_MAX = 12_000
COORDINATOR = Address("coordinator", 0)

# ------------------------------------------------------------- checks: each raises AssertionError where it finds a bug


def exhaust(make: Callable[[], Model[Any]]) -> None:
    found = explore(make(), STATES_MAX)
    assert not found.violation, (found.violation, found.story)


def waves() -> None:
    exhaust(lambda: wave_model(2, 1, 1, wave.Budget(requests=1, aborts=1)))


def two_requests() -> None:
    exhaust(lambda: wave_model(2, 1, 1, wave.Budget(requests=2)))


def lost_waves() -> None:
    exhaust(lambda: wave_model(2, 1, 1, wave.Budget(requests=1, losses=1)))


def lossy_link() -> None:
    exhaust(lambda: link_model(link.Budget((2, 0), losses=2, doubles=1)))


def restarted_link() -> None:
    exhaust(lambda: link_model(link.Budget((2, 0), restarts=(0, 1), words=1)))


def restarted_rank() -> None:
    exhaust(lambda: group_model(2, 0, 1, 0))


def restarted_coordinator() -> None:
    exhaust(lambda: group_model(2, 0, 0, 1))


def calm_pair() -> None:
    """Two requests, one after the other, on an idle pair in calm weather: exact costs, and no repairs needed."""
    town = Town("internal_1node").warm()
    repairs: list[Note] = []
    town.world.observers.append(
        lambda _t, _e, effects: repairs.extend(e for e in effects if isinstance(e, Note) and e.level == "warning")
    )
    before = town.waves()
    town.ask(max_tokens=40, rank=0)
    town.run_until_served(5.0)
    town.at_rest()
    engines = [town.world.actor(e) for e in town.engines]
    assert [(e.real_steps, e.dummy_steps) for e in engines] == [(40, 8), (0, 48)]
    assert town.waves() == [one + 1 for one in before]
    assert repairs == []
    known = town.world.actor(COORDINATOR).wave
    assert (known.wave, known.running) == (before[0] + 1, False)
    town.ask(max_tokens=3)
    town.ask(max_tokens=9)
    town.leave(town.ask(max_tokens=90))
    del town.asked[4]
    town.run_until_served(5.0)
    town.at_rest()


def lost_rank() -> None:
    """A rank is killed in a wave: its request goes on elsewhere, the other rank's step is repeated."""
    town = Town("internal_1node").warm()
    for rank in (0, 1, None):
        town.ask(max_tokens=60, rank=rank)
    town.world.run(town.world.now_s + 0.3)
    town.world.kill(Address("engine", 1))
    town.world.run(town.world.now_s + 0.2)
    town.world.restart(Address("engine", 1))
    town.run_until_served(30.0)
    town.at_rest()


def burst() -> None:
    """Reports that know nothing yet of a burst."""
    town = Town("dense_dp2", "roles.engine.place.node0=4").warm()
    for _ in range(40):
        town.ask(max_tokens=50)
        town.wait(0.005)
    engines = [town.world.actor(e).scheduler for e in town.engines]
    shares = [one.waiting + one.running for one in engines]
    assert max(shares) - min(shares) <= 1, shares


def old_epoch() -> None:
    """A rank's answer from an epoch that is over reaches the coordinator behind its FormGroup."""
    members = (Address("engine", 0), Address("engine", 1))
    peers = {"starts": members, "epochs": members, "snapshots": ()}
    coordinator = Coordinator(Setup(COORDINATOR, CoordinatorSettings(), peers, group=Group("expert-parallel", members)))

    def hears(inlet: str, rank: int, message: object) -> list[Effect]:
        return handle(coordinator, Received(inlet, members[rank], message), 0.0)

    for epoch in (0, 1):
        for rank in range(2):
            hears("membership", rank, GroupJoin(rank, epoch, epoch, 0, running=False))
    coordinator.group = coordinator.group.on_lost(0)
    hears("membership", 0, GroupJoin(0, 0, 0, 0, running=False))
    assert coordinator.group.epoch == 2
    said = hears("waves", 1, WaveJoined(1, 0))  # of epoch 1: that rank will enter epoch 2 asleep
    assert not [e for e in said if isinstance(e, Send) and isinstance(e.message, StartWave)]
    assert 1 not in coordinator.wave.joined


# ------------------------------------------------------------- bugs


@frozen
class Mutant:
    """What is replaced, by a function that is given the sound one, and who must notice."""

    name: str
    where: type
    what: str
    make: Callable[[Any], Any]
    found_by: Callable[[], None]

    def apply(self, patch: pytest.MonkeyPatch) -> None:
        patch.setattr(self.where, self.what, self.make(getattr(self.where, self.what)))


def _stale_start(sound: Any) -> Any:
    def on_start(self: EngineWave, start: StartWave) -> Any:
        if start.wave < self.wave and not self.running:
            return evolve(self, wave=start.wave, running=True, step=0), WaveJoined(self.rank, start.wave)
        return sound(self, start)

    return on_start


def _without_sender(sound: Any) -> Any:
    """START leaves out rank 0."""

    def handler(self: Coordinator, *arguments: Any) -> Iterator[Effect]:
        for effect in sound(self, *arguments):
            if isinstance(effect, Send) and isinstance(effect.message, StartWave):
                yield from (Send("starts", effect.message, peer) for peer in self.setup.peers["starts"][1:])
            else:
                yield effect

    return handler


def _early(sound: Any) -> Any:
    return lambda self, unfinished: sound(self, max(0, unfinished - 1))


def _own_interval(sound: Any) -> Any:
    return lambda self: sound(evolve(self, sync_interval=self.sync_interval + self.rank))


def _dummy_as_real(sound: Any) -> Any:
    def stepped(self: Engine, *arguments: Any) -> Any:
        self._planned_real = True
        return sound(self, *arguments)

    return stepped


def _erased(sound: Any) -> Any:
    def learn(self: LoadView, load: Any, true_s: float) -> bool:
        learnt = sound(self, load, true_s)
        if learnt:
            self.ranks[load.rank].in_flight = 0
        return learnt

    return learn


def _same_sequence(sound: Any) -> Any:
    def next_batch(self: Outgoing) -> Any:
        batch = sound(self)
        self.next_sequence = batch[0] if batch else self.next_sequence
        return batch

    return next_batch


def _old_life(sound: Any) -> Any:
    def stranger(self: LinkMachine, frame: Any) -> Any:
        return self._in.take(self.peer, frame, 0, 0.0)

    return stranger


def _never_ran(sound: Any) -> Any:
    return lambda self: [(parcel, False) for parcel, _ in sound(self)]


def _again(sound: Any) -> Any:
    return lambda self, first, count, now_s: 0 if first < self.received else sound(self, first, count, now_s)


def _over_a_gap(sound: Any) -> Any:
    return lambda self, first, count, now_s: 0 if first > self.received else sound(self, first, count, now_s)


def _complete_of_any_wave(sound: Any) -> Any:
    def step(self: CoordinatorWave, event: Any) -> Any:
        if type(event).__name__ == "WaveComplete":
            return CoordinatorWave(self.size, event.wave + 1), None
        return sound(self, event)

    return step


def _deaf_to_complete(sound: Any) -> Any:
    return lambda self, event: (self, None) if type(event).__name__ == "WaveComplete" else sound(self, event)


def _no_answer(sound: Any) -> Any:
    return lambda self, start: (sound(self, start)[0], None)


def _same_epoch(sound: Any) -> Any:
    return lambda self: sound(evolve(self, epoch=max(0, self.epoch - 1)))


def _step_forgotten(sound: Any) -> Any:
    def failed(self: Engine, *arguments: Any) -> Iterator[Effect]:
        self._planned_real = False
        yield from sound(self, *arguments)

    return failed


def _anew(sound: Any) -> Any:
    def dispatch(self: Client, flight: Any, now_s: float) -> Iterator[Effect]:
        flight.accepted = tokens()
        yield from sound(self, flight, now_s)

    return dispatch


MUTANTS = (
    Mutant("a START is not acknowledged", EngineWave, "on_start", _no_answer, calm_pair),
    Mutant("START leaves a rank out", Coordinator, "on_waves", _without_sender, calm_pair),
    Mutant("a rank with work does not ask", EngineWave, "wants", lambda _: lambda self: None, two_requests),
    Mutant("START is never repeated", CoordinatorWave, "retry", lambda _: lambda self: None, lost_waves),
    Mutant("a stale START is taken", EngineWave, "on_start", _stale_start, waves),
    Mutant("a stale WaveComplete is taken", CoordinatorWave, "step", _complete_of_any_wave, two_requests),
    Mutant("WaveComplete is not heard", CoordinatorWave, "step", _deaf_to_complete, calm_pair),
    Mutant("the group sleeps while one rank has work", EngineWave, "on_agreed", _early, calm_pair),
    Mutant("ranks vote at steps of their own", EngineWave, "on_step", _own_interval, calm_pair),
    Mutant("a dummy step counts as real", Engine, "_stepped", _dummy_as_real, calm_pair),
    Mutant("a report erases an assignment", LoadView, "learn", _erased, burst),
    Mutant("a message takes the number of the last", Outgoing, "next_batch", _same_sequence, lossy_link),
    Mutant("a frame of an old incarnation is taken", LinkMachine, "_stranger", _old_life, restarted_link),
    Mutant("all that comes back is said not to have run", Outgoing, "abandon", _never_ran, restarted_link),
    Mutant("nothing comes back", LinkMachine, "_undelivered", lambda _: lambda self, *_: [], restarted_link),
    Mutant("a doubled frame is taken twice", Incoming, "skip", _again, lossy_link),
    Mutant("a missing frame is not missed", Incoming, "skip", _over_a_gap, lossy_link),
    Mutant("greetings are said once", LinkMachine, "tick", lambda _: lambda self, now_s: [], lossy_link),
    Mutant("what is asked for again is not sent", Outgoing, "rewind", lambda _: lambda self, first: True, lossy_link),
    Mutant("an epoch's number is used again", Membership, "_form", _same_epoch, restarted_rank),
    Mutant("nobody tells a new coordinator", Engine, "on_peer_joined", lambda _: lambda *_: (), restarted_coordinator),
    Mutant("a word of an old epoch counts", Coordinator, "_in_epoch", lambda _: lambda self, rank: True, old_epoch),
    Mutant("a step that broke is forgotten", Engine, "on_job_failed", _step_forgotten, lost_rank),
    Mutant("a moved request begins anew", Client, "_dispatch", _anew, lost_rank),
    Mutant("a request's end is not booked", Client, "_release", lambda _: lambda self, request_id: None, calm_pair),
)
