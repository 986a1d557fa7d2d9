"""Real processes under a real supervisor, with actors of a few lines: start, restart, budget, limits, signals, leftovers."""

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from dpactors.runtime.orders import NotRunning, ask
from dpactors.runtime.rundir import holder, read_state
from tests.live.deployment import REPOSITORY, alive, cli, gone, until
from tests.live.tiny import TOPOLOGY


class Tiny:
    """One supervisor over tiny actors."""

    def __init__(self, folder: Path, settings: str = "", more: str = "") -> None:
        self.run_dir = folder / "run"
        file = folder / "tiny.toml"
        file.write_text(TOPOLOGY.replace("SETTINGS", settings) + more)
        self.command = [sys.executable, "-m", "tests.live.tiny", str(file), str(self.run_dir)]
        self.supervisor = self.start()

    def start(self) -> "subprocess.Popen[str]":
        pipe = subprocess.PIPE
        return subprocess.Popen(self.command, cwd=REPOSITORY, text=True, stdout=pipe, stderr=subprocess.DEVNULL)

    def rows(self) -> dict[str, dict[str, Any]]:
        state = read_state(self.run_dir)
        if state is None:
            return {}
        try:
            return {row["address"]: row for row in ask(state.control, verb="ps")["actors"]}
        except NotRunning:
            return {}

    def ready(self) -> dict[str, dict[str, Any]]:
        """Wait until every actor is ready; their rows."""

        def rows() -> dict[str, dict[str, Any]] | None:
            found = self.rows()
            return found if found and all(row["state"] == "ready" for row in found.values()) else None

        return until(rows, "all actors ready")

    def ended(self) -> tuple[int, str]:
        """Wait for the supervisor's end: its code and what it said."""
        said, _ = self.supervisor.communicate(timeout=60)
        return self.supervisor.returncode, said.strip()

    def children(self) -> set[int]:
        return {child.pid for child in psutil.Process(self.supervisor.pid).children(recursive=True)}

    def leftovers(self) -> list[str]:
        return [one.name for one in self.run_dir.iterdir() if one.name not in ("logs", "traces")]


@contextlib.contextmanager
def tiny(folder: Path, settings: str = "", more: str = "") -> Iterator[Tiny]:
    made = Tiny(folder, settings, more)
    try:
        yield made
    finally:
        if made.supervisor.poll() is None:
            made.supervisor.kill()
        made.supervisor.communicate()


def test_a_killed_child_is_greeted_again_as_a_new_incarnation(tmp_path: Path) -> None:
    with tiny(tmp_path) as deployment:
        before = deployment.ready()
        os.kill(before["listener.1"]["pid"], signal.SIGKILL)

        def back() -> dict[str, Any] | None:
            row = deployment.rows().get("listener.1", {})
            return row if row.get("restarts") == 1 and row["state"] == "ready" else None

        after = until(back, "listener.1 back")

        assert after["incarnation"] > before["listener.1"]["incarnation"]
        assert after["pid"] != before["listener.1"]["pid"]
        assert deployment.rows()["listener.0"]["pid"] == before["listener.0"]["pid"]


def test_a_spent_budget_ends_all_with_the_cause(tmp_path: Path) -> None:
    with tiny(tmp_path, "fails_after_s = 0.05") as deployment:
        code, said = deployment.ended()

        assert code == 1
        assert "greeter.0 ended with exit code 1, after 3 restarts" in said
        assert "as it was told to" in said
        assert deployment.leftovers() == []


def test_a_child_that_refuses_its_input_is_not_tried_again(tmp_path: Path) -> None:
    with tiny(tmp_path, "refuses = true") as deployment:
        code, said = deployment.ended()

        assert code == 1
        assert said == "greeter.0 refused its input (exit code 2): no such thing"
        assert deployment.run_dir.joinpath("logs/greeter.0.log").read_text().count("process.start") == 1


def test_a_start_that_hangs_names_who_waits_for_what(tmp_path: Path) -> None:
    limits = "\n[roles.late]\nactor = 'listener'\nplace = { node0 = 1 }\nstart_limit_s = 0.5\nsettings = { waits_for_ever = true }\n"
    with tiny(tmp_path, "", f'{limits}\n[[wires]]\nfrom = "greeter.hellos"\nto = "late.hellos"\n') as deployment:
        code, said = deployment.ended()

        assert code == 1
        assert said.startswith("late.0 was not ready after 0.5 s: late.0 was ")


