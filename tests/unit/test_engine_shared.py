"""Shared memory between ranks: who may write where, what is taken, how a wait ends, and what is left behind."""

import gc
import json
import os
import socket
import threading
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from dpactors.engine.errors import ExchangeLost, MeetingFailed
from dpactors.engine.lane import Lane
from dpactors.engine.meeting import HELLO, join_exchange, meet_in_memory
from dpactors.engine.patience import Patience
from dpactors.engine.rendezvous import Mailbox
from dpactors.engine.segment import CHUNK_BYTES, SLOTS, STAMP, Segment, make_fence
from dpactors.engine.shared import SharedExchange
from dpactors.serving.jobs import JoinExchange, KeySet
from tests.ranks import nothing

LIMIT_S = 20


def meet(size: int, epoch: int = 1, floor_s: float = LIMIT_S, say: Any = nothing) -> list[SharedExchange]:
    """A group of `size` exchanges in this process; `say` sees the keys too."""
    mailboxes = [Mailbox() for _ in range(size)]

    def carry(item: KeySet) -> None:
        say(item)
        for mailbox in mailboxes:
            mailbox.put(item.key, item.value)

    def join(rank: int) -> SharedExchange:
        job = JoinExchange(epoch, rank, size, "127.0.0.1", "shared")
        met = meet_in_memory(mailboxes[rank], job, carry, meeting_timeout_s=LIMIT_S, operation_timeout_s=floor_s)
        assert met is not None
        return met

    with ThreadPoolExecutor(size) as pool:
        return list(pool.map(join, range(size)))


def in_thread(work: Any) -> Future[Any]:
    """The outcome of `work` on a thread of its own."""
    outcome: Future[Any] = Future()

    def run() -> None:
        try:
            outcome.set_result(work())
        except Exception as error:  # noqa: BLE001 - the test looks at it
            outcome.set_exception(error)

    threading.Thread(target=run, daemon=True).start()
    return outcome


# ------------------------------------------------------------- a lane


class Pair:
    """Both ends of one lane, moved by hand."""

    def __init__(self, epochs: tuple[int, int] = (5, 5)) -> None:
        made = [Segment.create(2) for _ in range(2)]
        self.own = [segment for segment, _ in made]
        theirs = [Segment.adopt(descriptor, 2) for _, descriptor in made]
        for _, descriptor in made:
            os.close(descriptor)
        self.bells = [os.eventfd(0, os.EFD_NONBLOCK) for _ in range(2)]
        self.ends = [
            Lane(
                rank,
                1 - rank,
                epochs[rank],
                self.own[rank],
                theirs[1 - rank],
                os.dup(self.bells[1 - rank]),
                os.pidfd_open(os.getpid()),
                make_fence(),
            )
            for rank in range(2)
        ]


def some_bytes(count: int) -> Any:
    return np.arange(count, dtype=np.uint32).astype(np.uint8)


def test_a_message_is_there_once_it_is_published_and_not_before() -> None:
    left, right = Pair().ends
    left.begin(7, [1, 2**60], some_bytes(100))
    right.begin(7, [], some_bytes(0))
    assert not right.move()
    assert not right.stirs()

    assert left.move()
    assert right.stirs()
    assert right.move()

    assert ([1, 2**60], 7, 100) == (right.words, right.kind, len(right.rows))
    assert np.array_equal(right.rows, some_bytes(100))
    assert ([], 0) == (left.words, len(left.rows))


@pytest.mark.parametrize("length", [CHUNK_BYTES - 17, CHUNK_BYTES - 16, CHUNK_BYTES - 15, 11 * CHUNK_BYTES + 1])
def test_a_message_longer_than_a_slot_goes_in_turns(length: int) -> None:
    """Two words and `length` bytes: up to a whole slot, one more, and more than all slots hold."""
    left, right = Pair().ends
    for turn in range(3):
        left.begin(1, [3, turn], some_bytes(length))
        right.begin(1, [], some_bytes(length + turn))
        moves = 0
        while not (left.move() & right.move()):
            moves += 1
            assert moves < 100, "nobody moves"
        assert [3, turn] == right.words
        assert np.array_equal(right.rows, some_bytes(length))
        assert np.array_equal(left.rows, some_bytes(length + turn))


