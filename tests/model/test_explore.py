"""The exploration itself, on systems so small that one can count."""

from collections.abc import Iterator

import pytest

from dpactors.simulation.explore import Model, explore


def counter(limit: int, goal: int, **more) -> Model[int]:
    """Counts up to `limit`, or falls into a pit at -1 out of 3."""

    def moves(state: int) -> Iterator[tuple[str, int]]:
        if 0 <= state < limit:
            yield "count", state + 1
        if state == 3:
            yield "fall", -1
        if state == -1:
            yield "lie there", -1

    return Model("a counter", 0, moves, lambda s: s == goal, lambda s: [f"at {s}"], lambda s: "in a pit", **more)


def test_a_state_without_a_way_to_the_goal_is_stuck_though_it_moves_for_ever() -> None:
    found = explore(counter(5, goal=5), 100)

    assert (found.states, found.moves, found.frontier, found.stuck) == (7, 7, 0, 1)
    assert (found.violation, found.story, found.there) == ("in a pit", ("count", "count", "count", "fall"), ("at -1",))


def test_a_clean_fixpoint() -> None:
    found = explore(counter(2, goal=2), 100)

    assert found.clean
    assert (found.states, found.frontier, found.story) == (3, 0, ())


def test_a_cut_search_tells_its_frontier_and_blames_nobody() -> None:
    found = explore(counter(2, goal=2), 2)

    assert not found.clean
    assert (found.states, found.frontier, found.stuck, found.violation) == (3, 1, 0, "")


def test_what_the_visited_part_shows_is_told_even_where_the_search_is_cut() -> None:
    found = explore(counter(500, goal=500), 20)

    assert found.frontier > 0
    assert (found.stuck, found.violation) == (1, "in a pit")


def test_a_wrong_state_ends_the_search_with_the_shortest_story() -> None:
    found = explore(counter(9, goal=9, wrong=lambda s: "four is death" if s == 4 else ""), 100)

    assert (found.violation, len(found.story), found.there) == ("four is death", 4, ("at 4",))


def test_a_failed_assertion_of_the_code_is_a_violation() -> None:
    def moves(state: int) -> Iterator[tuple[str, int]]:
        assert state < 2, "no more than two"
        yield "count", state + 1

    found = explore(Model("asserts", 0, moves, bool, lambda s: [str(s)], str), 100)

    assert "no more than two" in found.violation
    assert found.story == ("count", "count")


def test_states_that_differ_in_names_are_one_and_the_story_keeps_the_names() -> None:
    def moves(state: tuple[int, int]) -> Iterator[tuple[str, tuple[int, int]]]:
        left, right = state
        if left < 2:
            yield "left", (left + 1, right)
        if right < 2:
            yield "right", (left, right + 1)

    model = Model(
        "two counters",
        (0, 0),
        moves,
        lambda s: s == (2, 2),
        lambda s: [str(s)],
        str,
        wrong=lambda s: "uneven" if abs(s[0] - s[1]) == 2 else "",
        same=lambda s: (min(s), max(s)),
    )
    found = explore(model, 100)

    assert found.violation == "uneven"
    assert found.story in (("left", "left"), ("right", "right"))
    assert found.there in (("(2, 0)",), ("(0, 2)",))


@pytest.mark.parametrize("states_max", [1, 2, 5])
def test_any_limit_is_kept(states_max: int) -> None:
    found = explore(counter(50, goal=50), states_max)

    assert found.states <= states_max + 1
