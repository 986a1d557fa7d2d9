"""The policies of our own: expected time to first token, prefixes that stay, two choices."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dpactors.serving.policy.least_work import WINDOW
from dpactors.serving.policy.prefix_affinity import ALLOWED
from dpactors.serving.protocol.load import LoadView
from tests.loads import rank_load
from tests.unit.views import burst, named, request, serve, view_of

PACE = {"decode_step_s": 0.010, "prefill_token_s": 0.001}


def told(*loads: dict[str, float], at_s: float = 0.0) -> LoadView:
    """A view of as many ranks as there are loads, all of the same pace unless they say otherwise."""
    view = view_of(len(loads))
    for rank, load in enumerate(loads):
        view.learn(rank_load(rank, **{**PACE, **load}), at_s)
    return view


def least_work(view: LoadView, tokens: int = 10, at_s: float = 0.0) -> int:
    return named("least_work")(view, request(prompt=range(tokens), at_s=at_s)).rank


# ------------------------------------------------------------- least_work


def test_the_score_is_the_expected_time_to_the_first_token() -> None:
    """Step 0.3 s + 500 pending tokens of 1 ms in one chunk of 10 ms + 100 of its own likewise: 0.92 s."""
    view = told({"step_left_s": 0.3, "pending_tokens": 500})

    assert named("least_work")(view, request(prompt=range(100))).score == pytest.approx(0.92)


def test_the_rest_of_a_running_step_counts() -> None:
    assert least_work(told({"step_left_s": 0.5}, {"step_left_s": 0.2, "pending_tokens": 100})) == 1


def test_tokens_count_and_not_requests() -> None:
    """One prompt of 2000 tokens against six of 10."""
    long = {"waiting": 1, "pending_tokens": 2000}
    short = {"waiting": 6, "pending_tokens": 60}

    assert least_work(told(long, short)) == 1
    assert named("vllm")(told(long, short), request()).rank == 0


def test_a_slow_rank_is_judged_by_its_own_pace() -> None:
    """Ten times as slow with half of the work."""
    assert least_work(told({"pending_tokens": 500, "prefill_token_s": 0.010}, {"pending_tokens": 1000})) == 1


def test_every_chunk_costs_a_decode_step_of_the_rank() -> None:
    """3000 tokens are two steps of 2048: a rank with steps of 0.5 s needs 1 s more for them, one of 0.1 s 0.2 s."""
    view = told({"decode_step_s": 0.5}, {"decode_step_s": 0.1, "pending_tokens": 600})

    assert least_work(view, 3000) == 1
    assert least_work(view, 100) == 0


def test_work_melts_with_time_and_what_was_not_reported_does_not() -> None:
    view = told({"pending_tokens": 900}, {"pending_tokens": 100})
    assert least_work(view, at_s=0.0) == 1

    view.book(1, 50)
    assert least_work(view, at_s=10.0) == 0


def test_among_equals_the_smaller_batch_and_the_emptier_cache_win() -> None:
    assert least_work(told({"running": 8, "decoding": 8}, {"running": 2, "decoding": 2})) == 1
    assert least_work(told({"kv_tokens": 3000}, {"kv_tokens": 1000})) == 1


def test_company_never_outweighs_a_queue() -> None:
    busy = {"running": 40, "decoding": 40, "kv_tokens": 2000}

    assert least_work(told(busy, {"pending_tokens": 200})) == 0


def test_a_rank_whose_cache_cannot_hold_the_prompt_waits_for_others_to_end() -> None:
    full = {"running": 2, "decoding": 2, "kv_tokens": 4090}

    assert least_work(told(full, {"pending_tokens": 300}), 200) == 1


def test_own_requests_count_before_any_report() -> None:
    view = view_of(2)
    view.book(0, 4000)

    assert burst(view, "least_work", 3) == [1, 1, 1]


def test_a_stuck_step_grows_heavier_with_every_report() -> None:
    """An engine that overruns says by how much; the idle rank of a pair gets everything meanwhile."""
    view = told({}, {})
    picked = []
    for number in range(2, 8):
        view.learn(rank_load(0, number, step_left_s=0.1 * number, **PACE), 0.1 * number)
        picked.append(least_work(view, at_s=0.1 * number))

    assert picked == [1] * 6


def test_a_large_fleet_is_weighed_window_by_window_and_served_evenly() -> None:
    view = view_of(8 * WINDOW)
    picked = burst(view, "least_work", 16 * WINDOW)

    assert [picked.count(rank) for rank in range(8 * WINDOW)] == [2] * (8 * WINDOW)
    assert len(named("least_work")(view, request()).scores) == WINDOW


@settings(max_examples=60)
@given(st.lists(st.integers(1, 3000), min_size=8, max_size=60), st.integers(2, 8))
def test_tokens_are_levelled_to_within_one_prompt(prompts: list[int], ranks: int) -> None:
    """Greedy by expected time: no rank ends with more than the lightest one and the largest prompt together."""
    view = view_of(ranks)
    for n, size in enumerate(prompts):
        serve(view, named("least_work"), request(f"r{n}", range(size)))

    work = [rank.prefill_s(rank.unseen_tokens) for rank in view.order]
    own = view.order[0].prefill_s(max(prompts))
    company = len(prompts) * view.order[0].decode_step_s / 64
    assert max(work) <= min(work) + own + company + view.order[0].decode_step_s


# ------------------------------------------------------------- prefix_affinity


def test_prompts_that_begin_alike_go_to_one_rank_and_others_spread() -> None:
    view = view_of(8)
    policy = named("prefix_affinity", prefix_tokens=4)
    homes = [
        {policy(view, request(f"{group}/{n}", [group, 1, 2, 3, n])).rank for n in range(5)} for group in range(800)
    ]

    assert all(len(home) == 1 for home in homes)
    shares = [sum(rank in home for home in homes) for rank in range(8)]
    assert all(60 < share < 140 for share in shares), shares


def test_a_lost_rank_moves_its_own_prefixes_only_and_gets_them_back() -> None:
    view = view_of(8)
    policy = named("prefix_affinity")
    before = [policy(view, request("r", [group])).rank for group in range(300)]
    view.remove(3)
    without = [policy(view, request("r", [group])).rank for group in range(300)]
    view.add(3)

    assert [now for was, now in zip(before, without, strict=True) if was != 3] == [was for was in before if was != 3]
    assert len({now for was, now in zip(before, without, strict=True) if was == 3}) > 3
    assert [policy(view, request("r", [group])).rank for group in range(300)] == before


def test_in_a_large_fleet_few_ranks_draw_for_a_prefix_and_a_lost_one_moves_little_else() -> None:
    """512 ranks, 32 draws: shares are as even as draws are, and besides its own a lost rank moves one prefix in 500."""
    view = view_of(512)
    policy = named("prefix_affinity")
    before = [policy(view, request("r", [group])) for group in range(8000)]
    assert {len(choice.scores) for choice in before} == {32}
    counts = [0] * 512
    for choice in before:
        counts[choice.rank] += 1
    assert max(counts) <= 45
    assert counts.count(0) <= 3
    view.remove(77)
    moved = [c.rank for n, c in enumerate(before) if policy(view, request("r", [n])).rank != c.rank]

    assert moved.count(77) == counts[77] > 0
    assert len(moved) - counts[77] <= 40


def test_a_hot_prefix_overflows_to_one_more_rank_at_a_time() -> None:
    """The guard: 1.25 times the mean and four requests more; SGLang's router lets 64 pile up."""
    view = view_of(4)
    policy = named("prefix_affinity")
    picked = [serve(view, policy, request(f"r{n}", [7])) for n in range(40)]
    counts = [picked.count(rank) for rank in dict.fromkeys(picked)]

    assert len(set(picked[:5])) == 1
    assert counts[0] <= 1.25 * 40 / 4 + ALLOWED + 1
    assert counts == sorted(counts, reverse=True)
    assert len(counts) > 1


