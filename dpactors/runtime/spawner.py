"""Starts, signals and buries the child processes of a supervisor."""

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping

import structlog
from attrs import define

from dpactors.runtime.boot import Boot

COULD_NOT_START = 127
"""Exit code of a child that never was, as in a shell."""
COMMAND = (sys.executable, "-m", "dpactors.runtime.process")


@define
class _Running:
    process: "subprocess.Popen[bytes]"
    incarnation: int
    watch: int
    """Readable once the process has ended."""


class Spawner:
    """The living children by name; tells each end once, from the event loop."""

    def __init__(self, on_exit: Callable[[str, int, int], None]) -> None:
        """`on_exit` gets name, incarnation and exit code (negative for a signal)."""
        self._on_exit = on_exit
        self._running: dict[str, _Running] = {}

    def start(self, boot: Boot, log: int, env: Mapping[str, str], descriptors: tuple[int, ...]) -> None:
        """Start one child; `log` takes its output and is closed here.

        Called in the main thread: the kernel's word of the parent's death is that of the thread that started the child.
        """
        name = boot.process
        assert name not in self._running, f"{name} lives already"
        stdin = os.memfd_create("boot")  # a pipe might not take all of it at once
        try:
            os.write(stdin, boot.to_json())
            os.lseek(stdin, 0, os.SEEK_SET)
            process = subprocess.Popen(
                COMMAND,
                stdin=stdin,
                stdout=log,
                stderr=log,
                env=dict(env),
                pass_fds=descriptors,
                start_new_session=True,
            )
        except OSError as error:
            structlog.get_logger().exception("process.spawn_failed", child=name, reason=str(error))
            asyncio.get_running_loop().call_soon(self._on_exit, name, boot.incarnation, COULD_NOT_START)
            return
        finally:
            os.close(stdin)
            os.close(log)
        watch = os.pidfd_open(process.pid)
        self._running[name] = _Running(process, boot.incarnation, watch)
        asyncio.get_running_loop().add_reader(watch, self._ended, name)

    def signal(self, name: str, word: str) -> None:
        """Send SIG`word` to a child; one that has ended needs none."""
        one = self._running.get(name)
        if one is not None:
            one.process.send_signal(signal.Signals[f"SIG{word}"])

    def pid(self, name: str) -> int | None:
        """The process id of a living child."""
        one = self._running.get(name)
        return None if one is None else one.process.pid

    def close(self) -> None:
        """Kill whatever still lives, with all that it started."""
        for name in list(self._running):
            one = self._running.pop(name)
            asyncio.get_running_loop().remove_reader(one.watch)
            os.close(one.watch)
            _kill_session(one.process.pid)
            one.process.kill()
            one.process.wait()

    def _ended(self, name: str) -> None:
        one = self._running.pop(name)
        asyncio.get_running_loop().remove_reader(one.watch)
        os.close(one.watch)
        _kill_session(one.process.pid)  # before it is waited for: until then nobody else can get its number
        code = one.process.wait()
        self._on_exit(name, one.incarnation, code)


def _kill_session(pid: int) -> None:
    """End what a child left behind: it led a process group of its own."""
    try:
        os.killpg(pid, signal.SIGKILL)
    except (ProcessLookupError, PermissionError):
        return
