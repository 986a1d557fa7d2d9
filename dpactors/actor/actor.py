"""An actor is a Mealy machine: one event in, effects out. It does no I/O and owns no clock."""

from collections.abc import Iterable, Mapping
from types import NoneType, UnionType
from typing import Any, ClassVar, TypeAlias, Union, get_args, get_origin, get_type_hints

from attrs import frozen

from dpactors.actor.address import Address, Setup
from dpactors.actor.effects import (
    ChildExited,
    Effect,
    Event,
    JobDone,
    JobFailed,
    JobSaid,
    PeerJoined,
    PeerLost,
    Received,
    Started,
    TimerFired,
    Undelivered,
)
from dpactors.actor.errors import ContractError
from dpactors.actor.port import Inlet, Outlet, Port
from dpactors.message.message import is_message

Effects: TypeAlias = Iterable[Effect]


@frozen
class NoSettings:
    """The settings of an actor that has none."""


class Actor:
    """Declare ports, write one ``on_<inlet>`` per inlet, return or yield effects.

    The class is refused at import (ContractError) when a handler is missing or its ``message`` annotation
    differs from what the inlet carries. ``now_s`` is the only clock an actor may read.
    """

    Settings: ClassVar[type] = NoSettings
    inlets: ClassVar[dict[str, Inlet]] = {}
    outlets: ClassVar[dict[str, Outlet[Any]]] = {}
    handlers: ClassVar[dict[str, str]] = {}
    """Inlet to ``on_<inlet>``."""

    def __init__(self, setup: Setup) -> None:
        self.setup = setup
        self.address = setup.address

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        ports = {name: p for c in reversed(cls.__mro__) for name, p in vars(c).items() if isinstance(p, Port)}
        cls.inlets = {name: p for name, p in ports.items() if isinstance(p, Inlet)}
        cls.outlets = {name: p for name, p in ports.items() if isinstance(p, Outlet)}
        for name, port in ports.items():
            strangers = [c.__qualname__ for c in port.carries if not is_message(c)]
            if strangers or not port.carries:
                raise ContractError(f"{cls.__name__}.{name} carries {strangers or 'nothing'}: wants @message classes")
        for name, port in cls.inlets.items():
            _check_handler(cls, name, port)
        cls.handlers = {name: f"on_{name}" for name in cls.inlets}

    # What may happen to every actor; override what matters.

    def on_start(self, now_s: float) -> Effects:
        """The first event."""
        return ()

    def on_timer(self, timer: str, now_s: float) -> Effects:
        """A timer of this actor is due."""
        raise AssertionError(f"{self.address}: no handler for timer {timer}")

    def on_job_said(self, key: str, item: Any, now_s: float) -> Effects:
        """A running job tells something."""
        raise AssertionError(f"{self.address}: no handler for what job {key} says")

    def on_job_done(self, key: str, result: Any, now_s: float) -> Effects:
        """A job ended well."""
        raise AssertionError(f"{self.address}: no handler for job {key}")

    def on_job_failed(self, key: str, kind: str, error: str, now_s: float) -> Effects:
        """A job ended badly; by default that is this actor's own failure."""
        raise RuntimeError(f"{self.address}: job {key} failed: {kind}: {error}")

    def on_peer_joined(self, peer: Address, incarnation: int, now_s: float) -> Effects:
        """A wired peer can be reached from now on."""
        return ()

    def on_peer_lost(self, peer: Address, reason: str, now_s: float) -> Effects:
        """A wired peer is gone."""
        return ()

    def on_undelivered(self, lost: Undelivered, now_s: float) -> Effects:
        """A reliable message did not arrive, or may not have."""
        return ()

    def on_child_exited(self, child: str, incarnation: int, code: int, now_s: float) -> Effects:
        """A spawned process ended."""
        raise AssertionError(f"{self.address}: no handler for the exit of {child}")

    def status(self) -> Mapping[str, Any]:
        """Plain facts for ``ps``; keys as in its columns. Must not change the actor."""
        return {}

    def check(self) -> None:
        """Assert this actor's invariants; run after every event in tests and simulation."""


def handle(actor: Actor, event: Event, now_s: float) -> list[Effect]:
    """Give one event to an actor and collect its effects, generators drained at once."""
    if isinstance(event, Received):  # most events by far: less than a match costs
        return list(getattr(actor, actor.handlers[event.inlet])(event.message, event.sender, now_s))
    match event:
        case JobDone(key, result):
            return list(actor.on_job_done(key, result, now_s))
        case TimerFired(timer):
            return list(actor.on_timer(timer, now_s))
        case JobSaid(key, item):
            return list(actor.on_job_said(key, item, now_s))
        case JobFailed(key, kind, error):
            return list(actor.on_job_failed(key, kind, error, now_s))
        case PeerJoined(peer, incarnation):
            return list(actor.on_peer_joined(peer, incarnation, now_s))
        case PeerLost(peer, reason):
            return list(actor.on_peer_lost(peer, reason, now_s))
        case Undelivered():
            return list(actor.on_undelivered(event, now_s))
        case ChildExited(child, incarnation, code):
            return list(actor.on_child_exited(child, incarnation, code, now_s))
        case Started():
            return list(actor.on_start(now_s))


def _check_handler(cls: type[Actor], name: str, port: Inlet) -> None:
    handler = getattr(cls, f"on_{name}", None)
    if handler is None:
        raise ContractError(f"{cls.__name__} has inlet {name} but no on_{name}")
    hint = get_type_hints(handler).get("message", NoneType)
    takes = set(get_args(hint)) if get_origin(hint) in (UnionType, Union) else {hint}
    if takes != set(port.carries):
        wanted = " | ".join(c.__name__ for c in port.carries)
        raise ContractError(f"{cls.__name__}.on_{name}: its message must be annotated {wanted}")
