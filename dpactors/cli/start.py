"""The verb that brings a deployment up."""

import asyncio
import os
import subprocess
import sys
from pathlib import Path
from typing import Annotated, Any, Literal

from cyclopts import Parameter

from dpactors.cli.errors import FAILED, INTERRUPTED, Refusal
from dpactors.cli.files import Set, folder_of, load, print_plan

REFRESH_S = 0.25
READY_FD = "DPACTORS_READY_FD"
"""Environment variable by which a detached supervisor knows where to tell that it is ready."""


def up(
    file: str,
    *,
    host: Annotated[tuple[str, ...], Parameter(consume_multiple=False, negative="")] = (),
    run_dir: Annotated[str | None, Parameter(name="--run-dir")] = None,
    set_: Set = (),
    detach: bool = False,
    trace: bool = True,
    log_format: Literal["console", "json"] = "console",
    dry_run: bool = False,
) -> int:
    """Bring up all hosts of the file that are this machine, and keep them up.

    Example: dpactors up topologies/hybrid_2node.toml --detach

    Parameters
    ----------
    file
        A topology file.
    host
        A host of the file that this machine is; may be given several times.
    run_dir
        Where control socket, state, logs and traces go; default .dpactors/NAME or $DPACTORS_RUN_DIR.
    set_
        Override one value, as PATH=VALUE.
    detach
        Return when ready, or non-zero with the cause.
    trace
        Record the message flow for dpactors trace; bounded per process.
    log_format
        How log lines look on the terminal.
    dry_run
        Check, print the plan, start nothing.
    """
    from dpactors.runtime.machine import NotThisMachine, own_hosts
    from dpactors.runtime.room import NoRoom, make_room
    from dpactors.runtime.rundir import RunDirHeld, choose_run_dir, holder
    from dpactors.topology.descriptors import needs

    document, plan = load(file, set_)
    try:
        hosts = own_hosts(plan.hosts, host)
        make_room(needs(plan, hosts))
    except (NotThisMachine, NoRoom) as error:
        raise Refusal(f"{file}: {error}") from error
    if dry_run:
        print_plan(plan, None, json=False)
        return 0
    keys = _keys(file, plan, hosts)
    _check_api_keys(file, plan, hosts)
    path = choose_run_dir(run_dir, plan.name)
    if (held := holder(path)) > 0:
        raise Refusal(str(RunDirHeld(path, held)))
    if detach:
        return _detached(path)
    return _serve(document, plan, hosts, path, keys=keys, trace=trace, log_format=log_format)


def _keys(file: str, plan: Any, hosts: tuple[str, ...]) -> Path | None:
    """The folder of keys, beside the topology file unless absolute; raises Refusal before anything starts."""
    if not plan.keys:
        return None
    from dpactors.net.curve import KeysError, load_keys

    folder = (folder_of(file) / Path(plan.keys).expanduser()).resolve()
    try:
        for host in hosts:
            load_keys(folder, host, plan.hosts)
    except KeysError as error:
        raise Refusal(f"{file}: [security] keys: {error}") from error
    return folder


# ------------------------------------------------------------- in the foreground


def _check_api_keys(file: str, plan: Any, hosts: tuple[str, ...]) -> None:
    """Raise Refusal for a file of API keys that a front end of this machine could not use."""
    from dpactors.http.keys import KeysFileError, read_keys

    for process in plan.processes:
        for actor in process.actors if process.host in hosts else ():
            try:
                read_keys(getattr(actor.setup.settings, "api_keys", ""))
            except KeysFileError as error:
                raise Refusal(f"{file}: {actor.setup.address}: {error}") from error


def _serve(
    document: Any,
    plan: Any,
    hosts: tuple[str, ...],
    path: Path,
    *,
    keys: Path | None,
    trace: bool,
    log_format: Any,
) -> int:
    from dpactors.runtime.logs import set_up_logs
    from dpactors.runtime.machine import FrontDoors, PortTaken
    from dpactors.runtime.rundir import RunDirHeld, open_run_dir
    from dpactors.runtime.supervisor import Deployment

    deployment = Deployment(document, plan, hosts, trace=trace, folder=str(folder_of(document.source.file)), keys=keys)
    try:
        run = open_run_dir(path)
    except RunDirHeld as error:
        raise Refusal(str(error)) from error
    except OSError as error:
        raise Refusal(f"cannot use {path} as run directory: {error}. Name another one by --run-dir") from error
    try:
        doors = FrontDoors(plan, hosts)
    except PortTaken as error:
        run.release()
        raise Refusal(str(error.args[1]), FAILED) from error
    # On a terminal the table says what happens; the log file has every line.
    level = "warning" if sys.stderr.isatty() and log_format == "console" else "info"
    set_up_logs(log_format, level, also_to=run.log("supervisor"), process="supervisor", pid=os.getpid())
    return asyncio.run(_live(deployment, run, doors))


