"""What a client believes of its ranks: reports, and its own requests that they cannot know of."""

from hypothesis import given
from hypothesis import strategies as st

from dpactors.serving.protocol.load import LoadView
from tests.loads import rank_load


def one_rank(clients: int = 1) -> LoadView:
    view = LoadView(0, clients, (0,))
    view.add(0, chunk_tokens=512)
    return view


def test_an_older_report_changes_nothing() -> None:
    view = one_rank()

    assert view.learn(rank_load(0, 5, running=3), 1.0)
    assert not view.learn(rank_load(0, 5, running=4), 2.0)
    assert not view.learn(rank_load(0, 4, running=9), 3.0)
    assert view.ranks[0].requests == 3
    assert view.ranks[0].heard_s == 1.0


def test_a_booking_leaves_when_a_report_has_counted_it_and_not_because_one_came() -> None:
    view = one_rank()
    assert [view.book(0, tokens) for tokens in (100, 20, 3)] == [1, 2, 3]

    view.learn(rank_load(0, 1), 0.0)
    assert (view.ranks[0].waiting, view.ranks[0].tokens) == (3, 123)
    view.learn(rank_load(0, 2, waiting=2, waiting_tokens=120, seen=2), 0.0)
    assert (view.ranks[0].waiting, view.ranks[0].tokens, view.ranks[0].unseen) == (3, 123, 1)
    view.learn(rank_load(0, 3, running=3, kv_tokens=128, seen=3), 0.0)
    assert (view.ranks[0].requests, view.ranks[0].tokens, view.ranks[0].unseen) == (3, 128, 0)


def test_what_is_unseen_counts_for_the_other_clients_too() -> None:
    view = one_rank(clients=4)
    view.book(0, 10)

    assert (view.ranks[0].waiting, view.ranks[0].unseen_todo, view.ranks[0].load) == (4, 40, 4)


def test_own_requests_in_flight_are_a_floor() -> None:
    view = one_rank()
    view.book(0, 10)
    view.learn(rank_load(0, 1, seen=1), 0.0)
    assert (view.ranks[0].requests, view.ranks[0].load) == (0, 1)

    view.release(0)
    assert view.ranks[0].load == 0


def test_a_new_incarnation_starts_from_nothing() -> None:
    view = one_rank()
    view.book(0, 10)
    view.remove(0)
    view.release(0)
    view.add(0)

    assert view.ranks[0].in_flight == view.ranks[0].unseen == view.ranks[0].tokens == 0
    assert view.order == [view.ranks[0]]


def test_a_report_of_an_earlier_life_counts_no_booking_of_this_one() -> None:
    """The coordinator may still hold it when the new life is ready."""
    view = one_rank()
    view.remove(0)
    view.add(0, reports_from=1000)
    view.book(0, 10)

    assert not view.learn(rank_load(0, 999, running=7, seen=50), 0.0)
    assert (view.ranks[0].requests, view.ranks[0].unseen) == (1, 1)
    assert view.learn(rank_load(0, 1001, running=1, seen=1), 0.0)
    assert view.ranks[0].unseen == 0


def test_reported_work_takes_its_rank_s_own_time() -> None:
    """A step with 0.2 s to go, then 1000 tokens in two chunks: each token 1 ms, each chunk a decode step of 50 ms."""
    view = one_rank()
    view.learn(
        rank_load(0, step_left_s=0.2, pending_tokens=1000, prefill_token_s=0.001, decode_step_s=0.05), true_s=10.0
    )

    assert round(view.ranks[0].free_s, 9) == 11.3


@given(st.lists(st.tuples(st.sampled_from(["book", "learn", "release"]), st.integers(1, 300)), max_size=60))
def test_reports_that_come_late_or_count_too_much_never_lose_a_booking(story: list[tuple[str, int]]) -> None:
    view = one_rank()
    booked: list[int] = []
    seen = 0
    for number, (what, amount) in enumerate(story, 1):
        if what == "book":
            view.book(0, amount)
            booked.append(amount)
        elif what == "learn":
            seen = max(seen, min(amount % 8, len(booked)))
            view.learn(rank_load(0, number, seen=amount % 8), 0.0)
        elif view.ranks[0].in_flight:
            view.release(0)
        view.check()

        assert view.ranks[0].tokens == sum(booked[seen:])
