"""What does a link cost over the sockets beneath it.

Asked of one ask at a time, of 64 asks at once, and of a stream one way.
Fixed: one small typed message, encoded and checked at both ends; two processes on one machine; ipc; uvloop.
Varied: ZmqLinks against a blocking pyzmq DEALER pair with one message a frame. Rounds alternate, so that both meet
the same noise; the answer is the ratio of medians. A link would have to be thought over again if an ask cost more
than 1.5 times the bare pair's, or a stream ran at less than twice its rate.

    python scripts/bench_links.py [--rounds N]
"""

import argparse
import asyncio
import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import Any

import uvloop
import zmq

from dpactors.message.codec import decode, encode
from dpactors.message.message import Tokens, message, tokens
from dpactors.net.notices import Delivered, LinkNotice, LinkUp
from dpactors.net.zeromq import ZmqLinks

ASKS, PIPELINED, OUTSTANDING, STREAM = 3000, 20_000, 64, 100_000
ECHO, COUNT, LAST, END = 0, 1, 2, 3


@message("bench.request/1")
class Request:
    """About what a small control message weighs."""

    request_id: str
    rank: int
    tokens: Tokens
    wave: int


SMALL = Request("cmpl-0123456789abcde", 3, tokens(range(8)), ECHO)
PART, FINAL, STOP = (Request(SMALL.request_id, 3, SMALL.tokens, wave) for wave in (COUNT, LAST, END))


class Counter:
    """The far end: says back what is asked, counts what streams, and tells what the stream cost it."""

    def __init__(self, reply: Callable[[Request], None], stop: Callable[[], None]) -> None:
        self.reply, self.stop = reply, stop
        self.count = 0
        self.cpu_s = 0.0

    def take(self, one: Request) -> None:
        if one.wave == ECHO:
            self.reply(one)
        elif one.wave == COUNT:
            if self.count == 0:
                self.cpu_s = time.process_time()
            self.count += 1
        elif one.wave == LAST:
            cpu_us = (time.process_time() - self.cpu_s) / self.count * 1e6
            self.reply(Request(str(cpu_us), self.count, tokens(), LAST))
            self.count = 0
        else:
            self.stop()


# ------------------------------------------------------------- the bare pair


def dealer(endpoint: str, *, bind: bool) -> "zmq.Socket[bytes]":
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context.instance()
    socket = context.socket(zmq.DEALER)
    socket.linger = 0
    socket.sndhwm = socket.rcvhwm = 0
    (socket.bind if bind else socket.connect)(endpoint)
    return socket


def raw_server(folder: str) -> None:
    socket = dealer(f"ipc://{folder}/raw", bind=False)
    going = [True]
    counter = Counter(lambda one: socket.send(encode(one)), going.clear)
    while going:
        counter.take(decode(socket.recv()))


