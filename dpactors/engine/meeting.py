"""How the ranks of an epoch find out which exchange suits them, and meet in it.

Each says one key: what it wants, which host it is on, and where it can be met there. All see the same keys, so all come
to the same answer. On one host a rank gives each other rank three descriptors over a unix socket: its segment, its
doorbell, and a pidfd of its own process. A number of a process may be another's by the time it is looked up; the
descriptor never is.
"""

import array
import os
import secrets
import socket
import struct
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import orjson
from attrs import asdict, frozen

from dpactors.engine.errors import MeetingFailed
from dpactors.engine.exchange import Exchange, join_gloo
from dpactors.engine.lane import Lane
from dpactors.engine.patience import FLOOR_S, Patience
from dpactors.engine.rendezvous import Mailbox
from dpactors.engine.segment import Segment, make_fence
from dpactors.engine.shared import SharedExchange
from dpactors.serving.jobs import JoinExchange, KeySet

OPERATION_TIMEOUT_S = 30.0
"""How long a rank waits in one operation where it cannot know how large the others' steps are."""
HELLO = struct.Struct("<QII")
"""Epoch, rank and size of who connects."""
GIFTS = 3
"""Descriptors that go with it: segment, doorbell, life."""
BACKLOG = 128
"""Gifts that wait to be taken: all ranks of a host, and room for strangers, who are turned away in their turn."""
LOOK_S = 0.05
"""How often a meeting looks whether it was cancelled, once the keys are there; it lasts milliseconds."""
PEER_CREDENTIALS = struct.Struct("3i")


@frozen
class _Word:
    """What a rank tells of itself."""

    wish: str
    host: str
    socket: str


def join_exchange(
    mailbox: Mailbox,
    job: JoinExchange,
    say: Callable[[Any], None],
    *,
    meeting_timeout_s: float,
    operation_timeout_s: float | None = None,
) -> Exchange:
    """Meet the ranks of the job's epoch in the exchange that it asks for; times in seconds.

    `operation_timeout_s` is the shortest deadline of an operation. Raises MeetingFailed when the ranks do not come in
    time, on cancel, or where shared memory was asked for and a rank is on another host.
    """
    fixed_s = OPERATION_TIMEOUT_S if operation_timeout_s is None else operation_timeout_s
    limits = {"meeting_timeout_s": meeting_timeout_s, "operation_timeout_s": fixed_s}
    exchange: Exchange | None = None
    if job.exchange != "gloo":
        floor_s = FLOOR_S if operation_timeout_s is None else operation_timeout_s
        exchange = meet_in_memory(mailbox, job, say, meeting_timeout_s=meeting_timeout_s, operation_timeout_s=floor_s)
    return exchange or join_gloo(mailbox, job, say, **limits)


def meet_in_memory(
    mailbox: Mailbox,
    job: JoinExchange,
    say: Callable[[Any], None],
    *,
    meeting_timeout_s: float,
    operation_timeout_s: float,
) -> SharedExchange | None:
    """Meet the ranks of the job's epoch over shared memory; None where they are not all on this host.

    `operation_timeout_s` is the shortest deadline. Raises MeetingFailed when they do not come in time, on cancel, or
    where the job insists on shared memory in vain.
    """
    deadline_s = time.monotonic() + meeting_timeout_s
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listener:
        # The abstract namespace: nobody guesses 128 bits, and the name goes with the socket, however that ends.
        own = _Word(job.exchange, _host(), f"dpactors-{secrets.token_hex(16)}")
        listener.bind(f"\0{own.socket}")
        listener.listen(BACKLOG)
        words = _all_words(own, mailbox, job, say, deadline_s)
        strange = [rank for rank, word in enumerate(words) if word.host != own.host]
        if strange and any(word.wish == "shared" for word in words):
            raise MeetingFailed(f"epoch {job.epoch}: shared memory is wanted; not on rank {job.rank}'s host: {strange}")
        return None if strange else _meet(listener, words, mailbox, job, deadline_s, operation_timeout_s)


def _all_words(
    own: _Word, mailbox: Mailbox, job: JoinExchange, say: Callable[[Any], None], deadline_s: float
) -> list[_Word]:
    key = f"{job.epoch}/memory/{job.rank}"
    value = orjson.dumps(asdict(own))
    mailbox.put(key, value)
    say(KeySet(key, value))
    known = mailbox.wait([f"{job.epoch}/memory/{rank}" for rank in range(job.size)], deadline_s)
    return [_Word(**orjson.loads(one)) for one in known]


