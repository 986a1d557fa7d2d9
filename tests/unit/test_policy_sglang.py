"""SGLang's methods, decision by decision, and where ours deliberately decide better."""

import random

import pytest

from dpactors.serving.protocol.load import LoadView
from tests.loads import rank_load
from tests.unit.views import burst, named, request, serve, view_of


@pytest.mark.parametrize(("pd_role", "picked"), [("none", [0, 1, 2]), ("decode", [0, 1, 2]), ("prefill", [3, 3, 3])])
def test_auto_follows_rooms_where_it_prefills_and_takes_turns_elsewhere(pd_role: str, picked: list[int]) -> None:
    view = view_of(4)

    assert [serve(view, named("auto", pd_role=pd_role), request(room=7)) for _ in range(3)] == picked


@pytest.mark.parametrize("pd_role", ["none", "prefill", "decode"])
def test_a_method_that_is_named_is_kept_in_every_role(pd_role: str) -> None:
    view = view_of(4)

    assert [serve(view, named("round_robin", pd_role=pd_role), request(room=7)) for _ in range(3)] == [0, 1, 2]


def test_round_robin_goes_round() -> None:
    assert burst(view_of(4), "round_robin", 12) == [0, 1, 2, 3] * 3


def test_round_robin_leaves_out_a_rank_that_is_not_ready() -> None:
    view = view_of(4)
    view.remove(1)

    assert burst(view, "round_robin", 6) == [0, 2, 3, 0, 2, 3]


def test_round_robin_counts_places_among_the_ready_so_a_change_shifts_it() -> None:
    """After 0 and 1 the next place is 2, which is rank 3 once rank 1 has gone, and rank 2 once it is back."""
    view = view_of(4)
    assert burst(view, "round_robin", 2) == [0, 1]
    view.remove(1)
    assert burst(view, "round_robin", 1) == [3]
    view.add(1)
    assert burst(view, "round_robin", 5) == [0, 1, 2, 3, 0]


def test_an_activated_rank_gets_its_turn_and_an_inactive_one_nothing() -> None:
    view = LoadView(0, 1, (0, 1, 2, 3))
    for rank in (0, 1):
        view.add(rank)
    assert burst(view, "round_robin", 4) == [0, 1, 0, 1]

    view.add(2)
    assert burst(view, "round_robin", 3) == [0, 1, 2]


def test_a_request_that_names_its_rank_moves_nobody_s_turn_and_is_counted() -> None:
    """A booking without a choice. SGLang leaves it out of its budget; here what is on a rank counts on it."""
    view = view_of(4)
    assert burst(view, "round_robin", 2) == [0, 1]
    view.book(1, 1000)
    assert burst(view, "round_robin", 2) == [2, 3]

    view = view_of(2)
    view.book(0, 1000)
    assert burst(view, "total_requests", 1) == [1]


def test_a_room_is_its_rank_modulo_the_slots() -> None:
    view = view_of(8)
    seeded = random.Random(7)
    for _ in range(10_000):
        room = seeded.getrandbits(63)
        assert named("follow_bootstrap_room")(view, request(room=room)).rank == room % 8


def test_a_room_counts_slots_that_are_not_ready_and_is_served_by_the_next_that_is() -> None:
    """SGLang sends it to the dead rank; ours moves this room alone, all others stay where they were."""
    view = view_of(4)
    view.remove(1)
    view.remove(2)
    policy = named("follow_bootstrap_room")

    assert [policy(view, request(room=room)).rank for room in range(8)] == [0, 3, 3, 3, 0, 3, 3, 3]


def test_a_request_without_a_room_gets_one_from_its_id() -> None:
    """SGLang's controller ends its process there."""
    view = view_of(4)
    policy = named("follow_bootstrap_room")
    picked = [policy(view, request(f"r{n}")).rank for n in range(400)]

    assert picked == [policy(view, request(f"r{n}")).rank for n in range(400)]
    assert all(60 < picked.count(rank) < 140 for rank in range(4))


def test_rooms_and_samples_of_a_batch_fall_on_the_ranks_their_numbers_say() -> None:
    view = view_of(4)
    policy = named("follow_bootstrap_room")

    assert [policy(view, request(f"r{n}", room=41 + n)).rank for n in range(5)] == [1, 2, 3, 0, 1]
    assert {policy(view, request(f"r{n}", room=41)).rank for n in range(5)} == {1}


