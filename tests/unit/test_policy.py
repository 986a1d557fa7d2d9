"""Rank choice: what vLLM's scores decide, and what holds of every policy."""

import copy

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dpactors.serving.policy.registry import POLICIES
from dpactors.serving.policy.vllm import vllm, vllm_classic
from dpactors.serving.protocol.load import LoadView
from tests.loads import rank_load
from tests.unit.views import burst, named, request, serve, view_of

SPREADING = ("vllm", "round_robin", "auto", "total_requests", "total_tokens", "least_work")


@st.composite
def views(draw: st.DrawFn) -> LoadView:
    """Any belief: some ranks never reported, some are gone, some hold bookings."""
    count = draw(st.integers(1, 9))
    view = view_of(count, draw(st.integers(1, 4)), draw(st.integers(0, 100)))
    small = st.integers(0, 50)
    for rank in range(count):
        for tokens in draw(st.lists(st.integers(1, 4000), max_size=3)):
            view.book(rank, tokens)
        if draw(st.booleans()):
            counts = {name: draw(small) for name in ("waiting", "running", "decoding", "pending_tokens")}
            paces = {name: draw(st.floats(0, 2)) for name in ("step_left_s", "decode_step_s", "prefill_token_s")}
            kv = draw(st.floats(0, 1))
            view.learn(rank_load(rank, 1, kv, draw(st.integers(0, 3)), **counts, **paces), draw(st.floats(-5, 5)))
    for rank in draw(st.lists(st.integers(0, count - 1), max_size=count - 1)):
        if len(view.ranks) > 1:
            view.remove(rank)
    return view


@pytest.mark.parametrize("name", POLICIES)
@settings(max_examples=40)
@given(views(), st.text(max_size=8), st.lists(st.integers(0, 99), min_size=1, max_size=9))
def test_a_choice_is_pure_and_never_falls_on_a_rank_that_is_not_ready(
    name: str, view: LoadView, request_id: str, prompt: list[int]
) -> None:
    before = copy.deepcopy(view)
    asked = request(request_id, prompt)

    choice = named(name)(view, asked)

    assert choice.rank in view.ranks
    assert view == before
    again = named(name)(before, asked)
    assert (again.rank, again.score, again.turn, again.reason) == (
        choice.rank,
        choice.score,
        choice.turn,
        choice.reason,
    )
    assert choice.reason
    assert {rank for rank, _ in choice.best(8)} <= set(view.ranks)


@pytest.mark.parametrize("name", POLICIES)
@settings(max_examples=40)
@given(views())
def test_the_best_candidate_told_is_the_one_chosen(name: str, view: LoadView) -> None:
    choice = named(name)(view, request())
    told = choice.best(3)

    assert told == sorted(told, key=lambda pair: pair[1])
    if told and name not in ("prefix_affinity", "total_tokens"):  # one may pass over an owner, one has two keys
        assert told[0] == (choice.rank, choice.score)


@pytest.mark.parametrize("name", SPREADING)
@pytest.mark.parametrize("ranks", [1, 2, 3, 8])
def test_equal_requests_to_equal_ranks_are_spread_evenly(name: str, ranks: int) -> None:
    picked = burst(view_of(ranks), name, 4 * ranks)

    assert [picked.count(rank) for rank in range(ranks)] == [4] * ranks


@pytest.mark.parametrize("name", ["vllm", "round_robin", "auto", "least_work"])
def test_ties_go_round_when_every_request_is_over_before_the_next(name: str) -> None:
    """A trickle on idle ranks: nobody is busy at any choice, and still nobody gets them all."""
    view = view_of(4)
    picked: list[int] = []
    for number in range(1, 13):
        rank = serve(view, named(name), request(f"r{number}"))
        view.learn(rank_load(rank, number, seen=view.ranks[rank].dispatched), 0.0)
        view.release(rank)
        picked.append(rank)

    assert [picked.count(rank) for rank in range(4)] == [3] * 4


@pytest.mark.parametrize("name", ["vllm", "round_robin", "least_work", "power_of_two", "prefix_affinity"])
def test_unrelated_prompts_on_two_idle_ranks_reach_both(name: str) -> None:
    view = view_of(2)
    picked: set[int] = set()
    for n in range(12):
        choice = named(name)(view, request(f"r{n}", [n, n + 1]))
        view.turn = choice.turn
        picked.add(choice.rank)

    assert picked == {0, 1}


@pytest.mark.parametrize(
    ("waiting", "running", "kv", "score"),
    [(0, 5, 0.9, 5.0), (2, 5, 0.5, 7.0), (2, 5, 1.0, 13.0), (4, 0, 0.75, 10.0)],
)
def test_vllm_adds_a_penalty_for_waiting_behind_a_full_cache(
    waiting: int, running: int, kv: float, score: float
) -> None:
    view = view_of(1)
    view.learn(rank_load(0, 1, kv, waiting=waiting, running=running), 0.0)

    assert vllm(view, request()).score == score


def test_vllm_floors_the_score_with_the_clients_own_requests() -> None:
    view = view_of(2, clients=4)
    for sequence in range(1, 4):
        assert view.book(0, 5) == sequence
    view.learn(rank_load(0, 1, seen=3), 0.0)  # all three accepted, and served by the time of the report

    assert vllm(view, request()).rank == 1
    view.remove(1)
    assert vllm(view, request()).score == 12.0


def test_vllm_classic_weighs_waiting_four_times() -> None:
    view = view_of(2)
    view.learn(rank_load(0, 1, waiting=1, running=1), 0.0)
    view.learn(rank_load(1, 1, waiting=0, running=4), 0.0)

    choice = vllm_classic(view, request())

    assert (choice.rank, choice.score) == (1, 4.0)


def test_vllm_rotates_ties_and_classic_does_not() -> None:
    rotating, fixed = view_of(2), view_of(2)
    picked = []
    for _ in range(4):
        choice, classic = vllm(rotating, request()), vllm_classic(fixed, request())
        rotating.turn, fixed.turn = choice.turn, classic.turn
        picked.append((choice.rank, classic.rank))

    assert picked == [(0, 0), (1, 0), (0, 0), (1, 0)]


def test_vllm_s_scan_begins_where_its_client_stands_among_the_clients() -> None:
    """Client 1 of 2 over 4 ranks begins at rank 2."""
    assert burst(view_of(4, clients=2, turn=2), "vllm", 4) == [2, 3, 0, 1]


def test_a_stale_report_cannot_erase_an_assignment() -> None:
    """Ours differs from vLLM: dispatches leave the view when a report has counted them, not when one comes."""
    view = view_of(2)
    burst(view, "vllm", 4)
    view.learn(rank_load(0, 1, seen=0), 0.0)
    view.learn(rank_load(1, 1, running=2, seen=2), 0.0)

    assert (view.ranks[0].unseen, view.ranks[1].unseen) == (2, 0)
    assert vllm(view, request()).score == 2.0
