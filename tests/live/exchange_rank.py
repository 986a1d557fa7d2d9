"""One rank as a process of its own: joins an exchange and does what its pipe says, so that a test may kill it."""

import threading
import time
from multiprocessing.connection import Connection
from typing import Any

import torch
from torch import Tensor

from dpactors.engine.errors import ExchangeLost
from dpactors.engine.exchange import Exchange
from dpactors.engine.meeting import join_exchange
from dpactors.engine.rendezvous import Mailbox
from dpactors.serving.jobs import JoinExchange, KeySet

EXPERTS, HIDDEN = 4, 64


def serve(rank: int, size: int, pipe: Connection, kind: str) -> None:
    """Answer each word with a result, or with the error's class and text and how long it took."""
    torch.set_num_threads(1)
    mailbox = Mailbox()
    words: list[Any] = []
    came = threading.Semaphore(0)

    def listen() -> None:
        while True:
            item = pipe.recv()
            if isinstance(item, KeySet):
                mailbox.put(item.key, item.value)
            else:
                words.append(item)
                came.release()

    threading.Thread(target=listen, daemon=True).start()
    job = JoinExchange(1, rank, size, "127.0.0.1", kind)
    exchange = join_exchange(mailbox, job, pipe.send, meeting_timeout_s=30)
    pipe.send("joined")
    while True:
        came.acquire()
        begun_s = time.monotonic()
        try:
            pipe.send(_do(exchange, words.pop(0), rank))
        except ExchangeLost as error:
            exchange.close()  # as the engine does
            pipe.send((type(error).__name__, str(error), begun_s, time.monotonic()))


def _do(exchange: Exchange, word: str, rank: int) -> Any:
    if word == "agree":
        return exchange.agree(unfinished=True)
    if word == "announce a long prefill":
        exchange.announce(700, 0.01)
        return word
    rows = torch.full((EXPERTS, HIDDEN), float(rank))
    return _sum_of(exchange.experts(rows, torch.ones(EXPERTS, dtype=torch.int64), lambda x, _: x + 1))


def _sum_of(rows: Tensor) -> float:
    return float(rows.sum())