def test_a_slot_is_used_again_only_when_what_was_in_it_was_taken() -> None:
    left, right = Pair().ends
    left.begin(1, [], some_bytes((SLOTS + 2) * CHUNK_BYTES))
    assert not left.move()
    assert not left.stirs()

    right.begin(1, [], some_bytes(0))
    right.move()

    assert left.stirs()


def test_what_another_epoch_wrote_is_not_taken() -> None:
    left, right = Pair(epochs=(5, 6)).ends
    for lane in (left, right):
        lane.begin(1, [], some_bytes(10))
        lane.move()

    assert not left.stirs()
    assert not right.stirs()


def test_only_a_rank_that_says_it_sleeps_is_rung() -> None:
    pair = Pair()
    left, right = pair.ends
    for lane in (left, right):
        lane.begin(1, [], some_bytes(10))
    left.move()
    with pytest.raises(BlockingIOError):
        os.eventfd_read(pair.bells[1])
    pair.own[0].words[8] = 0b10  # rank 0 sleeps for rank 1
    right.move()

    assert 1 == os.eventfd_read(pair.bells[0])


# ------------------------------------------------------------- a segment


def test_a_peer_can_neither_write_nor_shrink_a_segment() -> None:
    owner, descriptor = Segment.create(2)
    peer = Segment.adopt(descriptor, 2)
    slot = owner.slot(1, 1)
    owner.words[slot + STAMP] = 77

    assert 77 == peer.words[slot + STAMP]
    with pytest.raises(TypeError):
        peer.words[slot + STAMP] = 1
    with pytest.raises(PermissionError):
        os.ftruncate(descriptor, 0)
    os.close(descriptor)


@pytest.mark.parametrize("length", [0, 4096])
def test_a_file_that_is_no_segment_is_refused(length: int) -> None:
    descriptor = os.memfd_create("x", os.MFD_ALLOW_SEALING)
    os.ftruncate(descriptor, length)

    with pytest.raises(MeetingFailed, match=f"a peer's segment has {length} bytes"):
        Segment.adopt(descriptor, 2)
    os.close(descriptor)


# ------------------------------------------------------------- how a wait ends


def test_a_rank_that_waits_is_woken_by_an_interrupt() -> None:
    group = meet(2)
    waits = in_thread(lambda: group[0].agree(True))
    group[0].interrupt()

    with pytest.raises(ExchangeLost, match="this rank"):
        waits.result(LIMIT_S)
    for one in group:
        one.close()


def test_closing_wakes_both_who_waits_here_and_who_waits_for_this_rank() -> None:
    group = meet(3)
    waits = [in_thread(lambda rank=rank: group[rank].agree(True)) for rank in (0, 1)]
    group[2].close()

    for one in waits:
        with pytest.raises(ExchangeLost, match="rank 2 has left"):
            one.result(LIMIT_S)
    pair = meet(2)
    waits = [in_thread(lambda: pair[0].agree(True))]
    pair[0].close()
    with pytest.raises(ExchangeLost, match="this rank"):
        waits[0].result(LIMIT_S)
    pair[1].close()
    for one in group:
        one.close()
        one.close()
        with pytest.raises(ExchangeLost, match="has left the group"):
            one.agree(True)
        one.announce(1, 1.0)


