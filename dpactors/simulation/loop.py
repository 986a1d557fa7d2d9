"""An asyncio loop in virtual time, and a share of a loop that can be stopped as SIGSTOP stops a process."""

import asyncio
import selectors
from collections.abc import Callable
from typing import Any, TypeAlias

from dpactors.simulation.world import Deadlock

Ready: TypeAlias = list[tuple[selectors.SelectorKey, int]]


class VirtualLoop(asyncio.SelectorEventLoop):
    """Waits for nothing: when nothing is ready its clock jumps to the next timer; raises Deadlock where none is set."""

    def __init__(self) -> None:
        self._now_s = 0.0
        super().__init__(_Jumps(self.jump))

    def time(self) -> float:
        """Virtual seconds since the loop was made."""
        return self._now_s

    def jump(self, wait_s: float | None) -> None:
        """Nothing is ready for `wait_s`, None for ever."""
        if wait_s is None:
            raise Deadlock("nothing runnable and no timer")
        self._now_s += max(0.0, wait_s)


class _Jumps(selectors.SelectSelector):
    def __init__(self, jump: Callable[[float | None], None]) -> None:
        super().__init__()
        self._jump = jump

    def select(self, timeout: float | None = None) -> Ready:
        ready = super().select(0)
        if not ready:
            self._jump(timeout)
        return ready


class StoppableLoop:
    """What a process does on a loop, as far as links need one; stopped, all that falls due waits in order."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._stopped = False
        self._due: list[tuple[Callable[..., object], tuple[Any, ...]]] = []
        self.time = loop.time
        self.create_future = loop.create_future
        self.call_exception_handler = loop.call_exception_handler

    def call_soon(self, callback: Callable[..., object], *args: Any) -> asyncio.Handle:
        """As the loop's own."""
        return self._loop.call_soon(self._run, callback, args)

    def call_later(self, delay_s: float, callback: Callable[..., object], *args: Any) -> asyncio.TimerHandle:
        """As the loop's own."""
        return self._loop.call_later(delay_s, self._run, callback, args)

    def stop(self) -> None:
        """From now on nothing runs."""
        self._stopped = True

    def go_on(self) -> None:
        """Run what fell due, then as before."""
        self._stopped = False
        due, self._due = self._due, []
        for callback, args in due:
            self._loop.call_soon(self._run, callback, args)

    def _run(self, callback: Callable[..., object], args: tuple[Any, ...]) -> None:
        if self._stopped:
            self._due.append((callback, args))
        else:
            callback(*args)
