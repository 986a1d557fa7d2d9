"""A blocking pyzmq DEALER pair, one typed message a frame: the anchor."""

import time

import zmq
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
    p50_us,
    streamed,
)

from dpactors.message.codec import decode, encode


def dealer(endpoint: str, *, bind: bool) -> "zmq.Socket[bytes]":
    socket = zmq.Context.instance().socket(zmq.DEALER)
    socket.linger = 0
    socket.sndhwm = socket.rcvhwm = 0
    (socket.bind if bind else socket.connect)(endpoint)
    return socket


def server(folder: str) -> None:
    socket = dealer(f"ipc://{folder}/raw", bind=False)
    going = [True]
    counter = Counter(lambda one: socket.send(encode(one)), going.clear)
    while going:
        counter.take(decode(socket.recv()))


def client(folder: str) -> Figures:
    socket = dealer(f"ipc://{folder}/raw", bind=True)
    took_s: list[float] = []
    for _ in range(ASKS):
        began_s = time.perf_counter()
        socket.send(encode(SMALL))
        decode(socket.recv())
        took_s.append(time.perf_counter() - began_s)
    result: Figures = {"ask_us": p50_us(took_s)}
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
    result |= streamed(began_s, sent_cpu_s, decode(socket.recv()))
    socket.send(encode(STOP))
    socket.close(linger=1000)
    return result
