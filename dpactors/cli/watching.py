"""Verbs that read what a deployment writes down: logs, trace."""

import time
from pathlib import Path
from typing import Annotated, Any, Literal

from cyclopts import Parameter

from dpactors.cli.errors import FAILED, Refusal
from dpactors.cli.running import RunDir, find

FOLLOW_S = 0.1


def logs(address: str | None = None, *, follow: bool = False, run_dir: RunDir = None) -> int:
    """Print the merged logs of all processes, or those of one actor's process.

    Example: dpactors logs engine.1 --follow

    Parameters
    ----------
    address
        An actor or process; default all.
    follow
        Go on with new lines.
    run_dir
        Run directory of the deployment.
    """
    from dpactors.runtime.logs import as_text, merged

    path = find(run_dir)
    files = {one.stem: one for one in sorted((path / "logs").glob("*.log"))}
    if not files:
        raise Refusal(f"no logs in {path / 'logs'}", FAILED)
    if address is not None:
        process = _process_of(path, address)
        if process not in files:
            raise Refusal(f"no log of {address}. Processes: {', '.join(files)}")
        files = {process: files[process]}
    offsets = {one: one.stat().st_size for one in files.values()}
    for event in merged(files):
        print(as_text(event))
    while follow:
        for name, one in files.items():
            offsets[one] = _print_new(name, one, offsets[one])
        time.sleep(FOLLOW_S)
    return 0


def _process_of(run_dir: Path, address: str) -> str:
    """The process of an actor, asked of the running deployment; else the address itself names it."""
    from dpactors.runtime.orders import NotRunning, ask
    from dpactors.runtime.rundir import read_state

    state = read_state(run_dir)
    if state is None:
        return address
    try:
        rows = ask(state.control, verb="ps")["actors"]
    except (NotRunning, ValueError):
        return address
    return next((row["process"] for row in rows if row["address"] == address), address)


def _print_new(process: str, path: Path, offset: int) -> int:
    from dpactors.runtime.logs import as_text, read_line

    if path.stat().st_size < offset:
        offset = 0  # set aside at a restart
    with path.open("rb") as file:
        file.seek(offset)
        data = file.read()
    whole, newline, _ = data.rpartition(b"\n")
    for line in whole.decode(errors="replace").splitlines():
        print(as_text({"process": process, **read_line(line)}), flush=True)
    return offset + len(whole) + len(newline)


def trace(
    request_id: str | None = None,
    *,
    format: Literal["text", "json"] = "text",
    follow: bool = False,
    grep: Annotated[str | None, Parameter(name="--grep")] = None,
    run_dir: RunDir = None,
) -> int:
    """Tell the story of one request across all processes, or follow the message flow live.

    Example: dpactors trace my-request-1

    Parameters
    ----------
    request_id
        The X-Request-ID of a request.
    format
        text or json.
    follow
        Print the flow of all messages as it happens.
    grep
        With --follow: only lines that contain this text.
    run_dir
        Run directory of the deployment.
    """
    import orjson

    from dpactors.runtime.trace import as_text, read_story

    path = find(run_dir)
    if follow:
        _follow(path, grep)
    if request_id is None:
        raise Refusal("trace: name a request id, or --follow")
    story = read_story(path, request_id)
    if not story:
        raise Refusal(f"no trace of request {request_id} in {path / 'traces'}", FAILED)
    print(orjson.dumps(story).decode() if format == "json" else as_text(story))
    return 0


def _follow(path: Path, grep: str | None) -> Any:
    """Print new records for ever, as structlog prints events."""
    import structlog

    from dpactors.runtime.trace import Follower

    follower = Follower(path)
    render = structlog.dev.ConsoleRenderer(colors=False)
    while True:
        for record in follower.poll():
            event = {"event": f"{record.get('actor', '')} {record.get('kind', '')} {record.get('what', '')}"}
            rest = {k: v for k, v in record.items() if k not in ("actor", "kind", "what", "t", "process")}
            line = str(render(None, "info", {"timestamp": f"{record.get('t', 0.0):.6f}", **event, **rest}))
            if grep is None or grep in line:
                print(line, flush=True)
        time.sleep(FOLLOW_S)
