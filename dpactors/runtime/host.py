"""Hosts the actors of one process on asyncio: events in, effects out.

Actors of one process exchange messages by reference, in order, without encoding. Everything that an actor is told
and does passes through `_handle`, so that tracing, the failure story and tests see all of it at one place.
"""

import asyncio
import itertools
import secrets
import time
from collections import deque
from collections.abc import Callable, Mapping
from typing import Any, Protocol

import structlog
from attrs import define, evolve, frozen

from dpactors.actor.actor import Actor, handle
from dpactors.actor.address import Address
from dpactors.actor.effects import (
    CancelJob,
    CancelTimer,
    Effect,
    Event,
    FeedJob,
    JobSaid,
    Note,
    PeerJoined,
    PeerLost,
    Phase,
    Received,
    RunJob,
    Send,
    SetTimer,
    Signal,
    Spawn,
    Started,
    Stop,
    TimerFired,
    Undelivered,
)
from dpactors.actor.errors import ActorFailed
from dpactors.runtime.flow import FlowRecorder, about
from dpactors.runtime.jobs import Jobs, Performers
from dpactors.topology.plan import Plan, ProcessPlan, Route

STORY_EVENTS = 20
"""Events kept per actor for the report of a failure."""
EVENTS_PER_TURN = 256
"""Events handled before other callbacks of the loop get a turn."""

Observer = Callable[[Address, Event, list[Effect]], None]


class Sender(Protocol):
    """What the host needs of the links."""

    def send(self, peer: str, route: int, trace: str, message: Any, latest: bool = False) -> None:
        """Hand a message to the link with `peer`."""
        ...

    def hold(self) -> None:
        """Keep what is sent from now on, so that it leaves together."""
        ...

    def release(self) -> None:
        """Let go what was kept."""
        ...


class Children(Protocol):
    """Who performs Spawn and Signal; only a supervisor has one."""

    def spawn(self, child: str, incarnation: int) -> None: ...

    def signal(self, child: str, name: str) -> None: ...


@frozen
class _Exit:
    """Where one outlet of a local actor leads."""

    target: Address
    inlet: str
    peer: str | None
    """Process of the target, None where it is this one."""
    route: int
    latest: bool


_NO_EXITS: Mapping[Address, _Exit] = {}


@define
class _Resident:
    """One actor and what the host keeps for it."""

    actor: Actor
    exits: dict[str, dict[Address, _Exit]]
    """By outlet and target."""
    story: deque[Event]


@frozen
class HostHooks:
    """What the process wants to hear from its actors."""

    on_phase: Callable[[Address, Phase], None]
    on_stop: Callable[[Stop], None]
    on_failed: Callable[[ActorFailed], None]