def test_total_requests_levels_a_burst_from_the_lowest_rank_up() -> None:
    assert burst(view_of(4), "total_requests", 12) == [0, 1, 2, 3] * 3


def test_total_requests_counts_waiting_and_running_and_breaks_ties_low() -> None:
    view = view_of(3)
    view.learn(rank_load(0, waiting=3, running=1), 0.0)
    view.learn(rank_load(1, waiting=0, running=3), 0.0)
    view.learn(rank_load(2, waiting=2, running=1), 0.0)

    assert burst(view, "total_requests", 4) == [1, 2, 0, 1]


def test_total_tokens_levels_whole_prompts() -> None:
    view = view_of(4)
    policy = named("total_tokens")
    picked = [serve(view, policy, request(prompt=range(size))) for size in (1000, *[10] * 7)]

    assert picked == [0, 1, 2, 3, 1, 2, 3, 1]
    assert [view.ranks[rank].tokens for rank in range(4)] == [1000, 30, 20, 20]


def test_total_tokens_breaks_ties_by_requests_then_low() -> None:
    view = view_of(3)
    view.learn(rank_load(0, kv_tokens=64, running=3), 0.0)
    view.learn(rank_load(1, kv_tokens=64, running=1), 0.0)
    view.learn(rank_load(2, kv_tokens=64, running=1), 0.0)

    assert named("total_tokens")(view, request()).rank == 1


def test_total_tokens_are_kv_in_use_and_whole_prompts_in_the_queue() -> None:
    """Not cached prefixes, not output to come, not the unfinished rest of a chunked prompt: as SGLang counts."""
    view = view_of(1)
    view.learn(rank_load(0, kv_tokens=160, waiting_tokens=700, pending_tokens=5000), 0.0)

    assert named("total_tokens")(view, request()).score == 860


@pytest.mark.parametrize("name", ["total_requests", "total_tokens"])
def test_a_report_heard_twice_changes_nothing(name: str) -> None:
    view = view_of(2)
    load = rank_load(0, 7)
    view.learn(load, 0.0)
    burst(view, name, 3)
    before = [(rank.requests, rank.tokens) for rank in view.order]

    assert not view.learn(load, 1.0)
    assert [(rank.requests, rank.tokens) for rank in view.order] == before


@pytest.mark.parametrize("name", ["total_requests", "total_tokens", "vllm", "least_work", "power_of_two"])
def test_new_reports_that_count_no_arrival_do_not_draw_a_burst_to_one_rank(name: str) -> None:
    """Two ranks report 10 and 12 again and again, before they have accepted anything.

    SGLang then sends all of eight requests to the first, for each snapshot overwrites its count.
    """
    view = view_of(2)
    picked: list[int] = []
    for number in range(1, 9):
        view.learn(rank_load(0, number, running=10, kv_tokens=100), 0.0)
        view.learn(rank_load(1, number, running=12, kv_tokens=120), 0.0)
        picked.append(serve(view, named(name), request(f"r{number}", range(10))))

    assert picked.count(1) >= 3


@pytest.mark.parametrize("name", ["total_requests", "total_tokens"])
def test_a_dead_rank_that_looked_idle_gets_nothing(name: str) -> None:
    """Frozen at 0 among peers at 50: SGLang sends it 51 (by requests) of the next 60, until it is as full as they."""
    view = view_of(4)
    for rank in (1, 2, 3):
        view.learn(rank_load(rank, running=50, kv_tokens=4000), 0.0)
    view.learn(rank_load(0), 0.0)
    view.remove(0)

    picked = burst(view, name, 60, prompt=50)

    assert [picked.count(rank) for rank in range(4)] == [0, 20, 20, 20]


def test_many_reports_between_two_choices_leave_one_a_rank_the_newest() -> None:
    view = view_of(8)
    for number in range(1, 1001):
        for rank in range(8):
            view.learn(rank_load(rank, number, waiting=number % 7), 0.0)

    assert [rank.report.report for rank in view.order if rank.report is not None] == [1000] * 8
    assert [rank.requests for rank in view.order] == [1000 % 7] * 8