def _host() -> str:
    """What two processes share exactly when one can hand descriptors to the other: kernel, network namespace, user."""
    boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    return f"{boot}/{Path('/proc/self/ns/net').stat().st_ino}/{os.getuid()}"


def _meet(
    listener: socket.socket,
    words: list[_Word],
    mailbox: Mailbox,
    job: JoinExchange,
    deadline_s: float,
    floor_s: float,
) -> SharedExchange:
    """Give to all, then take from all. A gift waits in its socket until it is taken, so nobody waits for a turn."""
    segment, memory = Segment.create(job.size)
    bell = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
    life = os.pidfd_open(os.getpid())
    fence = make_fence()
    lanes: dict[int, Lane] = {}
    try:
        for rank, word in enumerate(words):
            if rank != job.rank:
                _give(word.socket, job, [memory, bell, life])
        while len(lanes) < job.size - 1:
            mailbox.raise_if_cancelled()
            if time.monotonic() > deadline_s:
                missing = [rank for rank in range(job.size) if rank != job.rank and rank not in lanes]
                raise MeetingFailed(f"epoch {job.epoch}: rank {job.rank} waits for {missing} in vain")
            peer, gifts = _take(listener, job)
            if peer is None or peer in lanes:
                _close_all(gifts)
                continue
            lanes[peer] = _lane(peer, gifts, job, segment, fence)
    except BaseException:
        for lane in lanes.values():
            lane.free()
        os.close(bell)
        raise
    finally:
        os.close(memory)
        os.close(life)
    in_order = [lanes[peer] for peer in sorted(lanes)]
    return SharedExchange(segment, bell, in_order, fence, job.rank, job.epoch, Patience(floor_s))


def _lane(peer: int, gifts: list[int], job: JoinExchange, own: Segment, fence: Callable[[], None]) -> Lane:
    memory, bell, life = gifts
    try:
        theirs = Segment.adopt(memory, job.size)
    except BaseException:
        os.close(bell)
        os.close(life)
        raise
    finally:
        os.close(memory)  # the mapping stays
    return Lane(job.rank, peer, job.epoch, own, theirs, bell, life, fence)


def _give(name: str, job: JoinExchange, gifts: list[int]) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as one:
        one.setblocking(False)  # noqa: FBT003 - the socket's own signature; a full backlog is an error, not a wait
        try:
            one.connect(f"\0{name}")
            if _user_of(one) != os.getuid():
                raise MeetingFailed(f"epoch {job.epoch}: the socket of a rank belongs to another user")
            socket.send_fds(one, [HELLO.pack(job.epoch, job.rank, job.size)], gifts)
        except OSError as error:
            raise MeetingFailed(f"epoch {job.epoch}: a rank left before rank {job.rank} met it: {error}") from error


def _take(listener: socket.socket, job: JoinExchange) -> tuple[int | None, list[int]]:
    """One connection's rank and descriptors; None and what must be closed where it is nobody of this meeting."""
    listener.settimeout(LOOK_S)
    try:
        one, _ = listener.accept()
    except TimeoutError:
        return None, []
    with one:
        if _user_of(one) != os.getuid():
            return None, []
        one.settimeout(LOOK_S)
        try:
            data, gifts = _receive(one)
        except OSError:
            return None, []
    if len(data) == HELLO.size and len(gifts) == GIFTS:
        epoch, rank, size = HELLO.unpack(data)
        if epoch == job.epoch and size == job.size and rank < size and rank != job.rank:
            return rank, gifts
    return None, gifts


def _receive(one: socket.socket) -> tuple[bytes, list[int]]:
    """As socket.recv_fds, which would let a child of this process inherit the descriptors."""
    gifts = array.array("i")
    space = socket.CMSG_LEN(GIFTS * gifts.itemsize)
    data, ancillary, _, _ = one.recvmsg(HELLO.size, space, socket.MSG_CMSG_CLOEXEC)
    for level, kind, value in ancillary:
        if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
            gifts.frombytes(value[: len(value) - len(value) % gifts.itemsize])
    return data, list(gifts)


def _user_of(one: socket.socket) -> int:
    _, user, _ = PEER_CREDENTIALS.unpack(one.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, PEER_CREDENTIALS.size))
    return user


def _close_all(descriptors: list[int]) -> None:
    for descriptor in descriptors:
        os.close(descriptor)
