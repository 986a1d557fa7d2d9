"""One rank's part of the memory that the ranks of a host share: who writes what, and in which order it is seen.

A segment is written by its owner alone and mapped for reading by the others, so no word has two writers and no lock is
needed. It is an anonymous file (memfd): it has no name, is handed on as a descriptor, and is gone with the last process
that maps it, however that process ends.

    head    words of the owner: CLOSED, WAITING, TOKENS, and one TAKEN a peer, each on a cache line of its own
    boxes   one mailbox for each rank: SLOTS slots, each a header line and CHUNK_BYTES of payload

**Order.** A message is written payload first, then fence, then stamp; its reader sees the stamp, then fence, then takes
the payload. A word is eight aligned bytes, which memoryview reads and writes in one move.
"""

import contextlib
import fcntl
import mmap
import os
import threading
from collections.abc import Callable
from typing import Self, TypeAlias

import numpy as np
from numpy.typing import NDArray

from dpactors.engine.errors import MeetingFailed

WORD_BYTES = 8
LINE_BYTES = 64
LINE_WORDS = LINE_BYTES // WORD_BYTES
PAGE_BYTES = 4096

CLOSED, WAITING, TOKENS = 0, LINE_WORDS, 2 * LINE_WORDS
"""Words of the head: the owner has left; ranks it is about to sleep for, a bit each; tokens of its present step."""
FIRST_TAKEN = 3 * LINE_WORDS

SLOTS = 4
"""A rank is at most one message ahead of a peer; the rest lets the chunks of a long one flow."""
SLOT_BYTES = 256 * 1024
"""Four fit a second-level cache, and 64 rows of 1,000 floats fit one."""
SLOT_WORDS = SLOT_BYTES // WORD_BYTES
CHUNK_BYTES = SLOT_BYTES - LINE_BYTES
STAMP, KIND, WORDS, ROW_BYTES = 0, 1, 2, 3
"""Words of a slot's header; the last two count the words and row bytes of the whole message."""

SEAL_FUTURE_WRITE = 0x10
"""F_SEAL_FUTURE_WRITE of Linux 5.1, which Python 3.11 does not name: whoever maps it from now on can only read."""
SIZE_SEALS = fcntl.F_SEAL_GROW | fcntl.F_SEAL_SHRINK
"""A file that cannot shrink cannot take mapped pages away, which would kill the reader."""

Bytes: TypeAlias = NDArray[np.uint8]
Fence: TypeAlias = Callable[[], None]


def make_fence() -> Fence:
    """A call that lets all reads and writes before it happen before all after it; for one thread at a time.

    Python has no barrier of its own, but giving up a lock and taking it again is one: on x86-64 either is a locked
    instruction; on aarch64 they are a store-release and then a load-acquire, which nothing passes in both directions.
    """
    lock = threading.Lock()
    lock.acquire()
    release, acquire = lock.release, lock.acquire

    def fence() -> None:
        release()
        acquire()

    return fence


class Segment:
    """One rank's memory as its owner or a peer sees it."""

    def __init__(self, memory: mmap.mmap, size: int) -> None:
        """`memory` is the whole mapping, which ends when the last view of it is dropped; `size` counts the ranks."""
        self.words = memoryview(memory).cast("Q")
        self.bytes: Bytes = np.frombuffer(memory, dtype=np.uint8)
        self._boxes_at = _head_bytes(size) // WORD_BYTES

    @classmethod
    def create(cls, size: int) -> tuple[Self, int]:
        """An owner's segment of zeros, and the descriptor to hand on, which may then be closed."""
        descriptor = os.memfd_create("dpactors-exchange", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        try:
            os.ftruncate(descriptor, _total_bytes(size))
            segment = cls(mmap.mmap(descriptor, _total_bytes(size)), size)
            fcntl.fcntl(descriptor, fcntl.F_ADD_SEALS, SIZE_SEALS)
            with contextlib.suppress(OSError):  # an older kernel: peers map it for reading all the same
                fcntl.fcntl(descriptor, fcntl.F_ADD_SEALS, SEAL_FUTURE_WRITE)
        except BaseException:
            os.close(descriptor)
            raise
        return segment, descriptor

    @classmethod
    def adopt(cls, descriptor: int, size: int) -> Self:
        """A peer's segment, to read. Raises MeetingFailed where the file is not such a segment."""
        length = os.fstat(descriptor).st_size
        if length != _total_bytes(size) or fcntl.fcntl(descriptor, fcntl.F_GET_SEALS) & SIZE_SEALS != SIZE_SEALS:
            raise MeetingFailed(f"a peer's segment has {length} bytes; one of {size} ranks has {_total_bytes(size)}")
        return cls(mmap.mmap(descriptor, length, prot=mmap.PROT_READ), size)

    def slot(self, rank: int, number: int) -> int:
        """Index of the first word of the slot for message chunk `number` to `rank`."""
        return self._boxes_at + (rank * SLOTS + number % SLOTS) * SLOT_WORDS


def taken(rank: int) -> int:
    """Index of the word that counts chunks taken from `rank`."""
    return FIRST_TAKEN + rank * LINE_WORDS


def payload(slot: int) -> int:
    """Index of a slot's first payload byte."""
    return slot * WORD_BYTES + LINE_BYTES


def _head_bytes(size: int) -> int:
    words = FIRST_TAKEN + size * LINE_WORDS
    return -(-words * WORD_BYTES // PAGE_BYTES) * PAGE_BYTES


def _total_bytes(size: int) -> int:
    return _head_bytes(size) + size * SLOTS * SLOT_BYTES
