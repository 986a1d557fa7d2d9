"""Breadth-first exhaustion of a small model built from the very protocol code."""

from array import array
from collections.abc import Callable, Hashable, Iterable, Iterator
from typing import Generic, TypeVar

import numpy as np
from attrs import frozen

S = TypeVar("S", bound=Hashable)

TOLD_EVERY = 50_000
"""States between two words of progress."""


def _itself(state: S) -> S:
    return state


def _nothing_wrong(_: object) -> str:
    return ""


@frozen
class Model(Generic[S]):
    """A small system and what must hold in it."""

    about: str
    """What is in it, in one line."""
    start: S
    moves: Callable[[S], Iterable[tuple[str, S]]]
    """All moves that are possible in a state, each with a short name for the story."""
    goal: Callable[[S], bool]
    """Whether a state is one that must stay reachable for ever, such as rest."""
    describe: Callable[[S], list[str]]
    """Lines that show a state to a reader."""
    stuck: Callable[[S], str]
    """What it means that no goal can be reached from a state."""
    wrong: Callable[[S], str] = _nothing_wrong
    """What must never be and is so in a state; empty where all is well."""
    same: Callable[[S], S] = _itself
    """The one state that stands for all that differ only in the names of equal parts."""


@frozen
class Explored:
    """What an exploration found."""

    states: int
    moves: int
    frontier: int
    """States reached and not looked into; 0 where every reachable state was visited."""
    stuck: int = 0
    """States from which no goal can be reached any more, whatever happens."""
    violation: str = ""
    """What is wrong at the end of `story`; empty where nothing is."""
    story: tuple[str, ...] = ()
    """The shortest way there."""
    there: tuple[str, ...] = ()
    """How things stand at its end."""

    @property
    def clean(self) -> bool:
        """Every reachable state was visited and nothing is wrong in any."""
        return self.frontier == 0 and not self.violation


def explore(model: Model[S], states_max: int, tell: Callable[[int, int], None] | None = None) -> Explored:
    """Visit every reachable state, or `states_max` of them, and find the first that is wrong or stuck.

    Stuck is a state from which no goal can be reached. A plain search for states without moves would be blind, since
    repeating timers let a stuck protocol go on for ever. Where the search is cut, what leads out of the visited part
    counts as if it reached a goal. `tell` hears now and then of states and frontier.
    """
    first = model.same(model.start)
    number: dict[S, int] = {first: 0}
    states = [first]
    came, sources, targets, goals = array("i", [-1]), array("i"), array("i"), array("i")
    looked = 0
    while looked < len(states) and len(states) <= states_max:
        state = states[looked]
        try:
            wrong = model.wrong(state)
            for _, after in model.moves(state) if not wrong else ():
                stands = model.same(after)
                there = number.setdefault(stands, len(states))
                if there == len(states):
                    states.append(stands)
                    came.append(looked)
                sources.append(looked)
                targets.append(there)
        except Exception as error:  # noqa: BLE001 - whatever the explored code raises is a finding
            wrong = f"the code itself fails: {type(error).__name__}: {error}"
        if wrong:
            told = _told(model, states, came, looked)
            return Explored(len(states), len(sources), len(states) - looked, 0, wrong, *told)
        if model.goal(state):
            goals.append(looked)
        looked += 1
        if tell is not None and looked % TOLD_EVERY == 0:
            tell(len(states), len(states) - looked)
    hopeful = np.zeros(len(states), bool)
    hopeful[np.frombuffer(goals, np.int32)] = True
    hopeful[looked:] = True
    dead = np.flatnonzero(~_leading_to(hopeful, sources, targets))
    frontier = len(states) - looked
    if not len(dead):
        return Explored(len(states), len(sources), frontier)
    at = int(dead[0])
    why = model.stuck(states[at])
    return Explored(len(states), len(sources), frontier, len(dead), why, *_told(model, states, came, at))


def _leading_to(hopeful: "np.ndarray[tuple[int], np.dtype[np.bool_]]", sources: "array[int]", targets: "array[int]"):  # noqa: ANN202 - as given
    """Which states can reach one that is `hopeful`; one pass over all moves a distance."""
    before, after = np.frombuffer(sources, np.int32), np.frombuffer(targets, np.int32)
    known = -1
    while known != (known := int(np.count_nonzero(hopeful))):
        hopeful[before[hopeful[after]]] = True
    return hopeful


def _told(model: Model[S], states: list[S], came: "array[int]", at: int) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """The names of the moves to a state and how things stand there.

    States stand for others that differ in names, so the way is walked once more with the names that it began with.
    """
    way = [at]
    while came[way[-1]] >= 0:
        way.append(came[way[-1]])
    real, story = model.start, list[str]()
    for step in reversed(way[:-1]):
        name, real = next(move for move in _moves(model, real) if model.same(move[1]) == states[step])
        story.append(name)
    return tuple(story), tuple(model.describe(real))


def _moves(model: Model[S], state: S) -> Iterator[tuple[str, S]]:
    yield from model.moves(state)
