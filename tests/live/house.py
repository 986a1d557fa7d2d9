"""A whole deployment in this process: real hosts, links, torch and gloo; only the HTTP edge is the test itself."""

import asyncio
from array import array
from collections.abc import Callable
from typing import Any, Self

from dpactors.actor.actor import Actor
from dpactors.actor.address import Address
from dpactors.actor.effects import Phase
from dpactors.actor.performer import Say
from dpactors.engine.performer import EnginePerformer
from dpactors.net import notices
from dpactors.net.memory import LocalLinks, join
from dpactors.runtime.host import ActorHost, HostHooks
from dpactors.serving.jobs import (
    AgreeIdle,
    Availability,
    JoinExchange,
    Listening,
    LoadModel,
    RunStep,
    ServeHttp,
    StreamWrite,
    Submitted,
)
from dpactors.serving.messages import Generate, Sampling
from dpactors.topology.plan import Plan

ENGINE_JOBS = (LoadModel, JoinExchange, RunStep, AgreeIdle)
LIMIT_S = 60.0


class FrontDoor:
    """Stands where the HTTP edge stands: submits requests, collects what comes back."""

    def __init__(self) -> None:
        self.say: Say | None = None
        self.written: dict[int, list[StreamWrite]] = {}
        self.ended: dict[int, asyncio.Event] = {}

    async def perform(self, job: ServeHttp, say: Say) -> None:
        self.say = say
        say(Listening(("test://",)))
        await asyncio.Event().wait()

    def feed(self, item: StreamWrite | Availability) -> None:
        if isinstance(item, StreamWrite):
            self.written[item.stream].append(item)
            if item.finish is not None:
                self.ended[item.stream].set()

    def ask(self, prompt: array, max_tokens: int, rank: int | None = None) -> int:
        stream = len(self.written) + 1
        self.written[stream], self.ended[stream] = [], asyncio.Event()
        sampling = Sampling(0.0, 1.0, 0, 1, array("i"), ignore_eos=True, min_tokens=0)
        assert self.say is not None
        self.say(Submitted(stream, Generate(f"r{stream}", prompt, max_tokens, sampling, rank)))
        return stream

    async def answer(self, stream: int) -> list[int]:
        await asyncio.wait_for(self.ended[stream].wait(), LIMIT_S)
        last = self.written[stream][-1]
        assert last.finish == "length", last
        return [t for w in self.written[stream] for t in w.tokens]


class House:
    """Hosts of every process of a plan, joined by links in memory."""

    def __init__(self, plan: Plan, observer: Callable[..., None] | None = None) -> None:
        self.plan = plan
        self.doors: dict[str, FrontDoor] = {}
        self.performers: dict[Address, EnginePerformer] = {}
        self.failed: list[Exception] = []
        self._ready: dict[Address, asyncio.Event] = {}
        self._links: dict[str, LocalLinks] = {}
        self._hosts: dict[str, ActorHost] = {}
        for number, process in enumerate(plan.processes, 1):
            name = process.name
            links = LocalLinks(name, number, plan.digest, lambda notice, name=name: self._notice(name, notice))
            performers: dict[type, Any] = {}
            for one in process.actors:
                address = one.setup.address
                if address.role == "engine":
                    self.performers[address] = EnginePerformer()
                    performers.update(dict.fromkeys(ENGINE_JOBS, self.performers[address]))
                if address.role in ("engine", "ingress"):
                    self._ready[address] = asyncio.Event()
                if address.role == "ingress":
                    performers[ServeHttp] = self.doors[name] = FrontDoor()
            hooks = HostHooks(self._phase, lambda stop: None, self.failed.append)
            self._links[name] = links
            self._hosts[name] = ActorHost(plan, process, links, performers, hooks, observer=observer)

    async def __aenter__(self) -> Self:
        for link in self.plan.links:
            join(self._links[link.binder], self._links[link.connector])
        for host in self._hosts.values():
            host.start()
        await asyncio.wait_for(asyncio.gather(*(e.wait() for e in self._ready.values())), LIMIT_S)
        return self

    async def __aexit__(self, *_: object) -> None:
        for host in self._hosts.values():
            await host.close()
        for links in self._links.values():
            await links.close(0.0)
        assert self.failed == []

    def actor(self, address: Address) -> Actor:
        return next(host.actors[address] for host in self._hosts.values() if address in host.actors)

    async def until(self, true: Callable[[], bool]) -> None:
        """Wait for a state, looking after each turn of the loop; a deadline makes it fail, nothing makes it guess."""

        async def look() -> None:
            while not true():  # noqa: ASYNC110 - the state belongs to actors, which know no event to wait for
                await asyncio.sleep(0.005)

        await asyncio.wait_for(look(), LIMIT_S)

    def _phase(self, address: Address, phase: Phase) -> None:
        if phase.state == "ready" and address in self._ready:
            self._ready[address].set()

    def _notice(self, process: str, notice: notices.LinkNotice) -> None:
        host = self._hosts[process]
        match notice:
            case notices.Delivered(peer, route, trace, message):
                host.delivered(peer, route, trace, message)
            case notices.LinkUp(peer, incarnation):
                host.peer_up(peer, incarnation)
            case notices.LinkDown(peer, _, reason):
                host.peer_down(peer, reason)
            case _:
                raise AssertionError(notice)
