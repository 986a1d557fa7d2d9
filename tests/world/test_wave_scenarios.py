"""Sleeping and waking at the worst moments, on whole topologies."""

import random

from dpactors.actor.address import Address
from dpactors.actor.effects import JobDone, Received, RunJob
from dpactors.serving.jobs import AgreeIdle, StepResult
from dpactors.serving.messages import Dispatch, FirstRequest, LoadSnapshot, StartWave, WaveComplete
from dpactors.simulation.collective import Latency
from tests.world.town import Town

COORDINATOR, CLIENT = Address("coordinator", 0), Address("client", 0)
ENGINES = [Address("engine", rank) for rank in range(2)]


def believing_that_it_runs() -> Town:
    """A pair that sleeps, and a client that has not heard of it."""
    town = Town("internal_1node").warm()
    town.ask()
    town.world.run(town.world.now_s + 1.0, lambda: town.world.actor(CLIENT).running)
    town.hold(LoadSnapshot)
    town.run_until_served()
    town.wait(1.0)
    assert town.world.actor(CLIENT).running
    assert not any(town.world.actor(e).wave.running for e in town.engines)
    return town


def test_s01_five_tokens_on_an_idle_pair_cost_one_interval_on_both_ranks() -> None:
    """5 real and 11 dummy steps on one rank, 16 dummies on the other; the wave goes up by one."""
    town = Town("internal_1node").warm()
    waves = town.waves()
    stream = town.ask(max_tokens=5)

    town.run_until_served()
    town.at_rest()

    engines = [town.world.actor(e) for e in town.engines]
    assert sorted((e.real_steps, e.dummy_steps) for e in engines) == [(0, 16), (5, 11)]
    assert town.waves() == [wave + 1 for wave in waves]
    assert town.served(stream)


def test_s02_forty_tokens_cost_three_intervals() -> None:
    town = Town("internal_1node").warm()
    waves = town.waves()
    town.ask(max_tokens=40)

    town.run_until_served()
    town.at_rest()

    assert town.steps() == [48, 48]
    assert town.waves() == [wave + 1 for wave in waves]


def test_s06_a_client_that_wrongly_believes_in_a_running_group_is_served_without_first_req() -> None:
    town = believing_that_it_runs()
    said = town.count(FirstRequest)
    stream = town.ask()

    town.run_until_served()

    assert town.served(stream)
    assert not said


def test_s07_a_first_req_that_comes_after_the_end_of_its_wave_wakes_all_in_the_next() -> None:
    town = Town("internal_1node").warm()
    release = town.hold(FirstRequest)
    town.ask(rank=0)
    town.run_until_served()  # the rank has asked for itself
    town.wait(1.0)
    waves, steps, starts = town.waves(), town.steps(), town.count(StartWave)

    release()
    town.wait(1.0)

    assert set(starts) == set(ENGINES)
    assert town.waves() == [wave + 1 for wave in waves]
    assert town.steps() == [count + 1 for count in steps]
    town.at_rest()


def test_s08_a_first_req_between_the_last_vote_and_its_report_is_served() -> None:
    town = Town("internal_1node").warm()
    release = town.hold(WaveComplete)
    town.ask()
    town.run_until_served()
    town.wait(0.5)
    assert town.world.actor(COORDINATOR).wave.running
    assert not any(town.world.actor(e).wave.running for e in town.engines)

    town.tell(COORDINATOR, "waves", CLIENT, FirstRequest(0, town.waves()[0] - 1))
    stream = town.ask()
    town.wait(0.05)
    release()
    town.run_until_served()

    assert town.served(stream)
    town.at_rest()


def test_s09_clients_that_wake_the_group_together_start_one_wave() -> None:
    town = Town("internal_2node").warm()
    waves, starts, said = town.waves(), town.count(StartWave), town.count(FirstRequest)
    for ingress in range(4):
        town.ask(ingress)

    town.run_until_served()
    town.at_rest()

    assert said[COORDINATOR] == 4
    assert all(1 <= starts[e] <= 4 for e in town.engines)
    assert town.waves() == [wave + 1 for wave in waves]


def test_s10_a_start_that_comes_after_the_end_of_its_wave_does_nothing() -> None:
    town = Town("internal_1node").warm()
    town.ask()
    town.run_until_served()
    town.at_rest()
    waves, steps = town.waves(), town.steps()

    for engine in ENGINES:
        town.tell(engine, "starts", COORDINATOR, StartWave(waves[0] - 1))
    town.at_rest()

    assert (town.waves(), town.steps()) == (waves, steps)


