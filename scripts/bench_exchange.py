"""What does the exchange of expert rows cost over each of its ways, between processes of one host?

Two questions in one run, in which the ways take turns, so that all meet the same noise.
1. One layer's exchange (rows there, outputs back) among 2 and 4 ranks. Fixed: experts that return their rows, rows
   spread evenly over all ranks, float32, one thread a rank. Varied: rows and hidden size. Answer: median microseconds
   of single exchanges over all ranks and rounds, and gloo's over each way's.
2. One decode step of tiny-moe with 8 sequences on each rank: the same work on a single rank that holds all experts,
   against two ranks over each way. Answer: median milliseconds of a step, and its ratio to the single rank's.
The shared way would have to be thought over again if it were not at least 5 times faster than gloo, or if a step of
two ranks took more than 1.5 times the single rank's. With more ranks than cores every wait is a switch of processes,
whatever the way; on a busy machine the ratios hold better than the times, and --realtime keeps others' work out of
the measured loops, for all threads of the ranks.

    .venv/bin/python scripts/bench_exchange.py [--rounds N] [--seed N] [--realtime]
"""

import argparse
import contextlib
import json
import multiprocessing
import multiprocessing.connection
import os
import platform
import statistics
import threading
import time
from collections.abc import Iterator
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import torch

from dpactors.engine.exchange import join_gloo
from dpactors.engine.meeting import meet_in_memory
from dpactors.engine.performer import EnginePerformer
from dpactors.engine.rendezvous import Mailbox
from dpactors.message.message import tokens
from dpactors.serving.jobs import AgreeIdle, JoinExchange, LoadModel, RunStep, SequenceSlice
from dpactors.serving.messages import Sampling

SHAPES = ((16, 64), (16, 256), (64, 1024))
KINDS = {"gloo": join_gloo, "shared": meet_in_memory}
REPEATS, STEPS, SEQUENCES, CONTEXT = 100, 40, 8, 64
BLOCKS = 8
Times = dict[str, list[float]]


