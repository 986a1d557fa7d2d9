"""Runs the jobs of a process: on the loop, or each thread performer's on a thread of its own."""

import asyncio
import inspect
import queue
import threading
from collections.abc import Callable, Mapping
from typing import Any, TypeAlias, cast

from attrs import define

from dpactors.actor.address import Address
from dpactors.actor.effects import Event, JobDone, JobFailed, JobSaid
from dpactors.actor.performer import LoopPerformer, ThreadPerformer

Performers: TypeAlias = Mapping[type, "ThreadPerformer | LoopPerformer"]
"""Job class to who performs it; one performer may serve several classes."""
Post: TypeAlias = Callable[[Address, Event, str], None]

JOIN_LIMIT_S = 1.0
"""How long a step thread may take to end at close; it is a daemon, so the process ends without it."""


@define
class _Running:
    performer: Any
    task: "asyncio.Task[None] | None"


class Jobs:
    """All running jobs of one process, by actor and key."""

    def __init__(self, performers: Performers, post: Post) -> None:
        self._performers = performers
        self._post = post
        self._running: dict[tuple[Address, str], _Running] = {}
        self._threads: dict[int, _StepThread] = {}

    def run(self, address: Address, key: str, job: Any, trace: str) -> None:
        """Start a job; its events go to `address` under `key`."""
        assert (address, key) not in self._running, f"{address} runs job {key} already"
        performer: Any = self._performers.get(cast("type[Any]", type(job)))
        if performer is None:
            self._post(address, JobFailed(key, "LookupError", f"nobody here performs {type(job).__name__}"), trace)
            return
        loop = asyncio.get_running_loop()

        def say(item: Any) -> None:
            loop.call_soon_threadsafe(self._post, address, JobSaid(key, item), trace)

        def end(event: Event) -> None:
            self._running.pop((address, key), None)
            self._post(address, event, trace)

        if inspect.iscoroutinefunction(performer.perform):
            task = loop.create_task(_on_loop(performer, key, job, say, end))
            self._running[address, key] = _Running(performer, task)
            return
        self._running[address, key] = _Running(performer, None)
        thread = self._threads.get(id(performer))
        if thread is None:
            thread = self._threads[id(performer)] = _StepThread(f"{address} steps")
        thread.put(lambda: _in_thread(performer, key, job, say), lambda event: loop.call_soon_threadsafe(end, event))

    def feed(self, address: Address, key: str, item: Any) -> None:
        """Hand an item to a running job; one that ended drops it."""
        running = self._running.get((address, key))
        if running is not None:
            running.performer.feed(item)

    def cancel(self, address: Address, key: str) -> None:
        """Ask a running job to give up."""
        running = self._running.get((address, key))
        if running is None:
            return
        if running.task is not None:
            running.task.cancel()
        else:
            running.performer.cancel()

    async def close(self) -> None:
        """End every job; a thread that does not come back in time is left to die with the process."""
        tasks = [one.task for one in self._running.values() if one.task is not None]
        for one in self._running.values():
            if one.task is not None:
                one.task.cancel()
            else:
                one.performer.cancel()
        for thread in self._threads.values():
            thread.stop()
        await asyncio.gather(*tasks, return_exceptions=True)
        for thread in self._threads.values():
            await asyncio.to_thread(thread.join, JOIN_LIMIT_S)


class _StepThread:
    """One daemon thread that performs blocking jobs in order."""

    def __init__(self, name: str) -> None:
        self._work: queue.SimpleQueue[tuple[Callable[[], Event], Callable[[Event], Any]] | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._loop, name=name, daemon=True)
        self._thread.start()

    def put(self, work: Callable[[], Event], done: Callable[[Event], Any]) -> None:
        self._work.put((work, done))

    def stop(self) -> None:
        self._work.put(None)

    def join(self, limit_s: float) -> None:
        self._thread.join(limit_s)

    def _loop(self) -> None:
        while (item := self._work.get()) is not None:
            work, done = item
            event = work()
            try:
                done(event)
            except RuntimeError:  # the loop closed while this step ran: nobody waits for it any more
                return


def _in_thread(performer: Any, key: str, job: Any, say: Callable[[Any], None]) -> Event:
    try:
        return JobDone(key, performer.perform(job, say))
    except Exception as error:  # noqa: BLE001 - whatever it is, the actor decides what it means
        return JobFailed(key, type(error).__name__, str(error))


async def _on_loop(
    performer: Any, key: str, job: Any, say: Callable[[Any], None], end: Callable[[Event], None]
) -> None:
    try:
        event: Event = JobDone(key, await performer.perform(job, say))
    except asyncio.CancelledError:
        end(JobFailed(key, "CancelledError", "cancelled"))
        raise
    except Exception as error:  # noqa: BLE001 - whatever it is, the actor decides what it means
        event = JobFailed(key, type(error).__name__, str(error))
    end(event)
