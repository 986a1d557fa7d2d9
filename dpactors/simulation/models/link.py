"""Two ends of a link, both of the very LinkMachine, over lines that lose and double frames, while an end restarts.

A line hands frames on in order; frames of an earlier life of an end stay in it. All happens at one instant, except
that "time passes" makes every timer due. Whatever an end was told and said is kept with each message.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeAlias

from attrs import evolve, frozen

from dpactors.net import frames
from dpactors.net.incoming import Incoming
from dpactors.net.limits import LinkLimits
from dpactors.net.link import LinkMachine, LinkState
from dpactors.net.notices import Delivered, LinkNotice, Undelivered
from dpactors.net.outgoing import Outgoing
from dpactors.serving.messages import StartWave
from dpactors.simulation.explore import Model
from dpactors.simulation.models.cells import Cells

LIMITS = LinkLimits(window_messages=2, outbox_messages=8, batch_messages=2, ack_messages=1, lease_s=1000.0)
LONG_S = 1.0
"""Longer than any period of those limits but the lease."""
NAMES = ("a", "b")
SHOWN_ONLY = frozenset({"counters", "_counters", "limits", "_limits", "_refused_before"})
KINDS = ("HELLO", "WELCOME", "DATA", "LATEST", "NACK", "REJECT", "REFUSE", "BYE")
Move: TypeAlias = "tuple[str, State]"


@frozen
class Letter:
    """What became of one message; its number is its place."""

    writer: int
    """0 or 1."""
    incarnation: int
    """Of the writer."""
    reader: int = 0
    """Incarnation that it was delivered to; 0 is none."""
    returned: str = ""
    """Empty, or what its writer was told: "did not run", "may have run"."""


@frozen
class Budget:
    """What may still happen."""

    letters: tuple[int, int] = (2, 0)
    """Messages that each end will send."""
    losses: int = 0
    doubles: int = 0
    restarts: tuple[int, int] = (0, 0)
    """Restarts of each end."""
    words: int = 0
    """Times that a supervisor tells an end that an earlier life of the other is over."""


@frozen(cache_hash=True)
class State:
    """Everything."""

    ends: tuple[int, int]
    """Conditions of a and b."""
    lines: tuple[tuple[bytes, ...], tuple[bytes, ...]]
    """Frames on their way to a and to b."""
    letters: tuple[Letter, ...]
    budget: Budget
    fault: str = ""


def link_model(budget: Budget) -> Model[State]:
    """Two ends that look for each other and what may happen to them."""
    given = [f"{name} {getattr(budget, name)}" for name in Budget.__annotations__ if getattr(budget, name)]
    made = _Link()
    about = "two ends of a link, " + ", ".join(given)
    stuck = "STUCK: the link never settles, or a message is neither delivered nor handed back"
    return Model(about, made.start(budget), made.moves, made.settled, made.describe, lambda _: stuck, _fault)


def _fault(state: State) -> str:
    return state.fault


class _Link:
    def __init__(self) -> None:
        self.cells = Cells(SHOWN_ONLY)

    def start(self, budget: Budget) -> State:
        ends = (self._born(0, 1), self._born(1, 1))
        return self._after(self._after(State(ends, ((), ()), (), budget), 0, "join", _join), 1, "join", _join)

    def end(self, state: State, which: int) -> LinkMachine:
        return self.cells.machine(state.ends[which])

    def settled(self, state: State) -> bool:
        """Both ends serve each other, nothing is under way, and every message of a living writer is accounted for."""
        a, b = self.end(state, 0), self.end(state, 1)
        met = a.state is b.state is LinkState.UP and a.settled and b.settled
        known = (a.peer_incarnation, b.peer_incarnation) == (b.incarnation, a.incarnation)
        living = [one for one in state.letters if one.incarnation == self.end(state, one.writer).incarnation]
        accounted = all(one.reader or one.returned for one in living)
        return met and known and accounted and not any(state.lines) and not any(state.budget.letters)

    def describe(self, state: State) -> list[str]:
        """Both ends, the messages, and the frames on their way."""
        lines: list[str] = []
        for which, name in enumerate(NAMES):
            end = self.end(state, which)
            peer = f"knows incarnation {end.peer_incarnation}" if end.peer_incarnation else "knows nobody"
            lines.append(f"{name}, incarnation {end.incarnation}: {end.state.value}, {peer}")
            lines += [f"  on its way to it: {_name(frame)}" for frame in state.lines[which]]
        for number, one in enumerate(state.letters, 1):
            got = f"delivered to incarnation {one.reader}" if one.reader else "not delivered"
            told = f", its writer was told that it {one.returned}" if one.returned else ""
            lines.append(f"message {number} of {NAMES[one.writer]}, incarnation {one.incarnation}: {got}{told}")
        return lines

    # ------------------------------------------------------------- what may happen

    def moves(self, state: State) -> Iterator[Move]:
        """All moves of a state."""
        for which in (0, 1):
            yield from self._line(state, which)
            yield from self._owner(state, which)
        # Frames are quicker than timers: at most two are still under way when the next timer is due.
        if len(state.lines[0]) + len(state.lines[1]) <= 1:
            yield "time passes", self._after(self._after(state, 0, "time", _time), 1, "time", _time)

    def _line(self, state: State, which: int) -> Iterator[Move]:
        if not state.lines[which]:
            return
        budget, frame = state.budget, state.lines[which][0]
        name = f"{_name(frame)} to {NAMES[which]}"
        popped = evolve(state, lines=_with(state.lines, which, state.lines[which][1:]))
        yield f"{name} arrives", self._after(popped, which, frame, _receive(frame))
        if budget.losses:
            yield f"{name} is lost", evolve(popped, budget=evolve(budget, losses=budget.losses - 1))
        if budget.doubles:
            fewer = evolve(state, budget=evolve(budget, doubles=budget.doubles - 1))
            yield f"{name} arrives, and will again", self._after(fewer, which, frame, _receive(frame))

    def _owner(self, state: State, which: int) -> Iterator[Move]:
        budget, name, end = state.budget, NAMES[which], self.end(state, which)
        other = self.end(state, 1 - which).incarnation
        if budget.letters[which]:
            number = len(state.letters) + 1
            fewer = evolve(budget, letters=_with(budget.letters, which, budget.letters[which] - 1))
            sent = evolve(state, budget=fewer, letters=(*state.letters, Letter(which, end.incarnation)))
            yield f"{name} sends message {number}", self._after(sent, which, ("send", number), _send(number))
        if budget.restarts[which]:
            fewer = evolve(budget, restarts=_with(budget.restarts, which, budget.restarts[which] - 1))
            born = _with(state.ends, which, self._born(which, end.incarnation + 1))
            after = self._after(evolve(state, budget=fewer, ends=born), which, "join", _join)
            yield f"{name} restarts as incarnation {end.incarnation + 1}", after
        if budget.words and other > 1:
            fewer = evolve(state, budget=evolve(budget, words=budget.words - 1))
            word = f"{name} is told that incarnation {other - 1} of {NAMES[1 - which]} is over"
            yield word, self._after(fewer, which, ("over", other), _over(other))

    # ------------------------------------------------------------- what comes of it

    def _born(self, which: int, incarnation: int) -> int:
        return self.cells.number(LinkMachine(NAMES[which], NAMES[1 - which], incarnation, "digest", LIMITS))

    def _after(self, state: State, which: int, stimulus: Any, act: Callable[[LinkMachine], Any]) -> State:
        end, (notices, sent) = self.cells.do(state.ends[which], stimulus, act)
        state = evolve(state, ends=_with(state.ends, which, end))
        if sent:
            state = evolve(state, lines=_with(state.lines, 1 - which, (*state.lines[1 - which], *sent)))
        for one in notices:
            state = self._noted(state, which, one)
        return state

    def _noted(self, state: State, which: int, one: LinkNotice) -> State:
        """What an end says of a message, held against all that was said before."""
        if not isinstance(one, Delivered | Undelivered):
            return state
        number: int = one.message.wave
        letter, end, fault = state.letters[number - 1], self.end(state, which), state.fault
        if isinstance(one, Delivered):
            later = [n for n, each in enumerate(state.letters, 1) if each.reader and each.writer == letter.writer]
            faults = {
                "a message was delivered twice": letter.reader != 0,
                "a message was delivered though its writer was told that it did not run": letter.returned
                == "did not run",
                "a message came from a life of its writer that is over": letter.incarnation != end.peer_incarnation,
                "messages came out of order": max(later, default=0) > number,
            }
            letter = evolve(letter, reader=end.incarnation)
        else:
            faults = {
                "a message was handed back twice": letter.returned != "",
                "a writer was told that a message did not run, and it was delivered": letter.reader != 0
                and not one.may_have_run,
            }
            letter = evolve(letter, returned="may have run" if one.may_have_run else "did not run")
        fault = next((what for what, is_so in faults.items() if is_so), fault)
        return evolve(state, fault=fault, letters=_with(state.letters, number - 1, letter))


def _with(items: tuple[Any, ...], at: int, item: Any) -> Any:
    return (*items[:at], item, *items[at + 1 :])


Answer: TypeAlias = "tuple[list[LinkNotice], list[bytes]]"


def _said(end: LinkMachine, notices: Sequence[LinkNotice]) -> Answer:
    return list(notices), end.frames_to_send(0.0)


def _join(end: LinkMachine) -> Answer:
    return _said(end, end.join(0.0))


def _receive(frame: bytes) -> Callable[[LinkMachine], Answer]:
    return lambda end: _said(end, end.receive(frame, 0.0))


def _send(number: int) -> Callable[[LinkMachine], Answer]:
    return lambda end: _said(end, end.send(0, "", StartWave(number)))


def _over(incarnation: int) -> Callable[[LinkMachine], Answer]:
    return lambda end: _said(end, [*end.lost("killed", incarnation - 1), *end.join(0.0, incarnation)])


def _time(end: LinkMachine) -> Answer:
    """Every time that an end remembers moves into the past, and no further than long ago."""
    for part in (end, *(one for one in vars(end).values() if isinstance(one, Incoming | Outgoing))):
        for name, value in vars(part).items():
            if isinstance(value, float):
                setattr(part, name, max(value - LONG_S, -LONG_S))
    return _said(end, end.tick(0.0))


def _name(data: bytes) -> str:
    frame = frames.read(data)
    if isinstance(frame, frames.Greeting):
        return f"{KINDS[frame.kind]} of incarnation {frame.incarnation}"
    held = f", {len(frame.body)} messages" if frame.kind == frames.DATA else ""
    pair = f"{frame.sender} to {frame.addressed}"
    return f"{KINDS[frame.kind]} of incarnation {pair} (from {frame.first}{held}, has all below {frame.ack})"
