"""The message of every contender, the far end's book-keeping, and the measures."""

import statistics
import time
from collections.abc import Callable

from dpactors.message.message import Tokens, message, tokens

ASKS, PIPELINED, OUTSTANDING, STREAM = 3000, 20_000, 64, 100_000
BURST = 256
"""Messages of a stream that one turn of a loop sends."""
ECHO, COUNT, LAST, END = 0, 1, 2, 3
Figures = dict[str, float]


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
            cpu_us = (time.process_time() - self.cpu_s) / max(self.count, 1) * 1e6
            self.reply(Request(str(cpu_us), self.count, tokens(), LAST))
            self.count = 0
        else:
            self.stop()


def p50_us(took_s: list[float]) -> float:
    """The median, the first tenth left out."""
    return statistics.median(took_s[len(took_s) // 10 :]) * 1e6


def streamed(began_s: float, sent_cpu_s: float, answer: Request) -> Figures:
    """What a stream of STREAM messages came to."""
    assert answer.rank == STREAM, f"{STREAM - answer.rank} messages were lost"
    return {
        "stream_per_s": STREAM / (time.perf_counter() - began_s),
        "send_cpu_us": sent_cpu_s / STREAM * 1e6,
        "receive_cpu_us": float(answer.request_id),
    }
