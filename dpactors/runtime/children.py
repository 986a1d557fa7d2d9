"""What a supervisor knows of one child process; plain state, no decisions."""

import signal
from typing import Literal, TypeAlias

from attrs import define, field, frozen

from dpactors.actor.effects import Phase
from dpactors.actor.supervision import BudgetSettings, RestartBudget
from dpactors.runtime.control import Endpoint, Entry, ProcessState

Life: TypeAlias = Literal["waiting", "starting", "up", "stopping", "backoff", "gone"]
"""waiting: its stage is not open. starting: spawned. up: announced. backoff: ended, to be started again."""

BEGINNING = Phase("starting", "starting its process")


@frozen
class ChildSpec:
    """One process to keep alive."""

    name: str
    role: str
    host: str
    actors: tuple[str, ...]
    start_limit_s: float
    peers: tuple[str, ...]
    """Processes it shares a link with."""


@define
class Child:
    """One process through all its incarnations."""

    spec: ChildSpec
    budget: RestartBudget
    incarnation: int = 0
    life: Life = "waiting"
    announced: bool = False
    """Whether this incarnation has bound its endpoints."""
    introduced: bool = False
    """Whether any incarnation ever did: opens the next stage."""
    was_ready: bool = False
    """Whether this incarnation was ready once: ends its start limit."""
    phases: dict[str, Phase] = field(factory=dict[str, Phase])
    endpoints: tuple[Endpoint, ...] = ()
    restarts: int = 0
    last_words: str = ""
    facts: str = ""
    heard_s: float = 0.0
    """When this incarnation last gave a sign of life."""
    since_s: float = 0.0
    """When this incarnation was spawned, or became ready, or ended."""

    @property
    def alive(self) -> bool:
        """Whether an operating system process exists as far as is known."""
        return self.life in {"starting", "up", "stopping"}

    @property
    def ready(self) -> bool:
        """Whether all its actors are."""
        return self.life == "up" and all(phase.state == "ready" for phase in self.phases.values())

    def entry(self, reader: str | None = None) -> Entry:
        """Its line in a directory; with `reader`, only the endpoints bound for that process."""
        endpoints = self.endpoints
        if reader is not None:
            endpoints = tuple(one for one in endpoints if one.peer == reader)
        state: ProcessState = "down"
        if self.alive:
            state = "up" if self.announced else "starting"
        return Entry(self.spec.name, self.incarnation, self.spec.host, state, endpoints)

    def begin(self, incarnation: int, now_s: float) -> None:
        """A new incarnation is being spawned."""
        self.incarnation, self.life, self.was_ready = incarnation, "starting", False
        self.announced = False
        self.phases = dict.fromkeys(self.spec.actors, BEGINNING)
        self.endpoints, self.last_words, self.facts = (), "", ""
        self.heard_s = self.since_s = now_s

    def hang(self) -> str:
        """Which phase it is in and what it waits for, in words."""
        late = [(actor, phase) for actor, phase in self.phases.items() if phase.state != "ready"]
        return "; ".join(f"{actor} was {described(phase)}" for actor, phase in late) or "all its actors were ready"


def make_child(spec: ChildSpec, budget: BudgetSettings) -> Child:
    """A child that was not started yet."""
    return Child(spec, RestartBudget(budget))


def described(phase: Phase) -> str:
    """A phase in words: ``loading weights (40 %), waiting for the other ranks``."""
    text = phase.doing or phase.state
    if phase.progress is not None:
        text += f" ({phase.progress:.0%})".replace("%", " %")
    if phase.waits_for and phase.waits_for not in text:
        text += f", waiting for {phase.waits_for}"
    return text


def ending(code: int) -> str:
    """How a process ended, in words."""
    if code >= 0:
        return f"exit code {code}"
    try:
        return f"signal {signal.Signals(-code).name}"
    except ValueError:
        return f"signal {-code}"
