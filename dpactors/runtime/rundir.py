"""The run directory: lock, state, logs, traces, control socket; and the short folder of the run's ipc sockets."""

import fcntl
import json
import os
import secrets
import shutil
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from attrs import asdict, define, frozen

SOCKET_PATH_MAX = 107
"""Bytes of a unix socket's path on Linux, its final zero left out."""
LINK_NAME_MAX = 60
"""Left free in a socket folder's path for the name of a link."""
YOUNG_S = 10.0
"""A socket folder without its owner's pid may still be in the making for so long."""
PATIENCE_S = 1.0
"""For a lock that nobody signed: someone looks whether it is free, or sweeps after a killed supervisor."""
LOG_BYTES_MAX = 16 << 20
"""A log larger than this is set aside as NAME.log.1 when its process is started again."""


class RunDirHeld(Exception):
    """Another supervisor has this run directory."""

    def __init__(self, path: Path, pid: int) -> None:
        super().__init__(
            f"{path} is held by a running deployment, pid {pid}. Stop it with dpactors down, or name another --run-dir"
        )
        self.pid = pid


@frozen
class State:
    """state.json: what the other verbs need in order to find a deployment."""

    name: str
    pid: int
    hosts: tuple[str, ...]
    urls: tuple[str, ...]
    links_dir: str
    control: str
    """Path of the control socket."""


@define
class RunDir:
    """A locked run directory of a live supervisor."""

    path: Path
    links_dir: Path
    lock: int

    @property
    def control(self) -> Path:
        """The control socket, in the short folder where the run directory's own path is too long for one."""
        own = self.path / "control.sock"
        return own if len(os.fsencode(own)) <= SOCKET_PATH_MAX else self.links_dir / "control.sock"

    def log(self, process: str) -> Path:
        """The log file of a process."""
        return self.path / "logs" / f"{process}.log"

    def open_log(self, process: str) -> int:
        """A descriptor that appends to the log of a process; a large old one is set aside."""
        path = self.log(process)
        if path.exists() and path.stat().st_size > LOG_BYTES_MAX:
            path.replace(path.with_name(path.name + ".1"))
        return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)

    def forget_sockets(self, process: str, incarnation: int) -> None:
        """Remove the sockets that an ended incarnation listened on; one that was killed left them."""
        for path in self.links_dir.glob(f"*.{incarnation}"):
            if path.name.startswith(f"{process}+"):
                path.unlink(missing_ok=True)

    def write_state(self, state: State) -> None:
        """Replace state.json in one move."""
        draft = self.path / "state.json.new"
        draft.write_text(json.dumps(asdict(state), indent=1) + "\n")
        draft.replace(self.path / "state.json")

    def release(self) -> None:
        """Remove what only a live deployment has; logs and traces stay."""
        shutil.rmtree(self.links_dir, ignore_errors=True)
        for name in ("control.sock", "state.json", "state.json.new", "lock"):
            (self.path / name).unlink(missing_ok=True)
        os.close(self.lock)


def open_run_dir(path: Path) -> RunDir:
    """Make and lock a run directory; raises RunDirHeld where a supervisor has it, OSError where it cannot be made."""
    make_run_dir(path)
    until_s = time.monotonic() + PATIENCE_S
    while (lock := take_lock(path)) is None:
        if (pid := holder(path)) > 0 or time.monotonic() > until_s:
            raise RunDirHeld(path, pid)
        time.sleep(0.01)
    _sign(lock)
    sweep()
    for name in ("control.sock", "state.json"):
        (path / name).unlink(missing_ok=True)
    shutil.rmtree(path / "traces", ignore_errors=True)  # a story never mixes two runs
    for name in ("logs", "traces"):
        (path / name).mkdir(exist_ok=True, mode=0o700)
    return RunDir(path, _make_links_dir(), lock)


def make_run_dir(path: Path) -> None:
    """Make the folder, or take one that is empty or a run directory already; raises OSError for anything else."""
    if path.is_dir() and any(path.iterdir()) and not any((path / name).exists() for name in ("logs", "lock")):
        raise FileExistsError("it holds other files and was never a run directory")
    path.mkdir(parents=True, exist_ok=True, mode=0o700)
    path.chmod(0o700)


