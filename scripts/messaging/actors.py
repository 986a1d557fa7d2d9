"""Ours as users have it: two actors of a topology in two hosts, with the flow trace (``traced``) and without."""

import asyncio
import time
from pathlib import Path
from typing import Any, ClassVar

import uvloop
from messaging.common import (
    ASKS,
    BURST,
    FINAL,
    LAST,
    OUTSTANDING,
    PART,
    PIPELINED,
    SMALL,
    STOP,
    STREAM,
    Counter,
    Figures,
    Request,
    p50_us,
    streamed,
)

from dpactors import Actor, Address, Effects, inlet, outlet
from dpactors.actor.effects import TimerFired
from dpactors.net import notices
from dpactors.net.zeromq import ZmqLinks
from dpactors.runtime.flow import FlowRecorder
from dpactors.runtime.host import ActorHost, HostHooks
from dpactors.runtime.trace import TraceFile
from dpactors.topology.document import parse_topology
from dpactors.topology.graph import build
from dpactors.topology.plan import make_plan

TRACE_FLUSH_S = 0.2
FILE = """
name = "bench"
hosts = { here = "127.0.0.1" }
roles.asker = { actor = "asker", place = { here = 1 } }
roles.echo = { actor = "echo", place = { here = 1 } }
wires = [{ from = "asker.asks", to = "echo.asks" }, { from = "echo.answers", to = "asker.answers" }]
"""
_BURST = TimerFired("burst")


class End:
    """Of this process; its one actor says when."""

    future: ClassVar[asyncio.Future[Figures]]


class Echo(Actor):
    """Says back what is asked, counts what streams."""

    asks = inlet(Request)
    answers = outlet(Request)

    def __init__(self, setup: Any) -> None:
        super().__init__(setup)
        self.replies: list[Request] = []
        self.counter = Counter(self.replies.append, lambda: End.future.set_result({}))

    def on_asks(self, message: Request, sender: Address, now_s: float) -> Effects:
        self.counter.take(message)
        if not self.replies:
            return ()
        return [self.answers.to(sender, self.replies.pop())]


class Asker(Actor):
    """Measures: asks one by one, then with OUTSTANDING on their way, then a stream."""

    asks = outlet(Request)
    answers = inlet(Request)

    def __init__(self, setup: Any) -> None:
        super().__init__(setup)
        self.took_s: list[float] = []
        self.began_s = self.cpu_s = 0.0
        self.asked = self.answered = self.sent = 0
        self.result: Figures = {}

    def on_peer_joined(self, peer: Address, incarnation: int, now_s: float) -> Effects:
        self.began_s = time.perf_counter()
        return [self.asks.each(SMALL)]

    def on_answers(self, message: Request, sender: Address, now_s: float) -> Effects:
        if message.wave == LAST:
            self.result |= streamed(self.began_s, self.cpu_s, message)
            End.future.set_result(self.result)
            return [self.asks.to(sender, STOP)]
        if len(self.took_s) < ASKS:
            return self._asked_alone(sender)
        self.answered += 1
        if self.asked < PIPELINED:
            self.asked += 1
            return [self.asks.to(sender, SMALL)]
        if self.answered == PIPELINED:
            self.result["pipelined_per_s"] = PIPELINED / (time.perf_counter() - self.began_s)
            self.began_s, self.cpu_s = time.perf_counter(), time.process_time()
            return self.on_timer("burst", now_s)
        return ()

    def _asked_alone(self, sender: Address) -> Effects:
        self.took_s.append(time.perf_counter() - self.began_s)
        self.began_s = time.perf_counter()
        if len(self.took_s) < ASKS:
            return [self.asks.to(sender, SMALL)]
        self.result["ask_us"] = p50_us(self.took_s)
        self.asked = OUTSTANDING
        return [self.asks.to(sender, SMALL)] * OUTSTANDING

    def on_timer(self, timer: str, now_s: float) -> Effects:
        """One burst of the stream, as an actor's turn would send it."""
        self.sent += BURST
        if self.sent < STREAM:
            return [self.asks.each(PART)] * BURST
        left = STREAM - self.sent + BURST
        self.cpu_s = time.process_time() - self.cpu_s
        return [*[self.asks.each(PART)] * left, self.asks.each(FINAL)]


class Side:
    """One process: its host, its links and, where asked for, its trace."""

    def __init__(self, folder: str, me: str, *, traced: bool) -> None:
        document = parse_topology(FILE, "bench", (), {})
        plan = make_plan(document, build(document, {"asker": Asker, "echo": Echo}))
        process = next(one for one in plan.processes if one.name == me)
        self.links = ZmqLinks(me, 1, plan.digest, Path(folder), self.hear)
        self.flow = FlowRecorder(me) if traced else None
        self.file = TraceFile(Path(folder) / f"{me}.jsonl") if traced else None
        hooks = HostHooks(lambda *_: None, lambda _: None, self.failed)
        self.host = ActorHost(plan, process, self.links, {}, hooks, recorder=self.flow)
        self.host.start()

    def hear(self, notice: notices.LinkNotice) -> None:
        if type(notice) is notices.Delivered:
            self.host.delivered(notice.peer, notice.route, notice.trace, notice.message)
        elif type(notice) is notices.LinkUp:
            self.host.peer_up(notice.peer, notice.incarnation)

    def failed(self, failed: Any) -> None:
        End.future.set_exception(failed)

    async def until_end(self) -> Figures:
        while not End.future.done():
            await asyncio.wait([End.future], timeout=TRACE_FLUSH_S)
            if self.flow is not None and self.file is not None:
                self.file.write(self.flow.take())
        await self.links.close()
        await self.host.close()
        return End.future.result()

    async def stream(self) -> None:
        """Go on with the stream whenever there is credit."""
        asker: Asker = self.host.actors[Address("asker", 0)]  # type: ignore[assignment]
        machine = self.links.machine("echo.0")
        while not 0 < asker.sent < STREAM:
            await asyncio.sleep(0.05)
        while asker.sent < STREAM:
            self.host.tell(asker.address, _BURST)
            await asyncio.sleep(0)
            while machine.backlog > machine.limits.window_messages:
                await asyncio.sleep(0.001)


def server(folder: str, *, traced: bool = False) -> None:
    async def serve() -> None:
        End.future = asyncio.get_running_loop().create_future()
        side = Side(folder, "echo.0", traced=traced)
        side.links.connect("asker.0", f"ipc://{folder}/asker.0+echo.0.1", 1)
        await side.until_end()

    uvloop.run(serve())


def client(folder: str, *, traced: bool = False) -> Figures:
    async def run() -> Figures:
        End.future = asyncio.get_running_loop().create_future()
        side = Side(folder, "asker.0", traced=traced)
        side.links.bind("echo.0", "ipc", "")
        streaming = asyncio.create_task(side.stream())
        result = await side.until_end()
        await streaming
        return result

    return uvloop.run(run())
