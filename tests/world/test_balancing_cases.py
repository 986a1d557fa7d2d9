"""Cases in which load balancers of others went wrong, in virtual time: late reports, frozen views, starved caches."""

import random

import attrs
import pytest

from dpactors.actor.address import Address
from dpactors.simulation.weather import Weather
from tests.world.town import Town

LEVELLING = ("vllm", "total_requests", "total_tokens", "least_work")
SNAPSHOT_S = 0.1


def town(policy: str, *settings: str, ranks: int = 4, weather: Weather | None = None) -> Town:
    chosen = (f'roles.frontend.settings.policy="{policy}"', f"roles.engine.place.node0={ranks}")
    return Town("sglang_dp", *chosen, *settings, weather=weather).warm()


def ranks_of(one: Town, streams: list[int]) -> list[int]:
    """How many of the streams each rank serves, by the ranks' own queues."""
    names = {one.asked[stream].request_id for stream in streams}
    return [len(names & one.world.actor(engine).scheduler._by_id.keys()) for engine in one.engines]


@pytest.mark.parametrize("policy", LEVELLING)
@pytest.mark.parametrize(("ingresses", "spread"), [(1, 1), (4, 3)])
def test_a_burst_longer_than_a_snapshot_stays_even_though_reports_are_late(
    policy: str, ingresses: int, spread: int
) -> None:
    """64 equal requests over 2.5 snapshot intervals; every word of a rank is 1.5 intervals on its way, each hop."""
    late = Weather(delay_s=(1.5 * SNAPSHOT_S, 1.5 * SNAPSHOT_S))
    one = town(policy, f"roles.frontend.place.node0={ingresses}", weather=late)
    streams: list[int] = []
    for n in range(64):
        streams.append(one.ask(n % ingresses, max_tokens=200))
        one.world.run(one.world.now_s + 2.5 * SNAPSHOT_S / 64)
    one.world.run(one.world.now_s + 0.5)

    counts = ranks_of(one, streams)
    assert sum(counts) == 64
    assert max(counts) - min(counts) <= spread, counts


@pytest.mark.parametrize("policy", LEVELLING)
def test_simultaneous_bursts_at_four_front_doors_do_not_herd(policy: str) -> None:
    one = town(policy, "roles.frontend.place.node0=4")
    streams = [one.ask(ingress, max_tokens=100) for _ in range(16) for ingress in range(4)]
    one.world.run(one.world.now_s + 0.2)

    counts = ranks_of(one, streams)
    assert sum(counts) == 64
    assert max(counts) - min(counts) <= 2, counts


@pytest.mark.parametrize("policy", ["vllm", "total_requests", "least_work"])
def test_without_waves_no_rank_idles_while_another_has_a_queue(policy: str) -> None:
    """32 in flight on 4 ranks of 4 places, lengths from 20 tokens with a heavy tail: less than a twentieth of the time."""
    one = town(policy, "roles.engine.settings.max_running=4")
    lengths = random.Random(5)
    engines = [one.world.actor(engine) for engine in one.engines]
    open_streams: set[int] = set()
    lost_s, since_s, bad, began_s = 0.0, one.world.now_s, False, one.world.now_s
    asked = 0

    def look(target: Address, event: object, effects: object) -> None:
        nonlocal lost_s, since_s, bad
        lost_s += (one.world.now_s - since_s) * bad
        since_s = one.world.now_s
        idle = any(not engine.scheduler.unfinished for engine in engines)
        bad = idle and any(engine.scheduler.waiting for engine in engines)

    one.world.observers.append(look)
    while asked < 200:
        open_streams = {stream for stream in open_streams if not one.ends(stream)}
        while len(open_streams) < 32 and asked < 200:
            open_streams.add(one.ask(max_tokens=min(1000, int(20 * lengths.paretovariate(1.3)))))
            asked += 1
        one.world.run(one.world.now_s + 0.02)

    assert lost_s <= 0.05 * (one.world.now_s - began_s)
    assert all(engine.real_steps > 200 for engine in engines)


