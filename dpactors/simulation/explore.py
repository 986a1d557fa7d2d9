"""Breadth-first exhaustion of a small model built from the very protocol code."""

from collections import deque
from collections.abc import Callable, Hashable, Iterable
from typing import Generic, TypeVar

from attrs import frozen

S = TypeVar("S", bound=Hashable)

Moves = Callable[[S], Iterable[tuple[str, S]]]
"""All moves that are possible in a state, each with a short name for the story."""


@frozen
class Explored(Generic[S]):
    """What an exploration found."""

    states: int
    complete: bool
    """False where the limit cut it; then nothing is known of stuck states."""
    stuck: int
    """Reachable states from which no goal can be reached any more."""
    story: tuple[str, ...]
    """The shortest way to the first of them."""


def explore(start: S, moves: Moves[S], goal: Callable[[S], bool], states_max: int) -> Explored[S]:
    """Visit every reachable state and find those from which no state with `goal` can be reached.

    Repeating timers make a plain search for states without moves blind: a stuck protocol goes on repeating itself.
    """
    number: dict[S, int] = {start: 0}
    came: list[tuple[int, str]] = [(-1, "")]
    before: list[list[int]] = [[]]
    goals: list[int] = []
    todo = deque([start])
    while todo:
        state = todo.popleft()
        here = number[state]
        if goal(state):
            goals.append(here)
        for name, after in moves(state):
            there = number.get(after)
            if there is None:
                if len(number) >= states_max:
                    return Explored(len(number), complete=False, stuck=0, story=())
                there = number[after] = len(came)
                came.append((here, name))
                before.append([])
                todo.append(after)
            before[there].append(here)
    alive = _can_reach(goals, before)
    dead = [n for n in range(len(came)) if not alive[n]]
    story = _story(dead[0], came) if dead else ()
    return Explored(len(number), complete=True, stuck=len(dead), story=story)


def _can_reach(goals: list[int], before: list[list[int]]) -> list[bool]:
    alive = [False] * len(before)
    todo = list(goals)
    for one in goals:
        alive[one] = True
    while todo:
        for earlier in before[todo.pop()]:
            if not alive[earlier]:
                alive[earlier] = True
                todo.append(earlier)
    return alive


def _story(state: int, came: list[tuple[int, str]]) -> tuple[str, ...]:
    names: list[str] = []
    while came[state][0] >= 0:
        state, name = came[state]
        names.append(name)
    return tuple(reversed(names))
