"""A whole topology in one thread, over a seeded network, in virtual time: ordinary actors, unchanged."""

import heapq
import random
from collections.abc import Callable
from typing import Any

from attrs import define, field

from dpactors.actor.actor import Actor, handle
from dpactors.actor.address import Address
from dpactors.actor.effects import (
    CancelJob,
    CancelTimer,
    Effect,
    Event,
    FeedJob,
    JobDone,
    JobFailed,
    JobSaid,
    PeerJoined,
    PeerLost,
    Received,
    RunJob,
    Send,
    SetTimer,
    Started,
    TimerFired,
)
from dpactors.serving.jobs import Listening, ServeHttp, StreamWrite
from dpactors.simulation.collective import Latency, SimulatedEngines
from dpactors.simulation.weather import Weather
from dpactors.topology.plan import Plan, ProcessPlan, Route

Observer = Callable[[Address, Event, list[Effect]], None]


class Deadlock(AssertionError):
    """Nothing is runnable and no timer is set."""


@define
class _Life:
    """One incarnation of one actor."""

    actor: Actor
    incarnation: int
    timers: dict[str, int] = field(factory=dict[str, int])
    """Timer to the number of its newest setting; an older one that fires is forgotten."""
    jobs: set[str] = field(factory=set[str])


class World:
    """Runs the actors of a plan; every run is a pure function of (plan, seed, weather, what is injected)."""

    def __init__(
        self, plan: Plan, seed: int = 0, weather: Weather | None = None, latency: Latency | None = None
    ) -> None:
        self.plan = plan
        self.weather = weather or Weather()
        self.now_s = 1.0
        self.written: dict[int, list[StreamWrite]] = {}
        """HTTP stream to all that was written to it."""
        self.observers: list[Observer] = []
        self.messages = 0
        self._random = random.Random(seed)  # noqa: S311 - a seeded simulation, no secret
        self._queue: list[tuple[float, int, Address, int, Event]] = []
        self._order = 0
        self._ends_s: dict[tuple[Address, Address], float] = {}
        self._lives: dict[Address, _Life] = {}
        self._incarnations: dict[Address, int] = {}
        self._exits: dict[tuple[Address, str], list[Route]] = {}
        self._process_of: dict[Address, ProcessPlan] = {}
        self.engines = SimulatedEngines(self._later, latency)
        for route in (*plan.local_routes, *(r for link in plan.links for r in link.routes)):
            self._exits.setdefault((route.source, route.outlet), []).append(route)
        for process in plan.processes:
            for one in process.actors:
                self._process_of[one.setup.address] = process
        for process in plan.processes:
            self._begin(process)

    # ------------------------------------------------------------- what a test does

    def actor(self, address: Address) -> Any:
        """The living actor at an address."""
        return self._lives[address].actor

    def say(self, address: Address, key: str, item: Any) -> None:
        """Let a job of an actor say something now, such as an HTTP request coming in."""
        self._at(self.now_s, address, JobSaid(key, item))

    def kill(self, address: Address) -> None:
        """The process of `address` dies; whoever is wired to it is told a little later."""
        for one in self._process_of[address].actors:
            gone = one.setup.address
            self.engines.lose(gone)
            if self._lives.pop(gone, None) is None:
                continue
            for other in sorted(self._wired_to(gone)):
                self._at(self.now_s + 0.002, other, PeerLost(gone, "killed"))

    def restart(self, address: Address) -> None:
        """The process of `address` starts again as a new incarnation."""
        self._begin(self._process_of[address])

    def run(self, until_s: float, stop: Callable[[], bool] | None = None) -> None:
        """Deliver events until virtual time `until_s`, or until `stop` says so.

        Raises Deadlock where nothing is left that could ever happen.
        """
        while True:
            if stop is not None and stop():
                return
            if not self._queue:
                raise Deadlock("nothing runnable and no timer")
            if self._queue[0][0] > until_s:
                break
            self.now_s, _, target, incarnation, event = heapq.heappop(self._queue)
            self._deliver(target, incarnation, event)
        self.now_s = until_s

    # ------------------------------------------------------------- the machinery

    def _begin(self, process: ProcessPlan) -> None:
        for one in process.actors:
            address = one.setup.address
            assert address not in self._lives, f"{address} lives"
            incarnation = self._incarnations.get(address, 0) + 1
            self._incarnations[address] = incarnation
            self._lives[address] = _Life(one.actor(one.setup), incarnation)
            self._at(self.now_s, address, Started())
        for one in process.actors:
            for other in sorted(self._wired_to(one.setup.address)):
                if other in self._lives:
                    mine, theirs = self._incarnations[one.setup.address], self._incarnations[other]
                    self._at(self.now_s + 0.001, one.setup.address, PeerJoined(other, theirs))
                    self._at(self.now_s + 0.001, other, PeerJoined(one.setup.address, mine))

    def _deliver(self, target: Address, incarnation: int, event: Event) -> None:
        life = self._lives.get(target)
        if life is None or life.incarnation != incarnation:
            return
        match event:
            case TimerFired(timer):
                # The order number of a setting travels as `timer#n`, so that a moved timer fires once.
                name, _, number = timer.rpartition("#")
                if life.timers.get(name) != int(number):
                    return
                del life.timers[name]
                event = TimerFired(name)
            case JobDone(key, _) | JobFailed(key, _, _):
                life.jobs.discard(key)
            case Received():
                self.messages += 1
            case _:
                pass
        effects = handle(life.actor, event, self.now_s)
        life.actor.check()
        for effect in effects:
            self._perform(life, effect)
        for observer in self.observers:
            observer(target, event, effects)

    def _perform(self, life: _Life, effect: Effect) -> None:
        address = life.actor.address
        match effect:
            case Send(outlet, message, to):
                for route in self._exits.get((address, outlet), []):
                    if to is None or route.target == to:
                        self._carry(route, message)
            case SetTimer(timer, after_s):
                life.timers[timer] = self._order + 1
                self._at(self.now_s + after_s, address, TimerFired(f"{timer}#{self._order + 1}"))
            case CancelTimer(timer):
                life.timers.pop(timer, None)
            case RunJob(key, job):
                assert key not in life.jobs, f"{address} runs {key} already"
                life.jobs.add(key)
                if isinstance(job, ServeHttp):
                    self._at(self.now_s, address, JobSaid(key, Listening((f"sim://{address}",))))
                else:
                    self.engines.run(address, key, job)
            case FeedJob(_, item):
                if isinstance(item, StreamWrite):
                    self.written.setdefault(item.stream, []).append(item)
            case CancelJob(key):
                self.engines.cancel(address, key)
            case _:
                pass

    def _carry(self, route: Route, message: Any) -> None:
        local = self._process_of[route.source] is self._process_of[route.target]
        life = self._lives.get(route.target)
        if life is None:
            return
        if not local and self._lost(message):
            return
        delay_s = 0.0 if local else self._random.uniform(*self.weather.delay_s)
        pair = (route.source, route.target)
        arrives_s = max(self.now_s + delay_s, self._ends_s.get(pair, 0.0))
        self._ends_s[pair] = arrives_s
        self._at(arrives_s, route.target, Received(route.inlet, route.source, message))

    def _lost(self, message: Any) -> bool:
        weather = self.weather
        if not weather.lose or (weather.lose_kinds and type(message).__name__ not in weather.lose_kinds):
            return False
        return self._random.random() < weather.lose

    def _wired_to(self, address: Address) -> set[Address]:
        found: set[Address] = set()
        for routes in self._exits.values():
            for route in routes:
                if route.source == address:
                    found.add(route.target)
                elif route.target == address:
                    found.add(route.source)
        return found

    def _later(self, after_s: float, address: Address, event: Event) -> None:
        self._at(self.now_s + after_s, address, event)

    def _at(self, when_s: float, target: Address, event: Event) -> None:
        self._order += 1
        incarnation = self._incarnations.get(target, 1)
        heapq.heappush(self._queue, (when_s, self._order, target, incarnation, event))