@pytest.mark.parametrize("policy", ["vllm", "least_work"])
def test_ranks_with_a_starved_cache_get_little_of_the_next_burst(policy: str) -> None:
    """Ranks 0 and 1 hold a quarter of the KV of 2 and 3. After a first burst of 48 they queue, and the second goes round."""
    settings = "roles.engine.settings.kv_blocks=64"
    one = Town("sglang_dp", f'roles.frontend.settings.policy="{policy}"', "roles.engine.place.node0=4", settings)
    for engine in one.engines[:2]:
        actor = one.world.actor(engine)
        actor.settings = attrs.evolve(actor.settings, kv_blocks=16)
    one.warm()
    for _ in range(48):
        one.ask(prompt=32, max_tokens=60)
    one.world.run(one.world.now_s + 0.3)
    second = [one.ask(prompt=32, max_tokens=60) for _ in range(48)]
    one.world.run(one.world.now_s + 0.05)
    counts = ranks_of(one, second)

    assert sum(counts) == 48
    assert counts[0] + counts[1] <= 0.3 * 48, counts
    one.run_until_served()


@pytest.mark.parametrize("policy", ["vllm", "round_robin", "least_work"])
def test_short_requests_one_after_another_do_not_all_go_to_the_first(policy: str) -> None:
    one = town(policy)
    for _ in range(9):
        one.ask(max_tokens=1)
        one.run_until_served()

    served = [end.rank for stream in one.asked for end in one.ends(stream)]
    assert max(served.count(rank) for rank in range(4)) <= 3


def test_an_abort_reaches_its_owner_alone() -> None:
    one = town("round_robin")
    streams = [one.ask(max_tokens=300) for _ in range(4)]
    one.world.run(one.world.now_s + 0.2)
    told: list[Address] = []
    one.world.observers.append(
        lambda target, event, effects: told.append(target) if "Abort" in repr(event) and target in one.engines else None
    )
    one.leave(streams[2])
    one.world.run(one.world.now_s + 0.1)

    assert told == [Address("engine", 2)]
    assert ranks_of(one, streams) == [1, 1, 0, 1]


def test_a_rank_that_does_not_exist_is_refused_to_one_request_alone() -> None:
    """SGLang's controller ends its process over one that is inactive."""
    one = town("round_robin")
    wrong = one.ask(rank=9)
    one.world.run(one.world.now_s + 0.1)
    (end,) = one.ends(wrong)
    del one.asked[wrong]
    one.ask()
    one.run_until_served()

    assert (end.finish, end.status) == ("error", 503)
    assert "rank 9 is not ready" in (end.error or "")


def test_no_rank_at_all_is_an_answer_and_not_the_end() -> None:
    one = town("total_tokens", ranks=2)
    for engine in one.engines:
        one.world.kill(engine)
    one.world.run(one.world.now_s + 0.1)
    refused = one.ask()
    one.world.run(one.world.now_s + 0.1)
    (end,) = one.ends(refused)
    del one.asked[refused]
    for engine in one.engines:
        one.world.restart(engine)
    one.world.run(one.world.now_s + 2.0)
    one.ask()
    one.run_until_served()

    assert (end.finish, end.status, end.error) == ("error", 503, "no rank is ready")


def test_a_rank_whose_one_step_was_slow_is_tried_again() -> None:
    """Its first step took a second, as first ones may; a quarter of a minute of rest later it counts as any other."""
    one = town("least_work", ranks=2)
    slow = one.world.actor(one.engines[0])
    slow.pace.learn(0, 1.0)
    one.world.run(one.world.now_s + 0.3)
    early = [one.ask(max_tokens=1) for _ in range(4)]
    one.run_until_served()
    one.world.run(one.world.now_s + 15.0)
    late = [one.ask(max_tokens=1) for _ in range(4)]
    one.run_until_served()

    assert [one.ends(stream)[0].rank for stream in early] == [1] * 4
    assert sorted(one.ends(stream)[0].rank for stream in late) == [0, 0, 1, 1]