class ActorHost:
    """All actors of one process, their mailbox, timers and jobs."""

    def __init__(
        self,
        plan: Plan,
        process: ProcessPlan,
        links: Sender,
        performers: Performers,
        hooks: HostHooks,
        *,
        recorder: FlowRecorder | None = None,
        children: Children | None = None,
        incarnation: int = 1,
        observer: Observer | None = None,
    ) -> None:
        self.process = process
        self.incarnation = incarnation
        self._links = links
        self._hooks = hooks
        self._recorder = recorder
        self._children = children
        self._observer = observer
        self._log = structlog.get_logger().bind(process=process.name)
        self._mail: deque[tuple[Address, Event, str, bool]] = deque()
        self._turn: asyncio.Handle | None = None
        self._busy = False
        """Whether an actor of this process has an event just now."""
        self._traces = itertools.count()
        self._trace_stem = secrets.token_hex(4)
        self._timers: dict[tuple[Address, str], asyncio.TimerHandle] = {}
        self._closed = False
        self._residents = {
            one.setup.address: _Resident(one.actor(one.setup), {}, deque(maxlen=STORY_EVENTS)) for one in process.actors
        }
        self._addresses = {address: address for address in self._residents}
        self._entrances: dict[tuple[str, int], Route] = {}
        self._neighbours: dict[str, list[tuple[Address, Address]]] = {}
        self._wire(plan)
        self._jobs = Jobs(performers, self._post)

    @property
    def actors(self) -> Mapping[Address, Actor]:
        """The actors of this process, for tests and status."""
        return {address: one.actor for address, one in self._residents.items()}

    def start(self) -> None:
        """Give every actor its first event, and word of the peers it has in this process."""
        for address in self._residents:
            self._post(address, Started(), "")
        for resident, peer in self._neighbours.get(self.process.name, ()):
            self._post(resident, PeerJoined(peer, self.incarnation), "")

    async def close(self) -> None:
        """Stop timers and jobs; no actor gets another event."""
        self._closed = True
        for timer in self._timers.values():
            timer.cancel()
        self._timers.clear()
        self._mail.clear()
        if self._turn is not None:
            self._turn.cancel()
        await self._jobs.close()

    def status(self) -> list[dict[str, Any]]:
        """One dict an actor: its address and its own facts."""
        now_s = time.monotonic()
        rows: list[dict[str, Any]] = []
        for address, one in self._residents.items():
            facts = dict(one.actor.status())
            last = facts.pop("last_step_s", None)
            if last is not None:
                facts["step_age_s"] = round(now_s - last, 3)
            rows.append({"address": str(address), **facts})
        return rows

    # ------------------------------------------------------------- what the links tell

    def delivered(self, peer: str, route: int, trace: str, message: Any) -> None:
        """A message came from another process."""
        way = self._entrances.get((peer, route))
        if way is None or way.target not in self._residents:
            self._log.warning("link.unknown_route", peer=peer, route=route)
            return
        event = Received(way.inlet, way.source, message)
        if self._mail or self._busy:
            self._post(way.target, event, trace, seen=True)
        elif not self._closed:
            self._handle(
                way.target, event, trace, seen=True
            )  # nothing is before it: it need not wait for a turn of the loop

    def undelivered(self, peer: str, route: int, trace: str, message: Any, *, may_have_run: bool) -> None:
        """A reliable message of ours was never acknowledged."""
        way = self._entrances.get((peer, route))
        if way is not None and way.source in self._residents:
            self._post(way.source, Undelivered(way.outlet, way.target, message, may_have_run), trace)

    def peer_up(self, peer: str, incarnation: int) -> None:
        """The link to another process stands."""
        for resident, other in self._neighbours.get(peer, ()):
            self._post(resident, PeerJoined(other, incarnation), "")

    def peer_down(self, peer: str, reason: str) -> None:
        """Another process is gone."""
        for resident, other in self._neighbours.get(peer, ()):
            self._post(resident, PeerLost(other, reason), "")

    def tell(self, address: Address, event: Event) -> None:
        """Give one event to an actor from outside the graph (a supervisor's children and commands)."""
        self._post(address, event, "")

    # ------------------------------------------------------------- events in

    def _post(self, address: Address, event: Event, trace: str, *, seen: bool = False) -> None:
        if self._closed:
            return
        self._mail.append((address, event, trace, seen))
        if self._turn is None:
            self._turn = asyncio.get_running_loop().call_soon(self._take_turn)

    def _take_turn(self) -> None:
        self._links.hold()
        try:
            for _ in range(EVENTS_PER_TURN):
                if not self._mail or self._closed:
                    break
                address, event, trace, seen = self._mail.popleft()
                self._handle(address, event, trace, seen=seen)
        finally:  # whatever happened, the next event finds somebody to take it
            self._links.release()
            self._turn = None
            if self._mail and not self._closed:
                self._turn = asyncio.get_running_loop().call_soon(self._take_turn)

    def _handle(self, address: Address, event: Event, trace: str, *, seen: bool) -> None:
        """`seen`: a message of a link, which the recorder has seen in its frame."""
        resident = self._residents[address]
        resident.story.append(event)
        if isinstance(event, JobSaid):
            subjects = about(event.item)
            trace = subjects[0] if len(subjects) == 1 else trace
        trace = trace or f"{self._trace_stem}-{next(self._traces):x}"
        if self._recorder is not None and not seen:
            self._recorder.event(address, event, trace)
        self._busy = True
        try:
            effects = handle(resident.actor, event, time.monotonic())
            if self._observer is not None:
                self._observer(address, event, effects)
            for effect in effects:
                self._perform(resident, effect, trace)
        except Exception as error:  # noqa: BLE001 - the actor's own fault, whatever it is: its process ends with the story
            self._log.exception("actor.failed", actor=str(address), event_type=type(event).__name__)
            story = tuple(repr(one)[:400] for one in resident.story)
            failed = ActorFailed(str(address), f"{type(event).__name__}: {error}", story)
            failed.__cause__ = error
            self._closed = True
            self._hooks.on_failed(failed)
        finally:
            self._busy = False

    # ------------------------------------------------------------- effects out

    def _perform(self, resident: _Resident, effect: Effect, trace: str) -> None:
        address = resident.actor.address
        match effect:
            case Send():
                self._send(resident, effect, trace)
            case SetTimer(timer, after_s):
                self._set_timer(address, timer, after_s)
            case CancelTimer(timer):
                if (handle_ := self._timers.pop((address, timer), None)) is not None:
                    handle_.cancel()
            case RunJob(key, job):
                if self._recorder is not None:
                    self._recorder.job(address, effect, trace)
                self._jobs.run(address, key, job, trace)
            case FeedJob(key, item):
                self._jobs.feed(address, key, item)
            case CancelJob(key):
                self._jobs.cancel(address, key)
            case Note(name, fields, level):
                if self._recorder is not None:
                    self._recorder.note(address, effect, trace)
                getattr(self._log, level)(name, actor=str(address), trace=trace, **fields)
            case Phase():
                self._hooks.on_phase(address, effect)
            case Stop():
                self._hooks.on_stop(effect)
            case Spawn(child, incarnation):
                assert self._children is not None, "only a supervisor spawns"
                self._children.spawn(child, incarnation)
            case Signal(child, name):
                assert self._children is not None, "only a supervisor signals"
                self._children.signal(child, name)

    def _send(self, resident: _Resident, send: Send, trace: str) -> None:
        exits = resident.exits.get(send.outlet, _NO_EXITS)
        if send.to is None:
            ways = exits.values()
        elif (way := exits.get(send.to)) is not None:
            ways = (way,)
        else:
            raise AssertionError(f"{resident.actor.address}.{send.outlet} has no wire to {send.to}")
        for one in ways:
            if one.peer is None:
                if self._recorder is not None:
                    self._recorder.send(resident.actor.address, send, one.target, trace)
                self._post(one.target, Received(one.inlet, resident.actor.address, send.message), trace)
            else:
                self._links.send(one.peer, one.route, trace, send.message, latest=one.latest)

    def _set_timer(self, address: Address, timer: str, after_s: float) -> None:
        key = (address, timer)
        if (old := self._timers.pop(key, None)) is not None:
            old.cancel()

        def fire() -> None:
            self._timers.pop(key, None)
            self._post(address, TimerFired(timer), "")

        self._timers[key] = asyncio.get_running_loop().call_later(after_s, fire)

    # ------------------------------------------------------------- wiring

    def _wire(self, plan: Plan) -> None:
        me = self.process.name
        for route in plan.local_routes:
            self._open(route, None, -1)
        for link in plan.links:
            if me in (link.binder, link.connector):
                peer = link.connector if me == link.binder else link.binder
                for number, route in enumerate(link.routes):
                    self._entrances[peer, number] = self._open(route, peer, number)
                    if self._recorder is not None:
                        self._recorder.learn(peer, number, route)

    def _open(self, route: Route, peer: str | None, number: int) -> Route:
        """Take a route in; the one given back has the one object of each address, for equal ones compare slowly."""
        ends = [self._addresses.setdefault(one, one) for one in (route.source, route.target)]
        route = evolve(route, source=ends[0], target=ends[1])
        source = self._residents.get(route.source)
        if source is not None:
            way = _Exit(route.target, route.inlet, peer, number, route.delivery == "latest")
            source.exits.setdefault(route.outlet, {})[route.target] = way
        for mine, other in ((route.source, route.target), (route.target, route.source)):
            if mine in self._residents:
                pairs = self._neighbours.setdefault(peer or self.process.name, [])
                if (mine, other) not in pairs:
                    pairs.append((mine, other))
        return route
