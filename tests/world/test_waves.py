"""Lockstep groups in virtual time: the same actors that run on sockets."""

import pytest

from dpactors.actor.address import Address
from dpactors.actor.effects import JobDone, Received
from dpactors.serving.jobs import Agreed, StepResult
from dpactors.simulation.weather import Weather
from tests.world.town import GROUPED, NAMES, Town

COORDINATOR = Address("coordinator", 0)


@pytest.mark.parametrize("name", NAMES)
def test_every_front_door_of_every_topology_serves(name: str) -> None:
    town = Town(name).warm()
    for ingress in range(len(town.ingresses)):
        for _ in range(4):
            town.ask(ingress)

    town.run_until_served()
    town.at_rest()


def test_an_aborted_request_wakes_the_group_for_one_step_at_most() -> None:
    """It still wakes the group; one step later it sleeps again."""
    town = Town("internal_1node").warm()
    stream = town.ask(max_tokens=50)
    town.leave(stream)

    town.world.run(town.world.now_s + 1.0)

    assert {town.world.engines.steps.get(e, 0) for e in town.engines} <= {0, 1}
    town.at_rest()


@pytest.mark.parametrize("rank", [0, 1])
@pytest.mark.parametrize("index", range(1, 19))
def test_a_request_at_each_moment_of_wind_down_is_served(index: int, rank: int) -> None:
    """The n-th step or agreement that rank 0 ends lets a second request in, on either rank."""
    town = Town("internal_1node", seed=index).warm()
    seen = 0
    first = town.ask(max_tokens=5, rank=0)

    def at_moment(target: Address, event: object, effects: object) -> None:
        nonlocal seen
        if (
            target == Address("engine", 0)
            and isinstance(event, JobDone)
            and isinstance(event.result, StepResult | Agreed)
        ):
            seen += 1
            if seen == index:
                town.ask(max_tokens=3, rank=rank)

    town.world.observers.append(at_moment)
    town.run_until_served()
    town.world.run(town.world.now_s + 1.0, lambda: len(town.asked) == 2)
    town.run_until_served()

    assert town.served(first)
    assert len(town.asked) == 2
    town.at_rest()


def test_a_coordinator_killed_while_idle_is_no_event() -> None:
    town = Town("internal_1node").warm()
    town.ask()
    town.run_until_served()
    town.at_rest()

    town.world.kill(COORDINATOR)
    town.world.run(town.world.now_s + 0.5)
    town.ask()
    town.world.run(town.world.now_s + 0.5)
    town.world.restart(COORDINATOR)

    town.run_until_served()
    town.at_rest()


def test_a_coordinator_killed_under_load_stops_nobody() -> None:
    town = Town("hybrid_2node").warm()
    for ingress in range(2):
        town.ask(ingress, max_tokens=60)
    town.world.run(town.world.now_s + 0.2)
    town.world.kill(COORDINATOR)
    town.run_until_served()

    town.world.restart(COORDINATOR)
    town.world.run(town.world.now_s + 1.0)
    town.ask(0)
    town.run_until_served()
    town.at_rest()


@pytest.mark.parametrize("seed", range(25))
def test_no_single_kind_of_lost_control_message_strands_a_request(seed: int) -> None:
    """Lawless weather: a third of all wave messages vanish; waking is level-triggered, so all are served."""
    kinds = ("FirstRequest", "StartWave", "WaveWanted", "WaveJoined", "WaveComplete", "LoadSnapshot")
    town = Town("hybrid_2node", seed=seed, weather=Weather(lose=0.3, lose_kinds=kinds)).warm()
    for burst in range(3):
        for ingress in range(2):
            town.ask(ingress, max_tokens=4 + burst)
        town.world.run(town.world.now_s + 0.05 * seed)

    town.run_until_served(60.0)
    town.world.run(town.world.now_s + 5.0)
    town.at_rest()


@pytest.mark.parametrize("seed", range(20))
def test_random_arrivals_and_aborts_leave_nothing_behind(seed: int) -> None:
    town = Town("internal_2node", seed=seed).warm()
    gone: set[int] = set()
    for n in range(24):
        stream = town.ask(n % 4, max_tokens=1 + (n * 7 + seed) % 23)
        if (n + seed) % 3 == 0:
            town.leave(stream, n % 4)
            gone.add(stream)
        town.world.run(town.world.now_s + 0.013 * ((n + seed) % 5))

    for stream in gone:
        del town.asked[stream]
    town.run_until_served()
    town.at_rest()


