"""How evenly requests spread over ranks, and how fresh the loads are that decide it."""

import random
from collections import Counter

import pytest

from dpactors.actor.address import Address
from dpactors.actor.effects import JobDone, Received
from dpactors.serving.jobs import StepResult
from dpactors.serving.messages import (
    Dispatch,
    FirstRequest,
    LoadReport,
    LoadSnapshot,
    StartWave,
    WaveJoined,
    WaveWanted,
)
from tests.loads import rank_load
from tests.world.town import Town

COORDINATOR = Address("coordinator", 0)
PERIOD_S = 0.1
"""Of snapshots and reports, by default."""


def town_of(ingresses: int, seed: int = 0) -> Town:
    """Four ranks in lockstep behind so many front ends."""
    return Town("internal_2node", f"roles.frontend.place.node0={ingresses}", seed=seed).warm()


def spread(dispatched: Counter[Address], ranks: int = 4) -> int:
    shares = [dispatched[Address("engine", rank)] for rank in range(ranks)]
    return max(shares) - min(shares)


@pytest.mark.parametrize("seed", [1, 2])
@pytest.mark.parametrize("clients", [1, 4])
def test_s03_two_hundred_paced_requests_share_out_within_a_quarter(clients: int, seed: int) -> None:
    town = town_of(clients, seed)
    dispatched = town.count(Dispatch)
    for n in range(200):
        town.ask(n % clients, max_tokens=8 + n % 5)
        town.wait(0.010)

    town.run_until_served()

    assert sum(dispatched.values()) == 200
    assert all(50 * 0.75 <= share <= 50 * 1.25 for share in dispatched.values()), dispatched
    town.at_rest()


def test_s04_a_burst_of_eight_a_rank_gives_each_exactly_eight() -> None:
    town = town_of(1)
    dispatched = town.count(Dispatch)
    for _ in range(32):
        town.ask(max_tokens=20)

    town.run_until_served()

    assert dispatched == {Address("engine", rank): 8 for rank in range(4)}


def test_s05_a_burst_longer_than_three_snapshots_stays_within_one_a_rank() -> None:
    town = town_of(1)
    dispatched = town.count(Dispatch)
    for _ in range(63):
        town.ask(max_tokens=200)
        town.wait(3 * PERIOD_S / 60)
        assert spread(dispatched) <= 1, dispatched

    town.run_until_served(60.0)


@pytest.mark.parametrize(("ingresses", "within"), [(1, 1), (4, 3)])
def test_d1_reports_that_come_late_do_not_skew_a_paced_burst(ingresses: int, within: int) -> None:
    town = town_of(ingresses)
    dispatched = town.count(Dispatch)
    town.delay(LoadReport, 1.5 * PERIOD_S)
    for n in range(64):
        town.ask(n % ingresses, max_tokens=120)
        town.wait(2.5 * PERIOD_S / 64)

    assert sum(dispatched.values()) == 64
    assert spread(dispatched) <= within, dispatched
    town.run_until_served(60.0)


def test_d2_independent_ranks_idle_little_while_others_queue() -> None:
    """No group, so no wave message; 32 in flight of very unequal lengths."""
    draw = random.Random(2)
    town = Town("dense_dp2", "roles.engine.place.node0=4", "roles.engine.settings.max_running=8").warm()
    waves = [town.count(kind) for kind in (FirstRequest, StartWave, WaveWanted, WaveJoined)]
    reported: dict[int, float] = {}
    gap_s, idle_s, watched_s, last_s = 0.0, 0.0, 0.0, town.world.now_s

    def watch(target: Address, event: object, effects: object) -> None:
        nonlocal gap_s
        if isinstance(event, Received) and isinstance(event.message, LoadReport) and target == COORDINATOR:
            now, rank = town.world.now_s, event.message.load.rank
            gap_s = max(gap_s, now - reported.get(rank, now))
            reported[rank] = now

    town.world.observers.append(watch)
    flying: set[int] = set()
    while len(town.asked) < 400:
        flying = {s for s in flying if s not in town.world.written or town.world.written[s][-1].finish is None}
        while len(town.asked) < 400 and len(flying) < 32:
            flying.add(town.ask(max_tokens=min(500, int(20 * draw.paretovariate(1.2)))))
        town.wait(0.02)
        engines = [town.world.actor(e) for e in town.engines]
        queue = any(e.scheduler.waiting for e in engines)
        passed_s, last_s = town.world.now_s - last_s, town.world.now_s
        watched_s += passed_s * len(engines)
        idle_s += passed_s * sum(queue and not e.scheduler.unfinished for e in engines)

    town.wait(10.0)
    town.run_until_served()
    assert gap_s <= PERIOD_S + 2 * town.world.weather.delay_s[1]
    assert idle_s < 0.05 * watched_s
    assert waves == [{}] * 4
    assert all(town.world.actor(e).dummy_steps == 0 for e in town.engines)


def test_s43_a_flood_of_reports_delays_no_snapshot() -> None:
    """20,000 reports a second for half a second."""
    town = Town("dense_dp2").warm()
    heard: list[float] = []

    def watch(target: Address, event: object, effects: object) -> None:
        if isinstance(event, Received) and isinstance(event.message, LoadSnapshot):
            heard.append(town.world.now_s)

    town.world.observers.append(watch)
    begin = town.world.now_s
    for n in range(10_000):
        load = rank_load(n % 2, 1_000_000 + n, step=n, waiting=n % 7, running=n % 3)
        town.world._at(begin + n / 20_000, COORDINATOR, Received("loads", Address("engine", n % 2), LoadReport(load)))
    town.wait(0.5)

    gaps = [later - earlier for earlier, later in zip([begin, *heard], [*heard, begin + 0.5], strict=True)]
    assert max(gaps) <= 2 * PERIOD_S


def test_s44_kv_that_fills_while_counts_stay_is_seen_within_a_period() -> None:
    """One long request, seen by a client that has nothing to do with it."""
    town = town_of(4)
    town.ask(0, max_tokens=400, rank=2)
    owner, onlooker = Address("engine", 2), town.world.actor(Address("client", 3))
    town.wait(0.5)
    used: list[tuple[float, float]] = []

    def watch(target: Address, event: object, effects: object) -> None:
        if target == owner and isinstance(event, JobDone) and isinstance(event.result, StepResult):
            used.append((town.world.now_s, town.world.actor(owner).scheduler.kv_used))

    town.world.observers.append(watch)
    late_s = 2 * PERIOD_S + 2 * town.world.weather.delay_s[1]  # a report's period, a snapshot's, and two ways
    for _ in range(20):
        town.wait(0.1)
        engine = town.world.actor(owner)
        assert (engine.scheduler.waiting, engine.scheduler.running) == (0, 1)
        known = [share for when_s, share in used if when_s <= town.world.now_s - late_s]
        assert onlooker.load.ranks[2].kv_used >= max(known, default=0.0)

    assert onlooker.load.ranks[2].kv_used > 0.01
