"""A deployment brought up by the command line, as a user would."""

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import psutil

REPOSITORY = Path(__file__).parents[2]
TOPOLOGIES = REPOSITORY / "topologies"
DPACTORS = (sys.executable, "-m", "dpactors")
LIMIT_S = 120.0
"""A deadline that only a hang meets."""


def cli(*arguments: str, limit_s: float = LIMIT_S, **env: str) -> subprocess.CompletedProcess[str]:
    """Run one verb to its end."""
    return subprocess.run(
        [*DPACTORS, *arguments],
        capture_output=True,
        text=True,
        timeout=limit_s,
        check=False,
        cwd=REPOSITORY,
        env={**os.environ, **env},
    )


def until(true: Callable[[], Any], what: str, limit_s: float = LIMIT_S) -> Any:
    """Look until something is true and return it; fails with what was waited for."""
    end = time.monotonic() + limit_s
    while time.monotonic() < end:
        if found := true():
            return found
        time.sleep(0.02)
    raise AssertionError(f"not within {limit_s:.0f} s: {what}")


class Deployment:
    """A running deployment and its run directory."""

    def __init__(self, run_dir: Path) -> None:
        self.run_dir = run_dir

    def cli(self, verb: str, *arguments: str) -> subprocess.CompletedProcess[str]:
        return cli(verb, *arguments, "--run-dir", str(self.run_dir))

    def ps(self) -> dict[str, Any]:
        found = self.cli("ps", "--json")
        assert found.returncode == 0, found.stderr
        return json.loads(found.stdout)

    def actors(self, role: str = "") -> list[dict[str, Any]]:
        return [a for a in self.ps()["actors"] if a["address"].startswith(role)]

    @property
    def url(self) -> str:
        return self.ps()["urls"][0]

    @property
    def links_dir(self) -> Path:
        """Where the sockets between its processes lie."""
        return Path(json.loads((self.run_dir / "state.json").read_text())["links_dir"])

    def pids(self) -> set[int]:
        """The supervisor's and every actor's process."""
        state = json.loads((self.run_dir / "state.json").read_text())
        return {state["pid"], *(actor["pid"] for actor in self.actors() if actor["pid"])}

    def ask(self, content: str = "What is a wave?", url: str | None = None, **fields: Any) -> httpx.Response:
        body = {"model": "tiny-moe", "messages": [{"role": "user", "content": content}], "temperature": 0, **fields}
        return httpx.post(f"{url or self.url}/v1/chat/completions", json=body, timeout=LIMIT_S)

    def complete(self, prompt: Any, url: str | None = None, **fields: Any) -> httpx.Response:
        body = {"model": "tiny-moe", "prompt": prompt, "temperature": 0, **fields}
        return httpx.post(f"{url or self.url}/v1/completions", json=body, timeout=LIMIT_S)

    def asleep(self) -> list[dict[str, Any]]:
        """Wait until every engine's status says that its group is paused without work; return their rows."""

        def rows() -> list[dict[str, Any]] | None:
            engines = self.actors("engine")
            still = all(e.get("wave_running") is False and e["running"] == e["waiting"] == 0 for e in engines)
            return engines if still and engines else None

        return until(rows, "all engines paused")


def gone(pids: set[int], limit_s: float = LIMIT_S) -> None:
    """Wait until none of these processes lives."""
    until(lambda: not any(alive(pid) for pid in pids), f"end of {pids}", limit_s)


def alive(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


@contextlib.contextmanager
def up(topology: str, run_dir: Path, *arguments: str, free_port: bool = True, **env: str) -> Iterator[Deployment]:
    """Bring a shipped topology up, give it, and take it down; nothing of it may be left."""
    listen = ("--set", 'roles.frontend.settings.listen="127.0.0.1:0"') if free_port else ()
    path = str(TOPOLOGIES / f"{topology}.toml")
    started = cli("up", path, "--detach", "--run-dir", str(run_dir), *listen, *arguments, **env)
    assert started.returncode == 0, started.stdout + started.stderr
    deployment = Deployment(run_dir)
    pids = deployment.pids()
    try:
        yield deployment
        with contextlib.suppress(FileNotFoundError, AssertionError):  # a test may have ended it itself
            pids |= deployment.pids()
    finally:
        deployment.cli("down")
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):
                if alive(pid) and deadline_passed(pid):
                    os.kill(pid, signal.SIGKILL)
    gone(pids)


def deadline_passed(pid: int) -> bool:
    """Give one process a little time to end by itself; True where it did not."""
    try:
        psutil.Process(pid).wait(10)
    except psutil.TimeoutExpired:
        return True
    except psutil.NoSuchProcess:
        return False
    return False