@pytest.mark.parametrize("name", GROUPED)
def test_a_restarted_rank_meets_the_others_in_a_new_epoch(name: str) -> None:
    """Its own request waits or moves, and goes on behind the tokens that were handed on."""
    quiet, town = Town(name).warm(), Town(name).warm()
    last = len(town.ingresses) - 1
    for one in (quiet, town):
        stream = one.ask(last, max_tokens=80)
        one.world.run(one.world.now_s + 0.3)
    victim = next(e for e in town.engines if town.world.actor(e).scheduler.unfinished)

    town.world.kill(victim)
    town.world.run(town.world.now_s + 0.5)
    town.world.restart(victim)
    for ingress in range(len(town.ingresses)):
        town.world.run(town.world.now_s + 1.5)
        town.ask(ingress)

    town.run_until_served()
    town.at_rest()
    quiet.run_until_served()
    assert town.tokens(stream) == quiet.tokens(stream)
    assert town.ends(stream)[0].attempts == 2
    (epoch,) = {town.world.actor(e).epoch for e in town.engines}
    assert epoch > 1


@pytest.mark.parametrize("seed", range(12))
def test_no_request_is_lost_or_changed_when_ranks_die_under_load(seed: int) -> None:
    """Independent ranks: each dies once, at its own moment; every stream is that of an undisturbed run."""
    quiet, town = Town("dense_dp2").warm(), Town("dense_dp2", seed=seed).warm()
    for one in (quiet, town):
        for n in range(12):
            one.ask(max_tokens=10 + 7 * n)
    quiet.run_until_served()
    for n, victim in enumerate(town.engines):
        town.world.run(town.world.now_s + 0.05 + 0.017 * seed)
        town.world.kill(victim)
        town.world.run(town.world.now_s + 0.1 * n)
        town.world.restart(victim)
        town.world.run(town.world.now_s + 0.8)

    town.run_until_served()
    town.at_rest()
    assert {s: town.tokens(s) for s in town.asked} == {s: quiet.tokens(s) for s in quiet.asked}
    assert max(town.ends(s)[0].attempts for s in town.asked) >= 2


def test_a_request_whose_ranks_stay_away_fails_with_a_reason() -> None:
    town = Town("internal_1node", "roles.frontend.settings.hold_s=3.0").warm()
    stream = town.ask(max_tokens=80)
    town.world.run(town.world.now_s + 0.2)
    for victim in town.engines:
        town.world.kill(victim)
    town.world.run(town.world.now_s + 5.0)

    (end,) = town.ends(stream)
    assert (end.finish, end.status) == ("error", 503)
    assert "within 3 s" in (end.error or "")


def test_streams_of_surviving_ranks_go_on_after_a_loss() -> None:
    """The broken step is repeated in the next epoch: no token is lost or doubled."""
    town = Town("internal_1node").warm()
    stream = town.ask(max_tokens=60, rank=0)
    town.world.run(town.world.now_s + 0.3)
    town.world.kill(Address("engine", 1))
    town.world.run(town.world.now_s + 0.2)
    town.world.restart(Address("engine", 1))

    town.run_until_served()
    town.at_rest()
    quiet = Town("internal_1node").warm()
    assert quiet.ask(max_tokens=60, rank=0) == stream
    quiet.run_until_served()
    assert town.tokens(stream) == quiet.tokens(stream)


def test_in_hybrid_no_request_crosses_hosts() -> None:
    town = Town("hybrid_2node").warm()
    host = {one.setup.address: p.host for p in town.plan.processes for one in p.actors}
    crossed = []

    def watch(target: Address, event: object, effects: object) -> None:
        if (
            isinstance(event, Received)
            and event.inlet in ("requests", "outputs")
            and host[event.sender] != host[target]
        ):
            crossed.append(event)

    town.world.observers.append(watch)
    for n in range(16):
        town.ask(n % 2)
    town.run_until_served()

    assert crossed == []


def test_a_world_is_a_pure_function_of_its_seed() -> None:
    def digest(seed: int) -> list[object]:
        town = Town("internal_2node", seed=seed).warm()
        seen: list[object] = []
        town.world.observers.append(lambda target, event, effects: seen.append((target, repr(event))))
        for n in range(8):
            town.ask(n % 4)
        town.run_until_served()
        return [town.world.now_s, *seen]

    assert digest(1) == digest(1)
    assert digest(1) != digest(2)
