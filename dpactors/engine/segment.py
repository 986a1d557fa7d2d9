"""One rank's part of the memory that the ranks of a host share: who writes what, and in which order it is seen.

A segment is written by its owner alone and mapped for reading by the others, so no word has two writers and no lock is
needed. It is an anonymous file (memfd): it has no name, is handed on as a descriptor, and is gone with the last process
that maps it, however that process ends.

    head    words of the owner: CLOSED, WAITING, TOKENS, and one TAKEN a peer, each on a cache line of its own
    boxes   one mailbox for each rank: SLOTS slots of a header line and SLOT_BYTES - LINE_BYTES of payload

**Order.** A message is payload first, then `fence`, then its stamp; a reader sees the stamp, then `fence`, then takes
the payload. A word is an aligned eight-byte integer, which memoryview reads and writes in one move.
"""

import contextlib
import fcntl
import mmap
import os
import threading
from typing import Any

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
"""A rank is at most one message ahead of a peer; the rest lets chunks of a long one flow."""
SLOT_BYTES = 256 * 1024
"""Fits a second-level cache; a step of 64 rows of 1,024 floats goes in one chunk."""
CHUNK_BYTES = SLOT_BYTES - LINE_BYTES
STAMP, KIND, WORDS, ROW_BYTES = 0, 1, 2, 3
"""Words of a slot's header."""

SEAL_FUTURE_WRITE = 0x10
"""F_SEAL_FUTURE_WRITE of Linux 5.1, which Python 3.11 has no name for: no new mapping may write."""
SEALS = fcntl.F_SEAL_GROW | fcntl.F_SEAL_SHRINK

Bytes = NDArray[np.uint8]

_held = threading.Lock()
_held.acquire()
_release, _acquire = _held.release, _held.acquire


def fence() -> None:
    """Let all reads and writes before it happen before all after it, as every rank sees them.

    Python has no barrier of its own. Giving up a lock and taking it again is one: on x86-64 both are locked
    instructions; on aarch64 a store-release and a load-acquire, which stay in order with all around them.
    """
    with _fencing:
        pass


class _Fencing:
    """A lock of each thread's own would do as well; this one is never contended for longer than two instructions."""

    def __init__(self) -> None:
        self._lock = threading.local()