def raw_client(folder: str) -> dict[str, float]:
    socket = dealer(f"ipc://{folder}/raw", bind=True)

    def ask() -> None:
        socket.send(encode(SMALL))
        decode(socket.recv())

    result: dict[str, float] = {"ask_us": p50_us([timed(ask) for _ in range(ASKS)][ASKS // 10 :])}
    began_s = time.perf_counter()
    for _ in range(OUTSTANDING):
        socket.send(encode(SMALL))
    for n in range(PIPELINED):
        decode(socket.recv())
        if n < PIPELINED - OUTSTANDING:
            socket.send(encode(SMALL))
    result["pipelined_per_s"] = PIPELINED / (time.perf_counter() - began_s)
    began_s, cpu_s = time.perf_counter(), time.process_time()
    for _ in range(STREAM):
        socket.send(encode(PART))
    sent_cpu_s = time.process_time() - cpu_s
    socket.send(encode(FINAL))
    answer = decode(socket.recv())
    result |= streamed(began_s, sent_cpu_s, answer)
    socket.send(encode(STOP))
    socket.close(linger=1000)
    return result


# ------------------------------------------------------------- a link


def link_server(folder: str) -> None:
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


class LinkClient:
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

    async def asks(self, count: int) -> list[float]:
        """Ask one after the other, each from the callback of the last, as an actor does."""
        took_s: list[float] = []
        done = self.loop.create_future()

        def answered(_: Request) -> None:
            took_s.append(time.perf_counter() - self.began_s)
            if len(took_s) == count:
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

    async def stream(self) -> dict[str, float]:
        began_s, cpu_s = time.perf_counter(), time.process_time()
        machine = self.links.machine("server")
        for n in range(STREAM):
            self.tell(PART)
            if n % 64 == 0:
                await asyncio.sleep(0)
                # A sender that streams without end waits for its peer; an actor's answers are paced by what it reads.
                while machine.backlog > machine.limits.window_messages:  # noqa: ASYNC110 - a link has no such event
                    await asyncio.sleep(0.001)  # without spinning, for both ends share the cores
        answer = self.loop.create_future()
        self.waiting.append(answer.set_result)
        self.tell(FINAL)
        sent_cpu_s = time.process_time() - cpu_s
        return streamed(began_s, sent_cpu_s, await answer)


def link_client(folder: str) -> dict[str, float]:
    async def run() -> dict[str, float]:
        client = LinkClient(folder)
        await client.up
        result = {"ask_us": p50_us((await client.asks(ASKS))[ASKS // 10 :])}
        result["pipelined_per_s"] = await client.pipelined()
        result |= await client.stream()
        client.tell(STOP)
        await client.links.close()
        return result

    return uvloop.run(run())


# ------------------------------------------------------------- rounds


def timed(ask: Callable[[], None]) -> float:
    began_s = time.perf_counter()
    ask()
    return time.perf_counter() - began_s


def p50_us(took_s: list[float]) -> float:
    return statistics.median(took_s) * 1e6


def streamed(began_s: float, sent_cpu_s: float, answer: Request) -> dict[str, float]:
    assert answer.rank == STREAM, "messages were lost"
    return {
        "stream_per_s": STREAM / (time.perf_counter() - began_s),
        "send_cpu_us": sent_cpu_s / STREAM * 1e6,
        "receive_cpu_us": float(answer.request_id),
    }


CLIENTS = {"raw": raw_client, "link": link_client}
SERVERS = {"raw": raw_server, "link": link_server}


def one_round(kind: str) -> dict[str, float]:
    """Both ends in processes of their own, so that no round leaves anything to the next."""
    with tempfile.TemporaryDirectory(prefix="dpb-") as folder:
        command = [sys.executable, __file__, "--part"]
        with subprocess.Popen([*command, f"server:{kind}", "--folder", folder]) as server:
            client = subprocess.run(
                [*command, f"client:{kind}", "--folder", folder],
                capture_output=True,
                text=True,
                check=True,
                timeout=120,
            )
            server.wait(30)
    return json.loads(client.stdout)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--part", help=argparse.SUPPRESS)
    parser.add_argument("--folder", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.part:
        end, kind = given.part.split(":")
        if end == "server":
            SERVERS[kind](given.folder)
        else:
            print(json.dumps(CLIENTS[kind](given.folder)))
        return
    rounds: dict[str, list[dict[str, float]]] = {"raw": [], "link": []}
    for _ in range(given.rounds):
        for kind, seen in rounds.items():
            seen.append(one_round(kind))
    medians = {
        kind: {key: round(statistics.median(one[key] for one in seen), 2) for key in seen[0]}
        for kind, seen in rounds.items()
    }
    ratios: dict[str, Any] = {key: round(medians["link"][key] / medians["raw"][key], 2) for key in medians["raw"]}
    print(f"{'':18}{'bare pair':>12}{'link':>12}{'ratio':>8}")
    for key, ratio in ratios.items():
        print(f"{key:18}{medians['raw'][key]:12.1f}{medians['link'][key]:12.1f}{ratio:8.2f}")
    machine = f"{os.cpu_count()} cores, {platform.machine()}, Python {platform.python_version()}"
    print(json.dumps({"bench": "links", "rounds": given.rounds, "machine": machine, **medians, "ratios": ratios}))


if __name__ == "__main__":
    main()