async def _live(deployment: Any, run: Any, doors: Any) -> int:
    from dpactors.runtime.supervisor import Supervisor

    supervisor = Supervisor(deployment, run, doors)
    show = asyncio.get_running_loop().create_task(_show(supervisor))
    stop = await supervisor.run()
    show.cancel()
    _tell_parent("" if supervisor.ready.is_set() else f"{stop.code} {stop.reason}")
    if stop.code in (0, INTERRUPTED):
        print(f"{deployment.plan.name} is down", flush=True)
    else:
        print(f"dpactors: {deployment.plan.name}: {stop.reason}. Logs: {run.path / 'logs'}", file=sys.stderr)
    return stop.code


async def _show(supervisor: Any) -> None:
    """One live table until ready, then the URLs."""
    if sys.stdout.isatty():
        from rich.live import Live

        from dpactors.cli.table import start_table

        with Live(refresh_per_second=4, transient=True) as live:
            while not supervisor.ready.is_set():
                view = supervisor.view()
                live.update(start_table(view.name, view.rows))
                await asyncio.sleep(REFRESH_S)
    else:
        await _show_lines(supervisor)
    view = supervisor.view()
    print(f"{view.name} is ready: {'  '.join(view.urls) or 'no front end on this machine'}", flush=True)
    _tell_parent("ready")


async def _show_lines(supervisor: Any) -> None:
    """The same without a terminal: a line whenever an actor's phase changes."""
    said: dict[str, tuple[str, str]] = {}
    while not supervisor.ready.is_set():
        for row in supervisor.view().rows:
            now = (row["state"], row["doing"])
            if said.get(row["address"]) != now:
                said[row["address"]] = now
                waits = f", waits for {row['waits_for']}" if row["waits_for"] else ""
                print(f"{row['address']}: {row['state']} {row['doing']}{waits}".rstrip(), flush=True)
        await asyncio.sleep(REFRESH_S)


# ------------------------------------------------------------- detached


def _detached(path: Path) -> int:
    """Start the same verb in a session of its own and wait for its word."""
    from dpactors.runtime.rundir import make_run_dir

    arguments = [one for one in sys.argv[1:] if one != "--detach"]
    logs = path / "logs"
    try:
        make_run_dir(path)
        logs.mkdir(exist_ok=True, mode=0o700)
    except OSError as error:
        raise Refusal(f"cannot use {path} as run directory: {error}. Name another one by --run-dir") from error
    reader, writer = os.pipe()
    with (logs / "up.log").open("ab") as log:
        child = subprocess.Popen(
            [sys.executable, "-m", "dpactors", *arguments],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
            pass_fds=(writer,),
            env={**os.environ, READY_FD: str(writer)},
        )
    os.close(writer)
    try:
        with os.fdopen(reader) as words:
            said = words.read()
    except KeyboardInterrupt:
        child.terminate()
        child.wait()
        raise
    if said == "ready":
        from dpactors.runtime.rundir import read_state

        state = read_state(path)
        print(
            f"{state.name if state else path} is ready: {'  '.join(state.urls if state else ()) or 'no front end here'}"
        )
        return 0
    code = child.wait()
    cause = said.partition(" ")[2] or _last_line(logs / "up.log")
    print(f"dpactors: not ready: {cause}", file=sys.stderr)
    return code or FAILED


def _last_line(path: Path) -> str:
    lines = path.read_text(errors="replace").strip().splitlines()
    return lines[-1] if lines else f"it ended without a word; see {path}"


def _tell_parent(word: str) -> None:
    """Say once how starting went, where somebody waits for it."""
    descriptor = os.environ.pop(READY_FD, None)
    if descriptor is not None:
        with os.fdopen(int(descriptor), "w") as pipe:
            pipe.write(word)
