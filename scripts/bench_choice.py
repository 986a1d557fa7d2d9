"""What does choosing a rank cost, by policy and number of ranks?

The first figure of a cell is the choice alone; the second has what the client does around it: a booking for each and,
after every eighth, a report. Both are microseconds, the best of several short runs; no telling is included.

    .venv/bin/python scripts/bench_choice.py [--ranks 2 8 64 512] [--policy vllm least_work]
"""

import argparse
import itertools
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from dpactors.message.message import tokens
from dpactors.serving.messages import ClientMark, RankLoad
from dpactors.serving.policy.choice import Asked, Policy
from dpactors.serving.policy.registry import POLICIES, policy_of
from dpactors.serving.protocol.load import LoadView
from dpactors.serving.settings import ClientSettings

RUNS = 7
RUN_S = 0.02
TARGETS_US = {
    ("vllm", 2): 1.2,
    ("vllm", 8): 2.8,
    ("vllm", 64): 17,
    ("vllm", 512): 107,
    ("least_work", 8): 10,
    ("least_work", 512): 40,
}


def report(rank: int, number: int, seen: int) -> RankLoad:
    busy = rank * 7 % 5
    return RankLoad(
        rank,
        number,
        1,
        number,
        busy % 2,
        busy,
        busy,
        100,
        300,
        200,
        0.02,
        0.01,
        1e-4,
        busy * 600,
        4096,
        (ClientMark(0, seen),),
    )


def busy_view(ranks: int) -> LoadView:
    view = LoadView(0, 1, tuple(range(ranks)))
    for rank in range(ranks):
        view.add(rank)
        view.learn(report(rank, 1, 0), 0.0)
    return view


def choice_us(policy: Policy, ranks: int) -> float:
    view = busy_view(ranks)
    view.turn = 1
    asked = Asked("cmpl-1", tokens(range(500)), 500, 0.0)
    count = max(16, int(RUN_S / 1e-6 / (4 * ranks)))
    best = float("inf")
    for _ in range(RUNS):
        start = time.perf_counter()
        for _ in itertools.repeat(None, count):
            policy(view, asked)
        best = min(best, (time.perf_counter() - start) / count)
    return best * 1e6


def whole_us(policy: Policy, ranks: int) -> float:
    best = float("inf")
    count = max(16, int(RUN_S / 1e-6 / (4 * ranks)))
    for _ in range(RUNS):
        view = busy_view(ranks)
        asked = [Asked(f"cmpl-{n}", tokens(range(n, n + 500)), 500, 0.0) for n in range(16)]
        loads = [report(n % ranks, 2 + n // ranks, n // ranks) for n in range(count // 8 + 1)]
        start = time.perf_counter()
        for n in range(count):
            choice = policy(view, asked[n & 15])
            view.turn = choice.turn
            view.book(choice.rank, 500)
            if not n & 7:
                view.learn(loads[n >> 3], 0.0)
        best = min(best, (time.perf_counter() - start) / count)
    return best * 1e6


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--ranks", type=int, nargs="+", default=[2, 8, 64, 512])
    parser.add_argument("--policy", nargs="+", default=list(POLICIES), choices=list(POLICIES))
    chosen = parser.parse_args()
    print(f"{'policy':22}" + "".join(f"{ranks:>22}" for ranks in chosen.ranks))
    for name in chosen.policy:
        policy = policy_of(ClientSettings(policy=name))
        cells: list[str] = []
        for ranks in chosen.ranks:
            target = TARGETS_US.get((name, ranks))
            cell = f"{choice_us(policy, ranks):.2f} / {whole_us(policy, ranks):.2f}"
            cells.append(cell + (f" (<= {target})" if target else ""))
        print(f"{name:22}" + "".join(f"{cell:>22}" for cell in cells))


if __name__ == "__main__":
    main()
