"""The tables of ``up`` and ``ps``."""

import time
from collections.abc import Iterable, Mapping
from typing import Any

from rich import box
from rich.table import Table

COLUMNS = ("address", "host", "pid", "state", "since", "restarts", "rank", "wave", "run", "wait", "kv", "step")
STYLE = {"ready": "green", "starting": "yellow", "suspect": "red", "down": "red", "draining": "cyan", "stopped": "dim"}


def status_table(name: str, rows: Iterable[Mapping[str, Any]]) -> Table:
    """One row an actor, as ``ps`` shows it."""
    table = Table(title=name, box=box.SIMPLE_HEAD, padding=0, pad_edge=False, show_edge=False, title_justify="left")
    for column in COLUMNS:
        table.add_column(column, justify="left" if column in ("address", "host", "state") else "right", no_wrap=True)
    for row in rows:
        state = str(row["state"])
        kv = row["kv_used"]
        table.add_row(
            str(row["address"]),
            str(row["host"]),
            _text(row["pid"]),
            f"[{STYLE.get(state, 'white')}]{state}[/]",
            _age(time.time() - row["since"]),
            str(row["restarts"]),
            _text(row["rank"]),
            _text(row["wave"]),
            _text(row["running"]),
            _text(row["waiting"]),
            "" if kv is None else f"{kv:.0%}",
            "" if row["step_age_s"] is None else _age(row["step_age_s"]),
        )
    return table


def start_table(name: str, rows: Iterable[Mapping[str, Any]]) -> Table:
    """One row an actor while a deployment starts: phase, seconds, what it waits for, progress."""
    table = Table(title=f"{name} starts", box=box.SIMPLE_HEAD, title_justify="left")
    for column in ("actor", "state", "seconds", "doing", "progress", "waits for"):
        table.add_column(column, justify="right" if column in ("seconds", "progress") else "left")
    for row in rows:
        state = str(row["state"])
        progress = row["progress"]
        table.add_row(
            str(row["address"]),
            f"[{STYLE.get(state, 'white')}]{state}[/]",
            f"{time.time() - row['since']:.1f}",
            str(row["doing"]),
            "" if progress is None else f"{progress:.0%}",
            str(row["waits_for"]),
        )
    return table


def _age(seconds: float) -> str:
    """Seconds in at most four characters: 3s, 59m, 23h, 41d."""
    for unit, length in (("d", 86400), ("h", 3600), ("m", 60)):
        if seconds >= length:
            return f"{seconds / length:.0f}{unit}"
    return f"{max(0.0, seconds):.0f}s"


def _text(value: Any) -> str:
    return "" if value is None else str(value)