def test_a_second_up_is_refused_with_the_holder(tmp_path: Path) -> None:
    with tiny(tmp_path) as deployment:
        deployment.ready()
        second = subprocess.run(deployment.command, cwd=REPOSITORY, capture_output=True, text=True, check=False)

        assert second.returncode == 2
        assert f"pid {deployment.supervisor.pid}" in second.stderr
        assert all(row["state"] == "ready" for row in deployment.rows().values())


def test_down_twice_at_once_is_one_ordered_stop(tmp_path: Path) -> None:
    with tiny(tmp_path) as deployment:
        deployment.ready()
        pids = deployment.children()
        command = [sys.executable, "-m", "dpactors", "down", "--run-dir", str(deployment.run_dir)]
        both = [subprocess.Popen(command, cwd=REPOSITORY, stdout=subprocess.DEVNULL) for _ in range(2)]

        assert [one.wait(60) for one in both] == [0, 0]
        assert deployment.ended() == (0, "dpactors down")
        assert not any(alive(pid) for pid in pids)
        assert deployment.leftovers() == []
        assert "deployment.killing" not in deployment.run_dir.joinpath("logs/supervisor.log").read_text()
        assert cli("down", "--run-dir", str(deployment.run_dir)).returncode == 0


def test_a_frozen_child_is_suspect_then_goes_on(tmp_path: Path) -> None:
    with tiny(tmp_path) as deployment:
        before = deployment.ready()
        run_dir = ("--run-dir", str(deployment.run_dir))
        assert cli("fault", "stop", "listener.0", *run_dir).returncode == 0
        until(lambda: deployment.rows()["listener.0"]["state"] == "suspect", "listener.0 suspect")
        assert cli("fault", "cont", "listener.0", *run_dir).returncode == 0

        assert deployment.ready()["listener.0"]["incarnation"] == before["listener.0"]["incarnation"]


def test_a_second_interrupt_gets_past_a_frozen_child_at_once(tmp_path: Path) -> None:
    with tiny(tmp_path) as deployment:
        rows = deployment.ready()
        os.kill(rows["listener.0"]["pid"], signal.SIGSTOP)
        log = deployment.run_dir / "logs/supervisor.log"
        deployment.supervisor.send_signal(signal.SIGINT)
        until(lambda: "deployment.stopping" in log.read_text(), "the first request taken")
        deployment.supervisor.send_signal(signal.SIGINT)

        assert deployment.ended() == (130, "SIGINT")
        assert deployment.leftovers() == []


@pytest.mark.parametrize("moment", ["ready", "starting"])
def test_a_killed_supervisor_leaves_nothing(moment: str, tmp_path: Path) -> None:
    with tiny(tmp_path) as deployment:
        if moment == "ready":
            deployment.ready()
        pids = until(lambda: len(deployment.children()) == 3 and deployment.children(), "three children")
        links_dir = Path(read_state(deployment.run_dir).links_dir)  # type: ignore[union-attr]
        if moment == "ready":
            assert cli("fault", "kill", "supervisor", "--run-dir", str(deployment.run_dir)).returncode == 0
        else:
            deployment.supervisor.kill()
        # The promise is 2 s; a child that still imports its modules on a busy machine cannot hear of anything sooner.
        gone(pids, limit_s=2.0 if moment == "ready" else 20.0)

        if moment == "ready":  # one that dies before it knows its run directory cannot sweep it; the next up does
            assert not links_dir.exists()
            assert deployment.leftovers() == []


def test_an_up_in_the_moment_of_a_kill_keeps_its_files(tmp_path: Path) -> None:
    """The dying processes of the one sweep the run directory that the next one has just taken."""
    with tiny(tmp_path) as deployment:
        deployment.ready()
        old = deployment.children()
        deployment.supervisor.kill()
        deployment.supervisor.communicate()
        deployment.supervisor = deployment.start()
        deployment.ready()
        gone(old)

        assert holder(deployment.run_dir) == deployment.supervisor.pid
        assert read_state(deployment.run_dir) is not None
        assert cli("down", "--run-dir", str(deployment.run_dir)).returncode == 0
        assert deployment.ended() == (0, "dpactors down")
