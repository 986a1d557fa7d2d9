"""What goes between this rank and one other: out through a mailbox of this rank's segment, in through one of theirs.

Messages are cut into chunks that fit a slot. Chunk n of an epoch lies in slot n % SLOTS, under a stamp of epoch and
number that no other chunk ever has; the writer uses a slot again once the reader says that it took what was there.
"""

import os
from typing import Final

import numpy as np

from dpactors.engine.segment import (
    CHUNK_BYTES,
    CLOSED,
    KIND,
    ROW_BYTES,
    SLOTS,
    STAMP,
    TOKENS,
    WAITING,
    WORD_BYTES,
    WORDS,
    Bytes,
    Fence,
    Segment,
    payload,
    taken,
)

EPOCH_SHIFT = 40
"""A stamp is the epoch's low 24 bits over a chunk number of 40, which a thousand chunks a ms take 34 years to use."""
EPOCH_MASK = (1 << 24) - 1
WAIT_BITS = 63
"""Ranks that share a bit wake each other for nothing, which does no harm."""


def bit_of(rank: int) -> int:
    """A rank's bit in a WAITING word."""
    return 1 << rank % WAIT_BITS


class Lane:
    """One peer: a message out and a message in at a time."""

    def __init__(
        self, rank: int, peer: int, epoch: int, own: Segment, theirs: Segment, bell: int, life: int, fence: Fence
    ) -> None:
        """`bell` is the peer's eventfd and `life` its pidfd, both owned by the lane."""
        self.peer: Final = peer
        self.life: Final = life
        self._rank = rank
        self._bell = bell
        self._own = own
        self._theirs = theirs
        self._fence = fence
        self._base = (epoch & EPOCH_MASK) << EPOCH_SHIFT
        self._sent = 0
        self._seen_taken = 0
        self._got = 0
        self._lent = False
        self._kind = 0
        self._words: list[int] = []
        self._rows: Bytes = np.empty(0, np.uint8)
        self._rows_sent = 0
        self._out_done = True
        self._in_done = True
        self._rows_got = 0
        self.kind = 0
        self.words: list[int] = []
        """Of the message that came."""
        self.rows: Bytes = self._rows
        """Of the message that came: may be a view of the peer's slot, good until the next `begin`."""

    # --------------------------------------------------------- one message each way

    def begin(self, kind: int, words: list[int], rows: Bytes) -> None:
        """Start a message of `words` and row bytes, and expect one; `rows` must stay as they are until it is done."""
        assert len(words) * WORD_BYTES <= CHUNK_BYTES, "the words of a message go in its first chunk"
        if self._lent:
            self._lent = False
            self._fence()
            self._own.words[taken(self.peer)] = self._got
        self._kind, self._words, self._rows = kind, words, rows
        self._rows_sent = 0
        self._out_done = self._in_done = False
        self._rows_got = -1

    def move(self) -> bool:
        """Go as far as possible without waiting; True once both messages are through."""
        moved = False
        while not self._out_done and self._has_room():
            self._put()
            moved = True
        while not self._in_done and self._has_news():
            self._take()
            moved = True
        if moved:
            self._fence()  # what was published is seen before the peer's flag is read: it sleeps only after a last look
            if self._theirs.words[WAITING] & bit_of(self._rank):
                self.ring()
        return self._out_done and self._in_done

    def stirs(self) -> bool:
        """Whether `move` would do something."""
        return (not self._in_done and self._has_news()) or (not self._out_done and self._has_room())

    def ring(self) -> None:
        """Wake the peer."""
        os.eventfd_write(self._bell, 1)

    @property
    def left(self) -> bool:
        """Whether the peer said that it leaves."""
        return self._theirs.words[CLOSED] != 0

    @property
    def tokens(self) -> int:
        """Tokens of the peer's present step."""
        return self._theirs.words[TOKENS]

    def free(self) -> None:
        """Close what is the lane's."""
        os.close(self._bell)
        os.close(self.life)

    # --------------------------------------------------------- chunks

    def _has_room(self) -> bool:
        if self._sent - self._seen_taken < SLOTS:
            return True
        self._seen_taken = self._theirs.words[taken(self._rank)]
        return self._sent - self._seen_taken < SLOTS

    def _has_news(self) -> bool:
        slot = self._theirs.slot(self._rank, self._got + 1)
        return self._theirs.words[slot + STAMP] == self._base + self._got + 1

    def _put(self) -> None:
        self._sent += 1
        own = self._own
        slot = own.slot(self.peer, self._sent)
        at, room = payload(slot), CHUNK_BYTES
        if self._rows_sent == 0:
            own.words[slot + KIND] = self._kind
            own.words[slot + WORDS] = len(self._words)
            own.words[slot + ROW_BYTES] = len(self._rows)
            first = at // WORD_BYTES
            for index, word in enumerate(self._words, first):
                own.words[index] = word
            at += len(self._words) * WORD_BYTES
            room -= len(self._words) * WORD_BYTES
        end = min(self._rows_sent + room, len(self._rows))
        if end > self._rows_sent:
            own.bytes[at : at + end - self._rows_sent] = self._rows[self._rows_sent : end]
        self._rows_sent = end
        self._fence()
        own.words[slot + STAMP] = self._base + self._sent
        self._out_done = end == len(self._rows)

    def _take(self) -> None:
        self._fence()
        self._got += 1
        theirs = self._theirs
        slot = theirs.slot(self._rank, self._got)
        at, room = payload(slot), CHUNK_BYTES
        if self._rows_got < 0:
            count, length = theirs.words[slot + WORDS], theirs.words[slot + ROW_BYTES]
            first = at // WORD_BYTES
            self.kind = theirs.words[slot + KIND]
            self.words = theirs.words[first : first + count].tolist()
            at += count * WORD_BYTES
            room -= count * WORD_BYTES
            if length <= room:
                # Lent, not copied: the slot is given back with the next message, for there are others until then.
                self.rows = theirs.bytes[at : at + length]
                self._lent = self._in_done = True
                return
            self.rows = np.empty(length, np.uint8)
            self._rows_got = 0
        end = min(self._rows_got + room, len(self.rows))
        self.rows[self._rows_got : end] = theirs.bytes[at : at + end - self._rows_got]
        self._rows_got = end
        self._in_done = end == len(self.rows)
        self._fence()
        self._own.words[taken(self.peer)] = self._got
