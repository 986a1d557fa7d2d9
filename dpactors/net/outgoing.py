"""The sending half of a link: what waits, what is on its way, and how much more may go. Pure.

Rule: a message is in exactly one place: waiting, on its way, acknowledged (forgotten) or abandoned (handed back).
"""

from collections import deque
from collections.abc import Sequence
from typing import Any, TypeAlias

from dpactors.net.limits import LinkCounters, LinkLimits

Parcel: TypeAlias = tuple[int, str, Any, bytes]
"""Route, trace, message and its envelope, encoded once. A tuple, for one is made per message: a class costs 0.5 us."""


class Outgoing:
    """Sequence numbers, credit and resend towards one incarnation of a peer, plus the newest of each latest route."""

    def __init__(self, limits: LinkLimits, counters: LinkCounters) -> None:
        self._limits = limits
        self._counters = counters
        self.queue: deque[Parcel] = deque()
        """What waits, oldest first."""
        self._waiting_bytes = 0
        self._waiting_again = 0
        """How many of those that wait, from the first, were sent before."""
        self._flying: deque[Parcel] = deque()
        self._flying_bytes = 0
        self.next_sequence = 0
        """Of the first parcel that waits."""
        self._sent_until = 0
        """One past the highest sequence ever sent; after a rewind above `next_sequence`."""
        self._rejected: set[int] = set()
        """Sequences on their way that the peer could not read; they were handed back already."""
        self.newest: dict[int, bytes] = {}
        """Envelope of the newest value of each route that was not sent yet."""
        self._latest_stamp = 0
        self._latest_flying: deque[tuple[int, list[bytes]]] = deque()
        """Frames of newest values by stamp; never more than `latest_frames`."""
        self._latest_sent_s = 0.0

    @property
    def waiting(self) -> int:
        """Reliable messages that were not sent yet, or must be sent again."""
        return len(self.queue)

    @property
    def flying(self) -> int:
        """Reliable messages sent and not acknowledged."""
        return len(self._flying)

    def put(self, parcel: Parcel) -> bool:
        """Queue a reliable message; False where the outbox is full."""
        waiting, limits = self.queue, self._limits
        weight = self._waiting_bytes + len(parcel[3])
        if waiting and (len(waiting) >= limits.outbox_messages or weight > limits.outbox_bytes):
            return False
        waiting.append(parcel)
        self._waiting_bytes = weight
        return True

    def put_latest(self, route: int, data: bytes) -> None:
        """Keep `data` as the newest of its route; an unsent older one is forgotten."""
        if self.newest.pop(route, None) is not None:
            self._counters.coalesced += 1
        self.newest[route] = data

    def next_single(self) -> tuple[int, bytes] | None:
        """Sequence and bytes of the only parcel, where exactly one waits that was never sent and none is on its way."""
        queue = self.queue
        if len(queue) != 1 or self._flying or self._waiting_again or self.newest:
            return None
        first = self.next_sequence
        self._flying.append(queue.popleft())
        self._flying_bytes, self._waiting_bytes = self._waiting_bytes, 0
        self.next_sequence = self._sent_until = first + 1
        self._counters.messages_sent += 1
        return first, self._flying[0][3]

    def next_batch(self) -> tuple[int, list[bytes]] | None:
        """First sequence and parcels of the next frame, as far as credit goes; None where nothing may go."""
        waiting, flying, limits = self.queue, self._flying, self._limits
        if not waiting:
            return None
        first = self.next_sequence
        room = min(limits.batch_messages, limits.window_messages - len(flying))
        batch_bytes = self._waiting_bytes
        if (
            len(waiting) <= room
            and batch_bytes <= limits.batch_bytes
            and (self._flying_bytes + batch_bytes <= limits.window_bytes)
        ):
            batch = [parcel[3] for parcel in waiting]
            flying.extend(waiting)
            waiting.clear()
            self._flying_bytes += batch_bytes
        else:
            batch, batch_bytes = self._share(room)
        if not batch:
            return None
        self._waiting_bytes -= batch_bytes
        if self._waiting_again:
            again = min(self._waiting_again, len(batch))
            self._waiting_again -= again
            self._counters.resent += again
        self.next_sequence = first + len(batch)
        self._sent_until = max(self._sent_until, self.next_sequence)
        self._counters.messages_sent += len(batch)
        return first, batch

    def _share(self, room: int) -> tuple[list[bytes], int]:
        """As many parcels, oldest first, as fit a frame and the credit, and their bytes."""
        waiting, flying, limits = self.queue, self._flying, self._limits
        batch: list[bytes] = []
        batch_bytes = 0
        while waiting and len(batch) < room:
            parcel = waiting[0]
            data = parcel[3]
            size = len(data)
            if batch and batch_bytes + size > limits.batch_bytes:
                break
            if flying and self._flying_bytes + size > limits.window_bytes:
                break
            flying.append(waiting.popleft())
            batch.append(data)
            batch_bytes += size
            self._flying_bytes += size
        return batch, batch_bytes

    def next_latest(self, now_s: float) -> tuple[int, list[bytes]] | None:
        """Stamp and envelopes of the next frame of newest values; None where there is none or no credit."""
        if not self.newest or len(self._latest_flying) >= self._limits.latest_frames:
            return None
        batch: list[bytes] = []
        size = 0
        for route, data in list(self.newest.items()):
            if batch and (size + len(data) > self._limits.batch_bytes or len(batch) >= self._limits.batch_messages):
                break
            batch.append(data)
            size += len(data)
            del self.newest[route]
        self._latest_stamp += 1
        self._latest_sent_s = now_s
        self._latest_flying.append((self._latest_stamp, batch))
        self._counters.messages_sent += len(batch)
        return self._latest_stamp, batch

    def latest_again(self, now_s: float, heard_s: float) -> Sequence[tuple[int, list[bytes]]]:
        """Frames of newest values that were lost: the peer spoke long after they went, and acknowledged them not.

        A peer that says nothing gets nothing again, so that a stopped one does not gather a pile.
        """
        if not self._latest_flying or heard_s - self._latest_sent_s < self._limits.heartbeat_s:
            return ()
        self._latest_sent_s = now_s
        return tuple(self._latest_flying)

    def acknowledged(self, ack: int, latest_ack: int) -> bool:
        """The peer has all below `ack`; False where it speaks of what was never sent, and nothing changes."""
        if ack > self._sent_until or latest_ack > self._latest_stamp:
            return False
        latest = self._latest_flying
        while latest and latest[0][0] <= latest_ack:
            latest.popleft()
        done = ack - (self.next_sequence - len(self._flying))
        if done <= 0:
            return True
        flying = self._flying
        if done == len(flying):
            flying.clear()
            self._flying_bytes = done = 0
        while done:
            done -= 1
            if flying:
                self._flying_bytes -= len(flying.popleft()[3])
            else:  # a rewind took it back before this acknowledgement came
                self._waiting_bytes -= len(self.queue.popleft()[3])
                self._waiting_again -= 1
                self.next_sequence += 1
        if self._rejected:
            self._rejected = {one for one in self._rejected if one >= ack}
        return True

    def rewind(self, sequence: int) -> bool:
        """Send again from `sequence`, all below it is acknowledged; False where it was never sent."""
        if not self.acknowledged(sequence, 0):
            return False
        if sequence < self.next_sequence - len(self._flying):
            return True  # a late request; what it asks for has arrived since
        self._waiting_again += len(self._flying)
        self.next_sequence -= len(self._flying)
        self.queue.extendleft(reversed(self._flying))
        self._flying.clear()
        self._waiting_bytes += self._flying_bytes
        self._flying_bytes = 0
        return True

    def reject(self, sequence: int) -> Parcel | None:
        """The parcel that the peer could not read, once; None where it is not on its way."""
        index = sequence - (self.next_sequence - len(self._flying))
        if not 0 <= index < len(self._flying) or sequence in self._rejected:
            return None
        self._rejected.add(sequence)
        return self._flying[index]

    def abandon(self) -> list[tuple[Parcel, bool]]:
        """Everything not acknowledged, oldest first, and whether it was sent; the next incarnation starts from zero."""
        first = self.next_sequence - len(self._flying)
        sent = len(self._flying) + self._waiting_again
        left = [
            (parcel, number < sent)
            for number, parcel in enumerate((*self._flying, *self.queue))
            if first + number not in self._rejected
        ]
        self._flying.clear()
        self.queue.clear()
        self._rejected.clear()
        self.newest.clear()
        self._flying_bytes = self._waiting_bytes = self._waiting_again = 0
        self.next_sequence = self._sent_until = 0
        self._latest_flying.clear()
        self._latest_stamp = 0
        return left