def test_an_owner_that_is_no_longer_heavy_has_its_prefix_again() -> None:
    view = view_of(4)
    policy = named("prefix_affinity")
    owner = policy(view, request("r", [7])).rank
    view.learn(rank_load(owner, 1, running=30), 0.0)
    away = policy(view, request("r", [7]))
    view.learn(rank_load(owner, 2, running=3), 0.0)

    assert away.rank != owner
    assert f"{owner} has 30 requests" in away.reason
    assert policy(view, request("r", [7])).rank == owner


# ------------------------------------------------------------- power_of_two


def test_two_draws_depend_on_id_and_seed_alone_and_reach_every_rank() -> None:
    view = view_of(8)
    policy = named("power_of_two", policy_seed=1)
    first = [policy(view, request(f"r{n}")).rank for n in range(400)]

    assert first == [policy(view, request(f"r{n}")).rank for n in range(400)]
    assert first != [named("power_of_two", policy_seed=2)(view, request(f"r{n}")).rank for n in range(400)]
    assert all(25 < first.count(rank) < 80 for rank in range(8))


def test_the_lighter_of_two_wins() -> None:
    view = view_of(2)
    view.learn(rank_load(0, running=1), 0.0)

    assert {named("power_of_two")(view, request(f"r{n}")).rank for n in range(50)} == {1}


def test_two_choices_level_a_burst_far_better_than_one() -> None:
    """1024 balls into 32: about 50 in the fullest of single draws, 35 of double ones."""
    two = burst(view_of(32), "power_of_two", 1024)
    one = [named("follow_bootstrap_room")(view_of(32), request(f"r{n}")).rank for n in range(1024)]

    assert max(two.count(rank) for rank in range(32)) <= 36
    assert max(one.count(rank) for rank in range(32)) >= 42
