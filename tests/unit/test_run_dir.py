import fcntl
import os
from pathlib import Path

import pytest

from dpactors.runtime import rundir
from dpactors.runtime.rundir import (
    SOCKET_PATH_MAX,
    RunDirHeld,
    State,
    choose_run_dir,
    holder,
    open_run_dir,
    read_state,
    sweep_run_dir,
)


@pytest.fixture(autouse=True)
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Socket folders go to a place of the test's own."""
    folder = tmp_path / "t"
    folder.mkdir()
    monkeypatch.setattr(rundir.tempfile, "gettempdir", lambda: str(folder))
    monkeypatch.setattr(rundir, "LINK_NAME_MAX", 0)
    return folder


def test_a_run_dir_is_private_and_released_whole(tmp_path: Path) -> None:
    run = open_run_dir(tmp_path / "run")

    assert holder(run.path) == os.getpid()
    assert [path.stat().st_mode & 0o777 for path in (run.path, run.links_dir)] == [0o700, 0o700]

    run.write_state(State("x", os.getpid(), ("node0",), ("http://a:1",), str(run.links_dir), str(run.control)))
    assert read_state(run.path) == State(
        "x", os.getpid(), ("node0",), ("http://a:1",), str(run.links_dir), str(run.control)
    )

    run.release()
    assert sorted(path.name for path in run.path.iterdir()) == ["logs", "traces"]
    assert not run.links_dir.exists()
    assert holder(run.path) == 0


def test_a_held_run_dir_names_its_holder(tmp_path: Path) -> None:
    run = open_run_dir(tmp_path / "run")
    with pytest.raises(RunDirHeld, match=f"pid {os.getpid()}") as held:
        open_run_dir(tmp_path / "run")
    assert held.value.pid == os.getpid()
    run.release()


def test_whoever_only_looks_does_not_hold(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A lock that nobody signed is waited for."""
    path = tmp_path / "run"
    path.mkdir()
    looker = os.open(path / "lock", os.O_RDWR | os.O_CREAT)
    fcntl.flock(looker, fcntl.LOCK_EX)
    monkeypatch.setattr(rundir.time, "sleep", lambda _: os.close(looker))

    open_run_dir(path).release()


def test_a_sweep_spares_a_living_deployment(tmp_path: Path) -> None:
    run = open_run_dir(tmp_path / "run")
    run.write_state(State("x", 1, (), (), "", ""))
    sweep_run_dir(run.path)

    assert read_state(run.path) is not None
    assert run.links_dir.exists()
    run.release()


def test_a_sweep_removes_what_a_killed_supervisor_left(tmp_path: Path) -> None:
    run = open_run_dir(tmp_path / "run")
    run.write_state(State("x", 1, (), (), "", ""))
    (run.links_dir / "pid").write_text("1 12345\n")  # of a process with that number, but born at another time
    os.close(run.lock)
    sweep_run_dir(run.path)

    assert sorted(path.name for path in run.path.iterdir()) == ["logs", "traces"]
    assert not run.links_dir.exists()


def test_a_folder_that_another_up_is_just_making_is_left_alone(temporary: Path) -> None:
    young = temporary / f"dpactors-{os.getuid()}-0123abcd"
    young.mkdir()
    assert young not in rundir.sweep()

    os.utime(young, (0, 0))
    assert young in rundir.sweep()


def test_a_deep_run_dir_has_its_control_socket_in_the_short_folder(tmp_path: Path) -> None:
    deep = tmp_path / ("d" * SOCKET_PATH_MAX)
    run = open_run_dir(deep)
    assert run.control == run.links_dir / "control.sock"
    run.release()


def test_a_large_log_is_set_aside(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = open_run_dir(tmp_path / "run")
    run.log("engine.0").write_text("x" * 20)
    monkeypatch.setattr(rundir, "LOG_BYTES_MAX", 10)
    os.close(run.open_log("engine.0"))

    assert run.log("engine.0").read_text() == ""
    assert (run.path / "logs/engine.0.log.1").read_text() == "x" * 20
    run.release()


def test_which_run_dir_is_meant(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert choose_run_dir("given", "pair", {"DPACTORS_RUN_DIR": "other"}) == tmp_path / "given"
    assert choose_run_dir(None, "pair", {"DPACTORS_RUN_DIR": "other"}) == tmp_path / "other"
    assert choose_run_dir(None, "pair", {}) == tmp_path / ".dpactors/pair"
    with pytest.raises(ValueError, match="no deployment was started"):
        choose_run_dir(None, None, {})

    for name in ("pair", "quad"):
        (tmp_path / ".dpactors" / name).mkdir(parents=True)
    with pytest.raises(ValueError, match=r"\.dpactors/pair, \.dpactors/quad\. Name one with --run-dir"):
        choose_run_dir(None, None, {})

    run = open_run_dir(tmp_path / ".dpactors/quad")
    assert choose_run_dir(None, None, {}) == run.path
    run.release()


def test_a_folder_of_other_files_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "traces").mkdir()
    (tmp_path / "traces" / "mine").write_text("keep")
    tmp_path.chmod(0o755)

    with pytest.raises(FileExistsError, match="holds other files"):
        open_run_dir(tmp_path)

    assert (tmp_path / "traces" / "mine").read_text() == "keep"
    assert tmp_path.stat().st_mode & 0o777 == 0o755
