"""Who performs jobs: the contract between a process and the rooms that do real work."""

from collections.abc import Callable
from typing import Any, Protocol, TypeAlias

Say: TypeAlias = Callable[[Any], None]
"""Tells the actor something while its job runs (a JobSaid event); safe from any thread."""


class ThreadPerformer(Protocol):
    """Blocking work, one job at a time, in order, on a thread of its own; the event loop never waits for it."""

    def perform(self, job: Any, say: Say) -> Any:
        """Do `job` and return its result; an exception becomes JobFailed."""
        ...

    def feed(self, item: Any) -> None:
        """Called from the event loop while a job runs; must not block."""
        ...

    def cancel(self) -> None:
        """Make the running job give up soon, if it waits for something; must not block."""
        ...


class LoopPerformer(Protocol):
    """Work on the event loop: one task a job."""

    async def perform(self, job: Any, say: Say) -> Any:
        """Do `job`; cancelled by CancelJob or at the end of the process."""
        ...

    def feed(self, item: Any) -> None:
        """Called from the event loop while a job runs; must not block."""
        ...
