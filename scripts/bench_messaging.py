"""What do typed messages cost here, beside bare sockets and other Python actors.

Asked of one ask at a time, of 64 asks at once, of a stream one way, and of the codec alone.
Fixed: one small typed message, checked at both ends; two processes on one machine; ipc; uvloop where there is a loop.
Varied: a blocking pyzmq DEALER pair with one message a frame (the anchor), zmq.asyncio as it comes, our links, our
actors without and with the flow trace, xoscar. Rounds go through all contenders, so that all meet the same noise; the
answer is the ratio of medians. Links would have to be thought over again if an ask cost more than 1.5 times the
anchor's, or a stream ran at less than twice its rate.

    python scripts/bench_messaging.py [--rounds N] [--only NAME,...] [--xoscar PYTHON] [--json FILE]

xoscar is measured by the interpreter that --xoscar names, else by this one where it has it; else it is named as absent.
"""

import argparse
import importlib
import importlib.util
import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

MODULES = {
    "pair": ("messaging.raw", {}),
    "zmq.asyncio": ("messaging.zmq_asyncio", {}),
    "links": ("messaging.links", {}),
    "actors": ("messaging.actors", {}),
    "traced": ("messaging.actors", {"traced": True}),
    "xoscar": ("messaging.xoscar_actor", {}),
}
MEASURES = {
    "ask_us": "one ask, p50 us",
    "pipelined_per_s": "64 outstanding, asks/s",
    "batched_per_s": "batches of 64, asks/s",
    "stream_per_s": "one way, messages/s",
    "send_cpu_us": "CPU us to send one of a stream",
    "receive_cpu_us": "CPU us to receive one",
}
PART_LIMIT_S = 180


def function(kind: str, end: str) -> Callable[[str], Any] | None:
    """One end of a contender, None where its far end is its own affair."""
    name, options = MODULES[kind]
    found = getattr(importlib.import_module(name), end, None)
    return partial(found, **options) if found else None


def one_round(kind: str, python: str) -> dict[str, float]:
    """Both ends in processes of their own, so that no round leaves anything to the next."""
    env = {**os.environ, "PYTHONPATH": str(Path(__file__).parent)}  # for processes that these start
    with tempfile.TemporaryDirectory(prefix="dpb-") as folder:
        command = [python, __file__, "--folder", folder, "--part"]
        server = subprocess.Popen([*command, f"server:{kind}"], env=env)
        try:
            client = subprocess.run(
                [*command, f"client:{kind}"],
                stdout=subprocess.PIPE,
                text=True,
                check=True,
                timeout=PART_LIMIT_S,
                env=env,
            )
            server.wait(30)
        finally:
            server.kill()
            server.wait()
    return json.loads(client.stdout)


def codec_us() -> dict[str, float]:
    """Encoding and decoding alone, best of many: noise only adds."""
    from messaging.common import SMALL

    from dpactors.message.codec import decode, encode

    data = encode(SMALL)
    return {"encode_us": best_us(lambda: encode(SMALL)), "decode_us": best_us(lambda: decode(data))}


def best_us(call: Callable[[], Any], count: int = 2000, rounds: int = 50) -> float:
    found = float("inf")
    for _ in range(rounds):
        began_s = time.perf_counter()
        for _ in range(count):
            call()
        found = min(found, (time.perf_counter() - began_s) / count)
    return round(found * 1e6, 3)


def table(medians: dict[str, dict[str, float]]) -> None:
    """One line a measure; behind each figure how many times the anchor's it is."""
    from rich.console import Console
    from rich.table import Table

    shown = Table()
    shown.add_column("")
    for kind in medians:
        shown.add_column(kind, justify="right")
    for measure, words in MEASURES.items():
        anchor = medians.get("pair", {}).get(measure)
        cells: list[str] = []
        for figures in medians.values():
            value = figures.get(measure)
            text = "" if value is None else f"{value:,.0f}" if value >= 100 else f"{value:.2f}"
            cells.append(text + (f" ({value / anchor:.2f}x)" if value is not None and anchor else ""))
        if any(cells):
            shown.add_row(words, *cells)
    Console(stderr=True, width=200).print(shown)


def contenders(only: str, xoscar: str) -> dict[str, str]:
    """Contender to the interpreter that has it."""
    wanted = only.split(",") if only else list(MODULES)
    if unknown := [one for one in wanted if one not in MODULES]:
        sys.exit(f"no contender {unknown[0]}; there are {', '.join(MODULES)}")
    found: dict[str, str] = {}
    for kind in wanted:
        if kind != "xoscar":
            found[kind] = sys.executable
        elif xoscar or importlib.util.find_spec("xoscar"):
            found[kind] = xoscar or sys.executable
        else:
            print("xoscar is absent: install it, or name an interpreter that has it by --xoscar", file=sys.stderr)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--only", default="", help="contenders, with commas between")
    parser.add_argument("--xoscar", default="", help="an interpreter that has xoscar")
    parser.add_argument("--json", type=Path, help="where the JSON line goes as well")
    parser.add_argument("--part", help=argparse.SUPPRESS)
    parser.add_argument("--folder", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.part:
        end, kind = given.part.split(":")
        part = function(kind, end)
        result = part(given.folder) if part else None
        if end == "client":
            print(json.dumps(result))
        return
    running = contenders(given.only, given.xoscar)
    rounds: dict[str, list[dict[str, float]]] = {kind: [] for kind in running}
    for number in range(given.rounds):
        for kind, python in running.items():
            print(f"round {number + 1} of {given.rounds}: {kind}", file=sys.stderr)
            rounds[kind].append(one_round(kind, python))
    medians = {
        kind: {key: round(statistics.median(one[key] for one in seen), 2) for key in seen[0]}
        for kind, seen in rounds.items()
    }
    table(medians)
    machine = f"{os.cpu_count()} cores, {platform.machine()}, Python {platform.python_version()}"
    absent = [kind for kind in MODULES if kind not in running]
    head = {"bench": "messaging", "rounds": given.rounds, "machine": machine, "absent": absent}
    line = json.dumps({**head, "codec": codec_us(), **medians})
    print(line)
    if given.json:
        given.json.write_text(line + "\n")


if __name__ == "__main__":
    main()