def test_ranks_at_different_operations_are_found_out() -> None:
    group = meet(2)
    agrees = in_thread(lambda: group[0].agree(True))
    with pytest.raises(ExchangeLost, match="rank 0 is at another operation: finish agreement"):
        group[1].experts(torch.zeros(0, 4), torch.zeros(4, dtype=torch.int64), lambda x, _: x)
    with pytest.raises(ExchangeLost, match="rank 1 is at another operation: exchange of expert rows"):
        agrees.result(LIMIT_S)
    for one in group:
        one.close()


def test_patience_is_the_longest_of_a_floor_ten_steps_and_the_prefill_that_is_announced() -> None:
    patience = Patience(2.0)
    assert 2.0 == patience.limit_s(1)
    assert 20.0 == pytest.approx(patience.limit_s(2000))
    for step_s in (0.5, 0.5, 60.0):
        patience.learn(step_s)
    assert 5.0 == patience.limit_s(1), "one slow step is not the rule"


# ------------------------------------------------------------- the meeting


def test_strangers_and_other_epochs_are_not_let_in() -> None:
    """What connects and brings no descriptors of this epoch is let go, with all it brought."""
    strangers: list[socket.socket] = []

    def disturb(item: KeySet) -> None:
        name = json.loads(item.value)["socket"]
        for word in (b"nonsense", HELLO.pack(6, 1, 2), HELLO.pack(7, 5, 2), HELLO.pack(7, 1, 3)):
            stranger = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            strangers.append(stranger)
            stranger.connect(f"\0{name}")
            socket.send_fds(stranger, [word], [0, 1, 2][: 1 + len(strangers) % 3])

    before = _held()
    group = meet(2, epoch=7, say=disturb)
    with ThreadPoolExecutor(2) as pool:
        assert [2, 2] == list(pool.map(lambda rank: group[rank].agree(True), range(2)))
    for one in (*group, *strangers):
        one.close()
    assert before == _held()


def test_a_rank_elsewhere_makes_all_take_gloo_unless_shared_memory_was_demanded() -> None:
    word = json.dumps({"wish": "auto", "host": "another kernel", "socket": "x"}).encode()
    limits = {"meeting_timeout_s": LIMIT_S, "operation_timeout_s": LIMIT_S}
    mailbox = Mailbox()
    mailbox.put("1/memory/1", word)

    assert meet_in_memory(mailbox, JoinExchange(1, 0, 2, "127.0.0.1"), nothing, **limits) is None
    with pytest.raises(MeetingFailed, match=r"shared memory is wanted; not on rank 0's host: \[1\]"):
        join_exchange(mailbox, JoinExchange(1, 0, 2, "127.0.0.1", "shared"), nothing, **limits)


def test_a_rank_that_left_before_the_meeting_is_named() -> None:
    mailbox = Mailbox()

    def say(item: KeySet) -> None:
        own = json.loads(item.value)
        mailbox.put("1/memory/1", json.dumps(own | {"socket": "nobody-is-here"}).encode())

    with pytest.raises(MeetingFailed, match="a rank left before rank 0 met it"):
        join_exchange(mailbox, JoinExchange(1, 0, 2, "127.0.0.1"), say, meeting_timeout_s=LIMIT_S)


# ------------------------------------------------------------- nothing is left


def test_fifty_meetings_half_of_which_are_lost_leave_nothing() -> None:
    before = _held()
    for epoch in range(50):
        group = meet(3, epoch)
        with ThreadPoolExecutor(3) as pool:
            assert [3, 3, 3] == list(pool.map(lambda rank, met=group: met[rank].agree(True), range(3)))
        if epoch % 2:
            group[0].close()
            with pytest.raises(ExchangeLost):
                group[1].agree(True)
        for one in group:
            one.close()
    del group

    assert before == _held()


def _held() -> tuple[int, int]:
    """Open descriptors and mapped segments of this process."""
    gc.collect()  # an error's traceback holds the frames that saw a segment
    maps = Path("/proc/self/maps").read_text()
    return len(list(Path("/proc/self/fd").iterdir())), maps.count("memfd:dpactors-exchange")
