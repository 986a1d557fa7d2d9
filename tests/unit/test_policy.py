"""Rank choice, decision by decision."""

import pytest

from dpactors.serving.messages import ClientMark, RankLoad
from dpactors.serving.policy.choose import POLICIES, vllm, vllm_classic
from dpactors.serving.protocol.load import LoadView


def view(ranks: int = 2, clients: int = 1, start: int = 0) -> LoadView:
    made = LoadView(0, clients, {}, start)
    for rank in range(ranks):
        made.add(rank)
    return made


def report(rank: int, number: int, waiting: int = 0, running: int = 0, kv: float = 0.0, seen: int = 0) -> RankLoad:
    return RankLoad(rank, number, 0, 0, waiting, running, kv, (ClientMark(0, seen),))


def choose(load: LoadView, policy: str = "vllm") -> int:
    choice = POLICIES[policy](load)
    load.start += choice.rotate
    load.book(choice.rank)
    return choice.rank


def test_a_burst_spreads_evenly_before_any_report() -> None:
    load = view(4)

    assert [choose(load) for _ in range(8)] == [0, 1, 2, 3, 0, 1, 2, 3]


@pytest.mark.parametrize(
    ("waiting", "running", "kv", "score"),
    [(0, 5, 0.9, 5.0), (2, 5, 0.5, 7.0), (2, 5, 1.0, 13.0), (4, 0, 0.75, 10.0)],
)
def test_vllm_adds_a_penalty_for_waiting_behind_a_full_cache(
    waiting: int, running: int, kv: float, score: float
) -> None:
    load = view(1)
    load.learn(report(0, 1, waiting, running, kv))

    assert vllm(load).score == score


def test_vllm_floors_the_score_with_the_clients_own_requests() -> None:
    load = view(2, clients=4)
    for sequence in range(1, 4):
        assert load.book(0) == sequence
    load.learn(report(0, 1, seen=3))  # all three accepted, and served by the time of the report

    assert vllm(load).rank == 1
    load.remove(1)
    assert vllm(load).score == 12.0


def test_vllm_classic_weighs_waiting_four_times() -> None:
    load = view(2)
    load.learn(report(0, 1, waiting=1, running=1))
    load.learn(report(1, 1, waiting=0, running=4))

    assert vllm_classic(load).rank == 1
    assert vllm_classic(load).score == 4.0


def test_vllm_rotates_ties_and_classic_does_not() -> None:
    rotating, fixed = view(2), view(2)
    picked = []
    for number in range(1, 5):
        for load in (rotating, fixed):
            load.learn(report(0, number))
            load.learn(report(1, number))
        choice = vllm(rotating)
        rotating.start += choice.rotate
        picked.append((choice.rank, vllm_classic(fixed).rank))

    assert picked == [(0, 0), (1, 0), (0, 0), (1, 0)]


def test_a_stale_report_cannot_erase_an_assignment() -> None:
    """Ours differs from vLLM: dispatches leave the view when a report has counted them, not when one comes."""
    load = view(2)
    for _ in range(4):
        choose(load)
    load.learn(report(0, 1, seen=0))
    load.learn(report(1, 1, waiting=0, running=2, seen=2))

    assert load.ranks[0].unseen == 2
    assert load.ranks[1].unseen == 0
    assert vllm(load).score == 2.0


def test_an_older_report_changes_nothing() -> None:
    load = view(1)

    assert load.learn(report(0, 5, running=3))
    assert not load.learn(report(0, 4, running=9))
    assert load.ranks[0].running == 3


def test_a_new_incarnation_starts_from_nothing() -> None:
    load = view(1)
    choose(load)
    load.remove(0)
    load.release(0)
    load.add(0)

    assert load.ranks[0].in_flight == load.ranks[0].unseen == 0