def take_lock(path: Path) -> int | None:
    """The lock's descriptor, or None where another process holds it."""
    while True:
        lock = os.open(path / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(lock)
            return None
        # the holder before us removes the file at its end: a lock on a removed file would lock nothing
        if _same_file(lock, path / "lock"):
            return lock
        os.close(lock)


def _sign(lock: int) -> None:
    os.ftruncate(lock, 0)
    os.write(lock, f"{os.getpid()}\n".encode())


def holder(path: Path) -> int:
    """The pid of the live supervisor of a run directory; 0 where there is none, -1 where it has not signed yet."""
    try:
        lock = os.open(path / "lock", os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return 0
    try:
        fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        text = os.read(lock, 32).decode(errors="replace").strip()
        return int(text) if text.isdecimal() and _birth(int(text)) else -1
    finally:
        os.close(lock)
    return 0


def read_state(path: Path) -> State | None:
    """The state of the deployment in a run directory, running or not; None where none ever got that far."""
    try:
        tree: dict[str, Any] = json.loads((path / "state.json").read_text())
        tree.update(hosts=tuple(tree["hosts"]), urls=tuple(tree["urls"]))
        return State(**tree)
    except (OSError, ValueError, TypeError, KeyError):
        return None


def choose_run_dir(given: str | None, name: str | None = None, env: Mapping[str, str] = os.environ) -> Path:
    """The run directory that a verb means: as given, from the environment, or below ``.dpactors``.

    Raises ValueError where a verb without a name finds none or several.
    """
    if given or env.get("DPACTORS_RUN_DIR"):
        return Path(given or env["DPACTORS_RUN_DIR"]).absolute()
    home = Path(".dpactors").absolute()
    if name is not None:
        return home / name
    known = [path for path in sorted(home.glob("*")) if path.is_dir()] if home.is_dir() else []
    live = [path for path in known if holder(path)]
    found = live or known
    if len(found) == 1:
        return found[0]
    if not found:
        raise ValueError(
            f"no deployment was started in {home.parent}. Name one with --run-dir DIR or $DPACTORS_RUN_DIR"
        )
    names = ", ".join(str(path.relative_to(home.parent)) for path in found)
    raise ValueError(f"several deployments are here: {names}. Name one with --run-dir DIR")


# ------------------------------------------------------------- the folder of ipc sockets


def _make_links_dir() -> Path:
    """A folder whose path leaves room for socket names: they may have 107 bytes in all."""
    base = Path(tempfile.gettempdir())
    if len(os.fsencode(base)) > SOCKET_PATH_MAX - LINK_NAME_MAX:
        base = Path("/tmp")  # noqa: S108 - mode 0700 and a random name
    path = base / f"dpactors-{os.getuid()}-{secrets.token_hex(4)}"
    path.mkdir(mode=0o700)
    (path / "pid").write_text(f"{os.getpid()} {_birth(os.getpid())}\n")
    return path


def sweep() -> list[Path]:
    """Remove the socket folders that killed supervisors of this user left behind."""
    gone: list[Path] = []
    for base in {Path(tempfile.gettempdir()), Path("/tmp")}:  # noqa: S108 - only folders of this user are touched
        for path in base.glob(f"dpactors-{os.getuid()}-*"):
            if path.is_dir() and not path.is_symlink() and path.stat().st_uid == os.getuid() and not _in_use(path):
                shutil.rmtree(path, ignore_errors=True)
                gone.append(path)
    return gone


def sweep_run_dir(path: Path) -> None:
    """Remove what a killed supervisor left in its run directory; does nothing where one is alive.

    Under the lock, or a deployment that is brought up in this very moment would lose its files.
    """
    if not path.is_dir():
        return
    lock = take_lock(path)
    if lock is None:
        return
    os.ftruncate(lock, 0)
    sweep()
    for name in ("control.sock", "state.json", "state.json.new", "lock"):
        (path / name).unlink(missing_ok=True)
    os.close(lock)


def _in_use(path: Path) -> bool:
    try:
        pid, birth = (path / "pid").read_text().split()
    except (OSError, ValueError):
        return time.time() - path.stat().st_mtime < YOUNG_S
    return _birth(int(pid)) == birth


def _birth(pid: int) -> str:
    """When a process began, in ticks since boot, which tells it from a later one of its number; empty once it ended."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return ""
    return "" if fields[0] in "ZX" else fields[19]


def _same_file(descriptor: int, path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(descriptor), path.stat())
    except OSError:
        return False
