"""What does one exchange of expert rows cost over unix sockets, against gloo, between processes of one host?

Fixed: ranks that only exchange (the experts return their rows), half of the rows for the other ranks, float32, one
thread a rank, `--rounds` rounds in which the contenders take turns. Varied: ranks, rows and hidden size.
Answer: median microseconds of one MoE layer's exchange (rows there and outputs back), and gloo's over ours.
A busy machine slows both; the ratio is what counts.
"""

import argparse
import json
import multiprocessing
import multiprocessing.connection
import platform
import statistics
import threading
import time
from multiprocessing.connection import Connection
from typing import Any

import torch

from dpactors.engine.exchange import join_gloo
from dpactors.engine.rendezvous import Mailbox
from dpactors.engine.streams import meet_on_host
from dpactors.serving.jobs import JoinExchange

SHAPES = ((16, 64), (16, 256), (64, 1024))
KINDS = {"streams": meet_on_host, "gloo": join_gloo}
REPEATS = 50


def rank_process(rank: int, size: int, rounds: int, pipe: Connection) -> None:
    """Exchange in all shapes by both kinds, round by round; rank 0 sends its times."""
    torch.set_num_threads(1)
    mailbox = Mailbox()
    threading.Thread(target=feed, args=(mailbox, pipe), daemon=True).start()
    groups: dict[str, Any] = {}
    for epoch, (kind, meet) in enumerate(KINDS.items(), 1):
        job = JoinExchange(epoch, rank, size, "127.0.0.1")
        groups[kind] = meet(mailbox, job, pipe.send, meeting_timeout_s=30, operation_timeout_s=30)
    times: dict[str, list[float]] = {}
    for _ in range(rounds):
        for rows, hidden in SHAPES:
            data = torch.randn(rows, hidden, generator=torch.Generator().manual_seed(rank))
            counts = torch.full((size,), rows // size)
            for kind, group in groups.items():
                group.agree(True)
                begun = time.perf_counter()
                for _ in range(REPEATS):
                    group.experts(data, counts, lambda x, _: x)
                took = (time.perf_counter() - begun) / REPEATS
                times.setdefault(f"{kind} {rows}x{hidden}", []).append(took * 1e6)
    pipe.send(times)
    groups["gloo"].agree(True)


def feed(mailbox: Mailbox, pipe: Connection) -> None:
    while True:
        try:
            item = pipe.recv()
        except (EOFError, OSError):
            return
        mailbox.put(item.key, item.value)


def measure(size: int, rounds: int) -> dict[str, float]:
    context = multiprocessing.get_context("spawn")
    pipes = [context.Pipe() for _ in range(size)]
    ranks = [context.Process(target=rank_process, args=(r, size, rounds, pipes[r][1])) for r in range(size)]
    for one in ranks:
        one.start()
    ended: list[dict[str, list[float]]] = []
    while len(ended) < size:
        for pipe in multiprocessing.connection.wait([p for p, _ in pipes], timeout=60):
            item = pipe.recv()  # type: ignore[union-attr]
            if isinstance(item, dict):
                ended.append(item)
            else:
                for other, _ in pipes:
                    other.send(item)
    for one in ranks:
        one.join()
    return {name: statistics.median(t for times in ended for t in times[name]) for name in ended[0]}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=7)
    rounds = parser.parse_args().rounds
    line: dict[str, Any] = {"bench": "exchange", "machine": platform.machine(), "rounds": rounds, "unit": "us"}
    print("| ranks | rows x hidden | unix sockets, us | gloo, us | gloo / ours |\n|---|---|---|---|---|")
    for size in (2, 4):
        found = measure(size, rounds)
        for rows, hidden in SHAPES:
            ours, gloo = found[f"streams {rows}x{hidden}"], found[f"gloo {rows}x{hidden}"]
            print(f"| {size} | {rows} x {hidden} | {ours:.0f} | {gloo:.0f} | {gloo / ours:.1f} |")
            line[f"{size} ranks, {rows}x{hidden}"] = {"streams": round(ours), "gloo": round(gloo)}
    print(json.dumps(line))


if __name__ == "__main__":
    main()