def exchange_process(rank: int, size: int, given: argparse.Namespace, pipe: Connection) -> None:
    """Exchange in all shapes by all ways, round by round; sends its times."""
    torch.set_num_threads(1)
    mailbox = Mailbox()
    threading.Thread(target=feed, args=(mailbox.put, pipe), daemon=True).start()
    groups: dict[str, Any] = {}
    for epoch, (kind, meet) in enumerate(KINDS.items(), 1):
        job = JoinExchange(epoch, rank, size, "127.0.0.1")
        groups[kind] = meet(mailbox, job, pipe.send, meeting_timeout_s=60, operation_timeout_s=60)
    times: Times = {}
    with torch.inference_mode():
        for _ in range(given.rounds):
            for rows, hidden in SHAPES:
                data = torch.randn(rows, hidden, generator=torch.Generator().manual_seed(given.seed + rank))
                counts = torch.full((size,), rows // size)
                for kind, group in groups.items():
                    seen = times.setdefault(f"{kind} {rows}x{hidden}", [])
                    group.agree(unfinished=True)
                    with priority(realtime=given.realtime):
                        for _ in range(REPEATS):
                            begun_s = time.perf_counter()
                            group.experts(data, counts, lambda x, _: x)
                            seen.append((time.perf_counter() - begun_s) * 1e6)
    pipe.send(times)
    groups["gloo"].agree(unfinished=True)  # nobody leaves before all have sent


def step_process(rank: int, size: int, given: argparse.Namespace, pipe: Connection) -> None:
    """Decode with the group in turns of all ways, and alone; sends its times."""
    alone, group = EnginePerformer(), EnginePerformer()
    threading.Thread(target=feed, args=(lambda key, value: group.feed(Key(key, value)), pipe), daemon=True).start()
    for performer, place, ranks in ((alone, 0, 1), (group, rank, size)):
        job = LoadModel("tiny-moe", "float32", 1, SEQUENCES * BLOCKS, 16, 0, place, ranks)
        performer.perform(job, lambda _: None)
    times: Times = {}
    epoch = 0
    step = decode_step(given.seed + rank)
    for _ in range(given.rounds):
        for kind in KINDS:
            epoch += 1
            group.perform(JoinExchange(epoch, rank, size, "127.0.0.1", kind), pipe.send)
            with priority(realtime=given.realtime):
                for n in range(2 * STEPS):
                    result = group.perform(step, lambda _: None)
                    if n >= STEPS:
                        times.setdefault(kind, []).append(result.seconds * 1e3)
            group.perform(AgreeIdle(unfinished=True), lambda _: None)
        for turn in range(size):  # one after the other, for a single engine has the machine to itself
            if turn == rank:
                with priority(realtime=given.realtime):
                    took = [alone.perform(step, lambda _: None).seconds * 1e3 for _ in range(2 * STEPS)]
                times.setdefault("alone", []).extend(took[STEPS:])
            group.perform(AgreeIdle(unfinished=True), lambda _: None)
    pipe.send(times)
    group.perform(AgreeIdle(unfinished=True), lambda _: None)
    group.close()


def decode_step(seed: int) -> RunStep:
    """One token for each of SEQUENCES sequences with CONTEXT cached ones."""
    ids = torch.randint(3, 3000, (SEQUENCES,), generator=torch.Generator().manual_seed(seed)).tolist()
    greedy = Sampling(0.0, 1.0, 0, 0, tokens(), ignore_eos=True, min_tokens=0)
    parts = tuple(
        SequenceSlice(1, CONTEXT, tokens(range(n * BLOCKS, n * BLOCKS + CONTEXT // 16 + 1)), greedy, 0, tokens())
        for n in range(SEQUENCES)
    )
    slots = tokens(n * BLOCKS * 16 + CONTEXT for n in range(SEQUENCES))
    return RunStep(tokens(ids), tokens([CONTEXT] * SEQUENCES), slots, parts)


@contextlib.contextmanager
def priority(*, realtime: bool) -> Iterator[None]:
    """Run all threads of this process, gloo's too, before those of ordinary processes, if so."""
    for policy, level in ((os.SCHED_RR, 1), (os.SCHED_OTHER, 0)):
        for thread in Path("/proc/self/task").iterdir() if realtime else ():
            os.sched_setscheduler(int(thread.name), policy, os.sched_param(level))
        if policy == os.SCHED_RR:
            yield


class Key:
    """A rendezvous key as the performer takes it."""

    def __init__(self, key: str, value: bytes) -> None:
        self.key, self.value = key, value


def feed(put: Any, pipe: Connection) -> None:
    while True:
        try:
            item = pipe.recv()
        except (EOFError, OSError):
            return
        put(item.key, item.value)


def measure(work: Any, size: int, given: argparse.Namespace) -> dict[str, float]:
    """Medians over all ranks and rounds."""
    context = multiprocessing.get_context("spawn")
    pipes = [context.Pipe() for _ in range(size)]
    ranks = [context.Process(target=work, args=(r, size, given, pipes[r][1])) for r in range(size)]
    for one in ranks:
        one.start()
    ended: list[Times] = []
    while len(ended) < size:
        for pipe in multiprocessing.connection.wait([p for p, _ in pipes], timeout=120):
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
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--realtime", action="store_true", help="real-time priority in the measured loops; needs root")
    given = parser.parse_args()
    line: dict[str, Any] = {"bench": "exchange", **vars(given)}
    line["machine"] = f"{os.cpu_count()} cores, {platform.machine()}, load {os.getloadavg()[0]:.1f} at the start"
    print("| ranks | rows x hidden | gloo, us | shared, us | gloo / shared |")
    print("|---|---|---|---|---|")
    for size in (2, 4):
        found = measure(exchange_process, size, given)
        for rows, hidden in SHAPES:
            gloo, shared = (found[f"{kind} {rows}x{hidden}"] for kind in KINDS)
            print(f"| {size} | {rows} x {hidden} | {gloo:.0f} | {shared:.0f} | {gloo / shared:.1f} |", flush=True)
            line[f"{size} ranks, {rows}x{hidden}, us"] = {k: round(found[f"{k} {rows}x{hidden}"]) for k in KINDS}
    found = measure(step_process, 2, given)
    print("\n| step of tiny-moe, 8 sequences a rank | ms | ratio |\n|---|---|---|")
    for name in ("alone", *KINDS):
        print(f"| {name} | {found[name]:.2f} | {found[name] / found['alone']:.2f} |")
    line["2 ranks, step, ms"] = {name: round(value, 2) for name, value in found.items()}
    print(json.dumps(line))


if __name__ == "__main__":
    main()
