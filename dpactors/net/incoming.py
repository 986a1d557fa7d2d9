"""The receiving half of a link: what is expected next, what was acknowledged, what is asked for again. Pure."""

from collections import deque

from dpactors.net import frames
from dpactors.net.frames import Frame
from dpactors.net.limits import LinkCounters, LinkLimits
from dpactors.net.notices import BadFrame, Delivered, LinkNotice

REJECTS_MAX = 256
"""Unreadable messages whose rejection still has to be told."""


class Incoming:
    """Order, duplicates and acknowledgement of what one incarnation of a peer sends."""

    def __init__(self, limits: LinkLimits, counters: LinkCounters) -> None:
        self._limits = limits
        self._counters = counters
        self._ack_messages = max(1, min(limits.ack_messages, limits.window_messages // 2))
        self._ack_frames = max(1, limits.latest_frames // 2)
        self.reset()

    def reset(self) -> None:
        """A new incarnation starts from zero."""
        self.received = 0
        """Messages taken so far, and so the sequence expected next."""
        self.latest_received = 0
        """Stamp up to which every frame of newest values arrived."""
        self._latest_of: dict[int, int] = {}
        self._told = 0
        self._latest_told = 0
        self._untold_bytes = 0
        self._untold_since_s: float | None = None
        self._again = False
        self._asked_for = -1
        self._asked_s = 0.0
        self.nack_due = False
        self.rejects: deque[tuple[int, str]] = deque(maxlen=REJECTS_MAX)

    def skip(self, first: int, count: int, now_s: float) -> int | None:
        """How many of a frame's leading messages arrived before; None where one before it is missing."""
        behind = self.received - first
        if behind < 0:
            self._counters.gaps += 1
            if self._asked_for != self.received or now_s - self._asked_s >= self._limits.renack_s:
                self._asked_for, self._asked_s, self.nack_due = self.received, now_s, True
            return None
        doubled = min(behind, count)
        if doubled:
            self._counters.duplicates += doubled
            self._again = True  # the peer sends again what it has no acknowledgement for
        return doubled

    def took(self, count: int, size: int, now_s: float) -> None:
        """`count` new messages in order were taken out of a frame of `size` bytes."""
        self.received += count
        self._untold_bytes += size
        if self._untold_since_s is None:
            self._untold_since_s = now_s

    def latest(self, stamp: int, now_s: float) -> None:
        """A frame of newest values arrived; one ahead of a lost one counts when it comes again."""
        if stamp == self.latest_received + 1:
            self.latest_received = stamp
        if self._untold_since_s is None:
            self._untold_since_s = now_s

    def is_newest(self, route: int, stamp: int) -> bool:
        """Whether no newer value of this route arrived before; remembers it."""
        if stamp <= self._latest_of.get(route, 0):
            self._counters.coalesced += 1
            return False
        self._latest_of[route] = stamp
        return True

    def take(self, peer: str, frame: Frame, size: int, now_s: float) -> list[LinkNotice]:
        """The messages of a DATA frame of `size` bytes that did not arrive before, opened and checked."""
        notices: list[LinkNotice] = []
        skip = self.skip(frame.first, len(frame.body), now_s)
        if skip is None or skip == len(frame.body):
            return notices
        for offset, item in enumerate(frame.body[skip:] if skip else frame.body, skip):
            try:
                route, trace, message = frames.open_envelope(item)
                notices.append(Delivered(peer, route, trace, message))
            except Exception as error:  # noqa: BLE001 - a hostile message must not take the link down
                # Asking again would not help, so it counts as taken and its sender is told.
                unreadable = self._unreadable(peer, error)
                notices.append(unreadable)
                self.rejects.append((frame.first + offset, unreadable.reason))
                self._counters.messages_delivered -= 1
        count = len(frame.body) - skip
        self._counters.messages_delivered += count
        self.took(count, size, now_s)
        return notices

    def take_latest(self, peer: str, frame: Frame, now_s: float) -> list[LinkNotice]:
        """The messages of a LATEST frame that are the newest of their route."""
        notices: list[LinkNotice] = []
        self.latest(frame.first, now_s)
        for item in frame.body:
            try:
                route, trace, message = frames.open_envelope(item)
            except Exception as error:  # noqa: BLE001 - a hostile message must not take the link down
                notices.append(self._unreadable(peer, error))
                continue
            if self.is_newest(route, frame.first):
                notices.append(Delivered(peer, route, trace, message))
                self._counters.messages_delivered += 1
        return notices

    def _unreadable(self, peer: str, error: Exception) -> BadFrame:
        self._counters.malformed += 1
        return BadFrame(peer, f"{type(error).__name__}: {error}"[: frames.TEXT_CHARS_MAX])

    def ack_due(self, now_s: float) -> bool:
        """Whether an acknowledgement should go now, without waiting for a message to ride on."""
        since = self._untold_since_s
        if since is None or self._again:
            return self._again
        return (
            self.received - self._told >= self._ack_messages
            or self.latest_received - self._latest_told >= self._ack_frames
            or self._untold_bytes >= self._limits.ack_bytes
            or now_s - since >= self._limits.ack_s
        )

    @property
    def acknowledged(self) -> tuple[int, int]:
        """The last acknowledgement that went out."""
        return self._told, self._latest_told

    def told(self) -> None:
        """A frame with the current acknowledgement goes out."""
        self._told, self._latest_told = self.received, self.latest_received
        self._untold_bytes, self._untold_since_s, self._again = 0, None, False