def test_s11_a_start_for_nothing_costs_one_dummy_step() -> None:
    town = Town("internal_1node").warm()
    waves, steps = town.waves(), town.steps()

    town.tell(COORDINATOR, "waves", CLIENT, FirstRequest(0, waves[0]))
    town.at_rest()

    assert town.waves() == [wave + 1 for wave in waves]
    assert town.steps() == [count + 1 for count in steps]
    assert [town.world.actor(e).real_steps for e in town.engines] == [0, 0]


def test_s12_a_request_between_a_vote_and_its_result_starts_a_wave_by_itself() -> None:
    town = Town("internal_1node", latency=Latency(agree_s=0.05)).warm()
    arrived_in: list[str | None] = []
    town.ask(rank=0)

    def watch(target: Address, event: object, effects: list) -> None:
        votes = [e for e in effects if isinstance(e, RunJob) and isinstance(e.job, AgreeIdle)]
        if target == ENGINES[1] and len(town.asked) == 1 and votes and town.world.actor(target).wave.step == 16:
            town.ask(rank=1)
        if target == ENGINES[1] and isinstance(event, Received) and isinstance(event.message, Dispatch):
            arrived_in.append(town.world.actor(target).job)

    town.world.observers.append(watch)
    waves = town.waves()
    town.run_until_served()
    town.wait(1.0)
    town.run_until_served()

    assert arrived_in == ["agree"]
    assert town.waves() == [wave + 2 for wave in waves]
    town.at_rest()


def test_s13_two_ranks_that_ask_at_once_get_one_wave() -> None:
    town = Town("hybrid_2node").warm()
    said, waves = town.count(FirstRequest), town.waves()
    for index in range(2):
        town.world.actor(Address("client", index)).running = True  # stale, so that no FIRST_REQ goes out
        town.ask(index)

    town.run_until_served()
    town.at_rest()

    assert not said
    assert town.waves() == [wave + 1 for wave in waves]


def test_s14_a_start_that_is_lost_to_one_rank_is_repeated() -> None:
    town = Town("internal_1node").warm()
    lost: list[object] = []
    town.take_over(StartWave, ENGINES[1], lambda route, message: not lost and not lost.append(message))
    stream = town.ask(rank=0)

    town.run_until_served(1.0)

    assert len(lost) == 1
    assert town.served(stream)
    town.at_rest()


def test_s36_one_front_end_of_its_own_rank_wakes_all() -> None:
    town = Town("external_4rank").warm()
    waves = town.waves()
    stream = town.ask(1)

    town.run_until_served()
    town.at_rest()

    assert town.served(stream)
    assert [town.world.actor(e).real_steps for e in town.engines] == [0, 5, 0, 0]
    assert town.waves() == [wave + 1 for wave in waves]
    assert len(set(town.steps())) == 1


def test_s37_loads_of_ranks_with_front_ends_of_their_own_stay_with_them() -> None:
    town = Town("external_4rank").warm()
    inlets: set[str] = set()
    snapshots: dict[Address, list[LoadSnapshot]] = {}

    def watch(target: Address, event: object, effects: object) -> None:
        if isinstance(event, Received) and target == COORDINATOR:
            inlets.add(event.inlet)
        if isinstance(event, Received) and isinstance(event.message, LoadSnapshot):
            snapshots.setdefault(target, []).append(event.message)

    town.world.observers.append(watch)
    for n in range(8):
        town.ask(n % 4)
    town.run_until_served()
    town.at_rest()

    assert inlets <= {"waves", "membership"}
    assert len(snapshots) == 4
    for heard in snapshots.values():
        assert {one.running for one in heard} == {True, False}
        assert all(one.loads == () for one in heard)


def test_d5_five_thousand_steps_keep_all_ranks_together() -> None:
    """Ranks have work at random; each step of each is real or a dummy, and all take part in every collective."""
    town, draw = Town("internal_2node").warm(), random.Random(5)
    taken = dict.fromkeys(town.engines, 0)

    def watch(target: Address, event: object, effects: object) -> None:
        if isinstance(event, JobDone) and isinstance(event.result, StepResult):
            taken[target] += 1
            engine = town.world.actor(target)
            assert engine.real_steps + engine.dummy_steps == taken[target]
            assert max(taken.values()) - min(taken.values()) <= 1

    town.world.observers.append(watch)
    while taken[town.engines[0]] < 5000:
        town.ask(draw.randrange(4), max_tokens=draw.randint(1, 60), rank=draw.randrange(4))
        before = dict(taken)
        town.wait(draw.uniform(0.05, 0.6))
        assert taken != before, "the group stalls"

    town.run_until_served()
    town.at_rest()
    assert len(set(taken.values())) == 1
