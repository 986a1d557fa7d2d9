"""A process never outlives its supervisor: the kernel signals it, and a thread waits for the supervisor's end."""

import ctypes
import os
import select
import signal
import threading
import time
from collections.abc import Callable

PR_SET_PDEATHSIG = 1
"""From linux/prctl.h."""
LAST_ATTEMPT_S = 0.5
"""What an orphan may use to close its links before it is ended the hard way."""
ORPHANED = 3
"""Exit code: a peer was lost, and nothing can go on without it."""


def die_with_parent(parent: int) -> None:
    """Ask the kernel for SIGTERM when the parent ends; call it in the main thread, before anything slow.

    Ends this process at once where the parent is gone already.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(PR_SET_PDEATHSIG, signal.SIGTERM, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_PDEATHSIG)")
    if os.getppid() != parent:
        os._exit(ORPHANED)


def watch_parent(parent: int, on_gone: Callable[[], object], sweep: Callable[[], None]) -> None:
    """Call `on_gone` from a thread when the parent ends; half a second later call `sweep` and end this process.

    A thread, because the event loop may be busy, and os._exit, because a step may sit in a collective for ever.
    """
    try:
        descriptor = os.pidfd_open(parent)
    except ProcessLookupError:
        os._exit(ORPHANED)

    def wait() -> None:
        poll = select.poll()
        poll.register(descriptor, select.POLLIN)
        poll.poll()
        on_gone()
        time.sleep(LAST_ATTEMPT_S)
        sweep()
        os._exit(ORPHANED)

    threading.Thread(target=wait, name="lifeline", daemon=True).start()
