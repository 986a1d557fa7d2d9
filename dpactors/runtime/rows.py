"""What ``ps`` and the start table show: one row an actor."""

import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from attrs import frozen

from dpactors.actor.effects import Phase
from dpactors.runtime.children import BEGINNING, Child
from dpactors.runtime.supervising import Supervising

COLUMNS = ("rank", "wave", "running", "waiting", "kv_used", "step_age_s")
"""Facts of an actor that are columns of their own; null where an actor has none."""
WAITING = Phase("starting", "", "the roles before its own")


@frozen
class View:
    """A deployment as its supervisor sees it now."""

    name: str
    run_dir: Path
    urls: tuple[str, ...]
    rows: tuple[dict[str, Any], ...]
    ready: bool


def rows_of(actor: Supervising, pid_of: Callable[[str], int | None], now_s: float) -> list[dict[str, Any]]:
    """The rows of all actors of a supervisor, in start order."""
    wall_s = time.time() - now_s
    rows: list[dict[str, Any]] = []
    for child in actor.children.values():
        state, facts = actor.state_of(child, now_s), _facts(child)
        for address in child.spec.actors:
            phase = WAITING if child.life == "waiting" else child.phases.get(address, BEGINNING)
            own = facts.get(address, {})
            if own.get("step_age_s") is not None:
                own["step_age_s"] = round(own["step_age_s"] + now_s - child.heard_s, 3)
            alone = state in {"ready", "starting"} and child.life == "up"
            rows.append(
                {
                    "address": address,
                    "host": child.spec.host,
                    "pid": pid_of(child.spec.name),
                    "incarnation": child.incarnation,
                    "state": phase.state if alone else state,
                    "since": round(wall_s + child.since_s, 3),
                    "restarts": child.restarts,
                    **{name: own.pop(name, None) for name in COLUMNS},
                    "process": child.spec.name,
                    "doing": phase.doing if state == "starting" else "",
                    "waits_for": phase.waits_for if state == "starting" else "",
                    "progress": phase.progress if state == "starting" else None,
                    "facts": own,
                }
            )
    return rows


def _facts(child: Child) -> dict[str, dict[str, Any]]:
    if not child.facts:
        return {}
    tree = json.loads(child.facts)
    return {row.pop("address"): row for row in tree["actors"]}
