"""pyzmq's own asyncio sockets on uvloop, as its documentation shows them, one typed message a frame."""

import asyncio
import time

import uvloop
import zmq
import zmq.asyncio
from messaging.common import (
    ASKS,
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

from dpactors.message.codec import decode, encode


def dealer(endpoint: str, *, bind: bool) -> zmq.asyncio.Socket:
    socket = zmq.asyncio.Context.instance().socket(zmq.DEALER)
    socket.linger = 1000
    socket.sndhwm = socket.rcvhwm = 0
    (socket.bind if bind else socket.connect)(endpoint)
    return socket


def server(folder: str) -> None:
    async def serve() -> None:
        socket = dealer(f"ipc://{folder}/aio", bind=False)
        answers: list[Request] = []
        going = [True]
        counter = Counter(answers.append, going.clear)
        while going:
            counter.take(decode(await socket.recv()))
            while answers:
                await socket.send(encode(answers.pop()))

    uvloop.run(serve())


def client(folder: str) -> Figures:
    async def run() -> Figures:
        socket = dealer(f"ipc://{folder}/aio", bind=True)
        took_s: list[float] = []
        for _ in range(ASKS):
            began_s = time.perf_counter()
            await socket.send(encode(SMALL))
            decode(await socket.recv())
            took_s.append(time.perf_counter() - began_s)
        result: Figures = {"ask_us": p50_us(took_s)}
        began_s = time.perf_counter()
        for _ in range(OUTSTANDING):
            await socket.send(encode(SMALL))
        for n in range(PIPELINED):
            decode(await socket.recv())
            if n < PIPELINED - OUTSTANDING:
                await socket.send(encode(SMALL))
        result["pipelined_per_s"] = PIPELINED / (time.perf_counter() - began_s)
        began_s, cpu_s = time.perf_counter(), time.process_time()
        for _ in range(STREAM):
            await socket.send(encode(PART))
        sent_cpu_s = time.process_time() - cpu_s
        await socket.send(encode(FINAL))
        result |= streamed(began_s, sent_cpu_s, decode(await socket.recv()))
        await socket.send(encode(STOP))
        await asyncio.sleep(0)
        socket.close(linger=1000)
        return result

    return uvloop.run(run())
