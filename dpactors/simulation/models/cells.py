"""Mutable machines as cells of an explored state: each distinct condition of a machine is kept once, under a number.

A machine answers a stimulus the same way whenever it is in the same condition. So each pair is run once, on a copy,
and the next condition and the answer are kept; states of a model are then tuples of numbers.
"""

import copy
from array import array
from collections import deque
from collections.abc import Callable
from enum import Enum
from typing import Any

import attrs


class Cells:
    """Conditions of machines by number, and what each stimulus did to each."""

    def __init__(self, ignored: frozenset[str] = frozenset()) -> None:
        """`ignored` names attributes that change nothing but what is shown."""
        self._ignored = ignored
        self._numbers: dict[Any, int] = {}
        self._machines: list[Any] = []
        self._done: dict[tuple[int, Any], tuple[int, Any]] = {}

    def number(self, machine: Any) -> int:
        """The number of a machine's condition; the first machine in it is kept and must not be touched again."""
        number = self._numbers.setdefault(self.condition(machine), len(self._machines))
        if number == len(self._machines):
            self._machines.append(machine)
        return number

    def machine(self, number: int) -> Any:
        """A machine in that condition, to look at."""
        return self._machines[number]

    def do(self, number: int, stimulus: Any, act: Callable[[Any], Any]) -> tuple[int, Any]:
        """The condition after a stimulus and what `act` answers; `stimulus` names it and is hashable."""
        done = self._done.get((number, stimulus))
        if done is None:
            machine = copy.deepcopy(self._machines[number])
            answer = act(machine)
            done = self._done[number, stimulus] = self.number(machine), answer
        return done

    def condition(self, thing: Any) -> Any:
        """All that a thing holds, as something hashable."""
        match thing:
            case None | bool() | int() | float() | str() | bytes() | Enum() | type():
                return thing
            case array():
                return thing.tobytes()
            case list() | tuple() | deque():
                return tuple(self.condition(one) for one in self._any(thing))
            case set() | frozenset():
                return frozenset(self.condition(one) for one in self._any(thing))
            case dict():
                return tuple((self.condition(key), self.condition(value)) for key, value in self._any(thing).items())
            case _ if callable(thing):
                return thing
            case _:
                values = (getattr(thing, name) for name in _names(thing) if name not in self._ignored)
                return thing.__class__, tuple(map(self.condition, values))

    def _any(self, thing: Any) -> Any:
        return thing  # what is inside has no type


def _names(thing: object) -> list[str]:
    kind = type(thing)
    return [one.name for one in attrs.fields(kind)] if attrs.has(kind) else sorted(vars(thing))
