"""Ours, below the actors: two ends of a link that call back."""

import asyncio
import time
from collections import deque
from collections.abc import Callable
from pathlib import Path

import uvloop
from messaging.common import (
    ASKS,
    BURST,
    FINAL,
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

from dpactors.net.notices import Delivered, LinkNotice, LinkUp
from dpactors.net.zeromq import ZmqLinks


def server(folder: str) -> None:
    async def serve() -> None:
        done = asyncio.get_running_loop().create_future()
        counter = Counter(lambda one: links.send("client", 0, "", one), lambda: done.set_result(None))

        def hear(notice: LinkNotice) -> None:
            if type(notice) is Delivered:
                counter.take(notice.message)

        links = ZmqLinks("server", 1, "bench", Path(folder), hear)
        links.connect("client", f"ipc://{folder}/client+server.1", 1)
        await done
        await links.close()

    uvloop.run(serve())


class Client:
    """Asks over a link and waits for the answers in order."""

    def __init__(self, folder: str) -> None:
        self.loop = asyncio.get_running_loop()
        self.up: asyncio.Future[None] = self.loop.create_future()
        self.began_s = 0.0
        self.waiting: deque[Callable[[Request], None]] = deque()
        self.links = ZmqLinks("client", 1, "bench", Path(folder), self.hear)
        self.links.bind("server", "ipc", "")

    def hear(self, notice: LinkNotice) -> None:
        if type(notice) is Delivered:
            self.waiting.popleft()(notice.message)
        elif type(notice) is LinkUp:
            self.up.set_result(None)

    def tell(self, one: Request) -> None:
        self.links.send("server", 0, "", one)

    async def asks(self) -> list[float]:
        """Ask one after the other, each from the callback of the last, as an actor does."""
        took_s: list[float] = []
        done = self.loop.create_future()

        def answered(_: Request) -> None:
            took_s.append(time.perf_counter() - self.began_s)
            if len(took_s) == ASKS:
                done.set_result(None)
            else:
                again()

        def again() -> None:
            self.waiting.append(answered)
            self.began_s = time.perf_counter()
            self.tell(SMALL)

        again()
        await done
        return took_s

    async def pipelined(self) -> float:
        """Keep OUTSTANDING asks on their way; the rate."""
        done = self.loop.create_future()
        left = [PIPELINED, PIPELINED]

        def ask() -> None:
            left[0] -= 1
            self.waiting.append(answered)
            self.tell(SMALL)

        def answered(_: Request) -> None:
            left[1] -= 1
            if left[0]:
                ask()
            if not left[1]:
                done.set_result(None)

        began_s = time.perf_counter()
        for _ in range(OUTSTANDING):
            ask()
        await done
        return PIPELINED / (time.perf_counter() - began_s)

    async def stream(self) -> Figures:
        """Send without waiting for anything but credit."""
        began_s, cpu_s = time.perf_counter(), time.process_time()
        machine = self.links.machine("server")
        for n in range(STREAM):
            self.tell(PART)
            if n % BURST == 0:
                await asyncio.sleep(0)
                # A sender that streams without end waits for its peer; an actor's answers are paced by what it reads.
                while machine.backlog > machine.limits.window_messages:
                    await asyncio.sleep(0.001)  # without spinning, for both ends share the cores
        answer = self.loop.create_future()
        self.waiting.append(answer.set_result)
        self.tell(FINAL)
        sent_cpu_s = time.process_time() - cpu_s
        return streamed(began_s, sent_cpu_s, await answer)


def client(folder: str) -> Figures:
    async def run() -> Figures:
        one = Client(folder)
        await one.up
        result: Figures = {"ask_us": p50_us(await one.asks())}
        result["pipelined_per_s"] = await one.pipelined()
        result |= await one.stream()
        one.tell(STOP)
        await one.links.close()
        return result

    return uvloop.run(run())
