"""Verbs that speak to a running deployment: ps, down, fault."""

import os
import signal
import time
from typing import Annotated, Any, Literal

from cyclopts import Parameter

from dpactors.cli.errors import FAILED, Refusal

RunDir = Annotated[str | None, Parameter(name="--run-dir")]
DOWN_LIMIT_S = 60.0
POLL_S = 0.05
SUPERVISOR = "supervisor"
"""The address by which a fault reaches the supervisor itself."""


def find(run_dir: str | None) -> Any:
    """The run directory that is meant; raises Refusal where none or several could be."""
    from dpactors.runtime.rundir import choose_run_dir

    try:
        return choose_run_dir(run_dir)
    except ValueError as error:
        raise Refusal(str(error)) from error


def request(run_dir: str | None, **asked: Any) -> dict[str, Any]:
    """Ask the running deployment; raises Refusal where nobody answers or the request is refused."""
    from dpactors.runtime.orders import NotRunning, ask
    from dpactors.runtime.rundir import holder, read_state

    path = find(run_dir)
    state = read_state(path)
    if state is None or not holder(path):
        raise Refusal(f"no deployment runs in {path}", FAILED)
    try:
        return ask(state.control, **asked)
    except NotRunning as error:
        raise Refusal(str(error), FAILED) from error
    except ValueError as error:
        raise Refusal(str(error)) from error


def ps(*, json: bool = False, run_dir: RunDir = None) -> int:
    """Show every actor of the running deployment.

    Example: dpactors ps --json

    Parameters
    ----------
    json
        One JSON document: {"name", "urls", "actors"}.
    run_dir
        Run directory of the deployment.
    """
    found = request(run_dir, verb="ps")
    if json:
        import orjson

        rows = [{**row.pop("facts"), **row} for row in found["actors"]]
        print(orjson.dumps({"name": found["name"], "urls": found["urls"], "actors": rows}).decode())
        return 0
    from rich.console import Console

    from dpactors.cli.table import status_table

    Console().print(status_table(found["name"], found["actors"]))
    print("  ".join(found["urls"]))
    return 0


def down(*, drain: float = 0.0, run_dir: RunDir = None) -> int:
    """Stop the deployment in order: front ends, engines, coordinator. Idempotent.

    Example: dpactors down --drain 30

    Parameters
    ----------
    drain
        Seconds that running requests may take to end.
    run_dir
        Run directory of the deployment.
    """
    from dpactors.runtime.orders import NotRunning, ask
    from dpactors.runtime.rundir import holder, read_state, sweep_run_dir

    path = find(run_dir)
    if not holder(path):
        sweep_run_dir(path)
        print(f"nothing runs in {path}")
        return 0
    name, asked = str(path), False
    end = time.monotonic() + drain + DOWN_LIMIT_S
    while holder(path):
        if not asked and (state := read_state(path)) is not None:  # absent while it only just starts
            name, asked = state.name, True
            try:
                ask(state.control, verb="down", drain_s=drain)
            except NotRunning as error:
                if holder(path):
                    raise Refusal(str(error), FAILED) from error
        if time.monotonic() > end:
            raise Refusal(f"still running after {drain + DOWN_LIMIT_S:.0f} s: pid {holder(path)}", FAILED)
        time.sleep(POLL_S)
    print(f"{name} is down")
    return 0


def fault(
    kind: Literal["kill", "stop", "cont"],
    *addresses: str,
    after: float = 0.0,
    for_: Annotated[float | None, Parameter(name="--for")] = None,
    run_dir: RunDir = None,
) -> int:
    """Inject a fault: kill (SIGKILL), stop (SIGSTOP) or cont (SIGCONT) the processes of actors.

    Example: dpactors fault kill engine.1 --after 5

    Parameters
    ----------
    kind
        kill, stop or cont.
    addresses
        Actors, such as engine.1, or supervisor; all actors of a process share its fate.
    after
        Seconds to wait first.
    for_
        With stop: seconds until the processes go on.
    run_dir
        Run directory of the deployment.
    """
    if not addresses:
        raise Refusal("fault: name at least one actor, for example engine.1")
    if for_ is not None and kind != "stop":
        raise Refusal("fault: --for goes with stop; what is killed does not come back by waiting")
    if after:
        time.sleep(after)
    _signal(kind, addresses, run_dir)
    if for_ is not None:
        try:
            time.sleep(for_)
        finally:  # an interrupted wait must not leave them stopped
            _signal("cont", addresses, run_dir)
    return 0


def _signal(kind: Literal["kill", "stop", "cont"], addresses: tuple[str, ...], run_dir: str | None) -> None:
    """Signal the processes of actors, and say who shares them."""
    actors = [address for address in addresses if address != SUPERVISOR]
    if actors:
        found = request(run_dir, verb="fault", word=kind, addresses=actors)["processes"]
        for process, residents in found.items():
            others = [actor for actor in residents if actor not in addresses]
            print(f"{kind} {process}" + (f": {', '.join(others)} in the same process" if others else ""))
    if SUPERVISOR in addresses:
        _signal_supervisor(kind, run_dir)


def _signal_supervisor(kind: str, run_dir: str | None) -> None:
    from dpactors.runtime.rundir import holder

    pid = holder(path := find(run_dir))
    if pid <= 0:
        raise Refusal(f"no deployment runs in {path}", FAILED)
    os.kill(pid, signal.Signals[f"SIG{kind.upper()}"])
    print(f"{kind} {SUPERVISOR}" + (": every process of it ends with it" if kind == "kill" else ""))
