"""How ranks meet without a server: gloo's store, whose keys travel as messages between actors."""

import threading
import time
from collections.abc import Callable
from datetime import timedelta
from typing import Any

from torch._C._distributed_c10d import Store

from dpactors.engine.errors import MeetingFailed
from dpactors.serving.jobs import KeySet


class Mailbox:
    """Rendezvous keys that this rank knows; fed by one thread, awaited by another.

    A key begins with its epoch, so keys that arrive before their epoch's join, or after it, do no harm.
    """

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._known: dict[str, bytes] = {}
        self._cancelled = False

    def put(self, key: str, value: bytes) -> None:
        """Make a key known."""
        with self._changed:
            self._known[key] = value
            self._changed.notify_all()

    def cancel(self) -> None:
        """End the wait that runs now or is about to begin."""
        with self._changed:
            self._cancelled = True
            self._changed.notify_all()

    def raise_if_cancelled(self) -> None:
        """Raises MeetingFailed where somebody cancelled the meeting."""
        with self._changed:
            if self._cancelled:
                raise MeetingFailed("the meeting of ranks was cancelled")

    def rearm(self) -> None:
        """Forget a cancel: its job has ended."""
        with self._changed:
            self._cancelled = False

    def forget_before(self, epoch: int) -> None:
        """Drop the keys of older epochs."""
        with self._changed:
            self._known = {key: value for key, value in self._known.items() if _epoch_of(key) >= epoch}

    def knows(self, keys: list[str]) -> bool:
        """Whether all of `keys` are known by now."""
        with self._changed:
            return all(key in self._known for key in keys)

    def wait(self, keys: list[str], deadline_s: float) -> list[bytes]:
        """The values of `keys`, once all are known; `deadline_s` is on the monotonic clock.

        Raises MeetingFailed when the deadline passes or somebody cancels.
        """

        def settled() -> bool:
            return self._cancelled or all(key in self._known for key in keys)

        with self._changed:
            settled_in_time = self._changed.wait_for(settled, max(0.0, deadline_s - time.monotonic()))
            if self._cancelled:
                raise MeetingFailed("the meeting of ranks was cancelled")
            if not settled_in_time:
                missing = ", ".join(key for key in keys if key not in self._known)
                raise MeetingFailed(f"ranks did not meet in time: nobody has set {missing}")
            return [self._known[key] for key in keys]


def _epoch_of(key: str) -> int:
    epoch, _, _ = key.partition("/")
    return int(epoch) if epoch.isdecimal() else -1


class CarriedStore(Store):
    """A torch store for one epoch: `set` says KeySet, `get` waits for the mailbox.

    ProcessGroupGloo of torch 2.13 calls only set, get and wait of it, from the thread that builds the group.
    """

    def __init__(self, mailbox: Mailbox, epoch: int, say: Callable[[Any], None], timeout_s: float) -> None:
        super().__init__()
        self._mailbox = mailbox
        self._epoch = epoch
        self._say = say
        self._deadline_s = time.monotonic() + timeout_s
        self.failure: MeetingFailed | None = None
        """What a wait raised: an exception that crosses C++ comes back as another class."""

    def _key(self, key: str) -> str:
        return f"{self._epoch}/{key}"

    def _wait(self, keys: list[str]) -> list[bytes]:
        try:
            return self._mailbox.wait([self._key(key) for key in keys], self._deadline_s)
        except MeetingFailed as failure:
            self.failure = failure
            raise

    def set(self, key: str, value: bytes | str) -> None:  # pyright: ignore[reportIncompatibleMethodOverride]
        """Tell every rank."""
        data = value.encode() if isinstance(value, str) else bytes(value)
        self._mailbox.put(self._key(key), data)
        self._say(KeySet(self._key(key), data))

    def get(self, key: str) -> bytes:  # pyright: ignore[reportIncompatibleMethodOverride]
        """The value of `key`, once some rank has set it."""
        return self._wait([key])[0]

    def wait(self, keys: list[str], timeout: timedelta | None = None) -> None:  # pyright: ignore[reportIncompatibleMethodOverride]
        """Return once all `keys` are set; the meeting's own deadline counts, not `timeout`."""
        self._wait(keys)

    def check(self, keys: list[str]) -> bool:  # pyright: ignore[reportIncompatibleMethodOverride]
        """Whether all `keys` are set."""
        return self._mailbox.knows([self._key(key) for key in keys])

    def set_timeout(self, timeout: timedelta) -> None:  # pyright: ignore[reportIncompatibleMethodOverride]
        """Ignored: the meeting has one deadline."""
