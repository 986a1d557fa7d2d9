"""Ranks of one host over shared memory: a message costs two copies and, where nobody sleeps, no system call.

An operation is a trade: each rank gives every other one message and takes one. A layer takes two trades: rows with
their counts go out, outputs come back. Who must wait looks for some tens of microseconds and then sleeps on its
doorbell, in one poll with the lives of the ranks it waits for, so that a killed one is known at once.
"""

import os
import select
import threading
import time
from collections.abc import Iterable
from itertools import accumulate

import numpy as np
import torch
from torch import Tensor

from dpactors.engine.errors import ExchangeLost
from dpactors.engine.exchange import Compute
from dpactors.engine.lane import Lane, bit_of
from dpactors.engine.patience import Patience
from dpactors.engine.segment import CLOSED, TOKENS, WAITING, Bytes, Fence, Segment
from dpactors.engine.tensors import int_list
from dpactors.engine.weights import local_experts

ROWS, OUTPUTS, AGREE = 1, 2, 3
WHAT = {ROWS: "exchange of expert rows", OUTPUTS: "exchange of expert outputs", AGREE: "finish agreement"}

SPIN_NS = 60_000
"""About what sleeping and waking cost. It is spent looking only where every rank can have a core of its own."""
BUSY_WAITS = 256
"""Waits without looking after one in which a yield gave the core away for long: somebody else has use for it."""
SLICE_S = 0.1
"""Longest sleep: between two, the deadline is looked at again, for a peer may have announced more tokens."""
NOTHING: Bytes = np.empty(0, np.uint8)


class SharedExchange:
    """The group of ranks of one host; implements Exchange."""

    def __init__(
        self, own: Segment, bell: int, lanes: list[Lane], fence: Fence, rank: int, epoch: int, patience: Patience
    ) -> None:
        """`lanes` go to every other rank, in order; `bell` is this rank's eventfd. All are owned from now on."""
        self.size = len(lanes) + 1
        self._own = own
        self._bell = bell
        self._lanes = lanes
        self._fence = fence
        self._rank = rank
        self._epoch = epoch
        self._patience = patience
        self._spin_ns = SPIN_NS if self.size <= len(os.sched_getaffinity(0)) else 0
        self._shares: dict[int, list[range]] = {}
        self._busy_waits = 0
        self._leaving = False
        self._freed = False
        self._trading = threading.Lock()
        self._closing = threading.Lock()

    # --------------------------------------------------------- Exchange

    def experts(self, rows: Tensor, counts: Tensor, compute: Compute) -> Tensor:
        """Two trades: rows with how many are for which expert, and their outputs."""
        shares = self._shares_of(counts.shape[0])
        own = shares[self._rank]
        sent = int_list(counts)
        width = rows.shape[1] * rows.element_size()
        edges = _edges(width * sum(sent[share.start : share.stop]) for share in shares)
        given = _bytes_of(rows)
        lanes = self._trade(
            ROWS,
            [sent[shares[lane.peer].start : shares[lane.peer].stop] for lane in self._lanes],
            [given[edges[lane.peer] : edges[lane.peer + 1]] for lane in self._lanes],
        )
        wanted = [lane.words for lane in lanes]
        parts = [lane.rows for lane in lanes]
        wanted.insert(self._rank, sent[own.start : own.stop])
        parts.insert(self._rank, given[edges[self._rank] : edges[self._rank + 1]])
        for sender, (asked, part) in enumerate(zip(wanted, parts, strict=True)):
            if len(asked) != len(own) or sum(asked) * width != len(part):
                raise self._lost(ROWS, f"rank {sender} sent {len(part)} bytes for {asked} rows of {width}")
        outputs = _computed(rows, wanted, parts, compute)
        ends = _edges(map(len, parts))
        lanes = self._trade(
            OUTPUTS, [[]] * len(lanes), [outputs[ends[lane.peer] : ends[lane.peer + 1]] for lane in lanes]
        )
        back = torch.empty(rows.shape, dtype=rows.dtype)
        answers = _bytes_of(back)
        answers[edges[self._rank] : edges[self._rank + 1]] = outputs[ends[self._rank] : ends[self._rank + 1]]
        for lane in lanes:
            if len(lane.rows) != edges[lane.peer + 1] - edges[lane.peer]:
                raise self._lost(OUTPUTS, f"rank {lane.peer} sent {len(lane.rows)} bytes")
            answers[edges[lane.peer] : edges[lane.peer + 1]] = lane.rows
        return back.to(rows.device)

    def agree(self, unfinished: bool) -> int:
        """One trade of a word."""
        others = self.size - 1
        lanes = self._trade(AGREE, [[int(unfinished)]] * others, [NOTHING] * others)
        return int(unfinished) + sum(lane.words[0] for lane in lanes)

    def announce(self, tokens: int, step_s: float) -> None:
        """Others wait longer for a larger step."""
        with self._trading:
            if not self._freed:
                self._own.words[TOKENS] = tokens
                self._patience.learn(step_s)

    def interrupt(self) -> None:
        """An operation that waits, or the next one, ends with ExchangeLost."""
        with self._closing:
            if not self._freed:
                self._leaving = True
                os.eventfd_write(self._bell, 1)

    def close(self) -> None:
        """Tell the others, wake an operation that waits here, give everything back; from any thread, more than once."""
        self.interrupt()
        with self._closing:
            if self._freed:
                return
            with self._trading:
                self._freed = True
                self._own.words[CLOSED] = 1
                self._fence()
                for lane in self._lanes:
                    lane.ring()
                    lane.free()
                self._lanes = []
                os.close(self._bell)
                del self._own

    # --------------------------------------------------------- a trade

    def _trade(self, kind: int, words: list[list[int]], rows: list[Bytes]) -> list[Lane]:
        """Give each peer its words and rows; the lanes then hold what the peers gave. Raises ExchangeLost."""
        with self._trading:
            if self._leaving:
                raise self._lost(kind, "this rank has left the group")
            for lane, its_words, its_rows in zip(self._lanes, words, rows, strict=True):
                lane.begin(kind, its_words, its_rows)
            waiting = [lane for lane in self._lanes if not lane.move()]
            while waiting:
                self._wait(kind, waiting)
                waiting = [lane for lane in waiting if not lane.move()]
            for lane in self._lanes:
                if lane.kind != kind:
                    raise self._lost(kind, f"rank {lane.peer} is at another operation: {WHAT.get(lane.kind)}")
            return self._lanes

    def _wait(self, kind: int, lanes: list[Lane]) -> None:
        """Return when one of `lanes` can move; looks first, then sleeps."""
        if self._spin_ns and self._looked(lanes):
            return
        poll = select.poll()
        poll.register(self._bell, select.POLLIN)
        for lane in lanes:
            poll.register(lane.life, select.POLLIN)
        words = self._own.words
        words[WAITING] = sum({bit_of(lane.peer) for lane in lanes})
        try:
            waited_s = 0.0
            while not self._stirred(kind, lanes):
                began_s = time.monotonic()
                limit_s = self._patience.limit_s(max(words[TOKENS], *(lane.tokens for lane in lanes)))
                if waited_s >= limit_s:
                    late = ", ".join(str(lane.peer) for lane in lanes)
                    raise self._lost(kind, f"no word of rank {late} for {waited_s:.1f} s")
                for descriptor, _ in poll.poll(max(1.0, min(SLICE_S, limit_s - waited_s) * 1000)):
                    if descriptor == self._bell:
                        os.eventfd_read(self._bell)
                    elif not any(lane.stirs() for lane in lanes):
                        dead = next(lane.peer for lane in lanes if lane.life == descriptor)
                        raise self._lost(kind, f"the process of rank {dead} has ended")
                # A sleep that took far longer than asked says that this process was stopped, not that others are late.
                waited_s += min(time.monotonic() - began_s, 2 * SLICE_S)
        finally:
            words[WAITING] = 0

    def _looked(self, lanes: list[Lane]) -> bool:
        """Whether one of `lanes` could move within the time that sleeping and waking would cost."""
        if self._busy_waits:
            self._busy_waits -= 1
            return False
        until = time.perf_counter_ns() + self._spin_ns
        while (now := time.perf_counter_ns()) < until:
            if any(lane.stirs() for lane in lanes):
                return True
            os.sched_yield()
        if now > until + self._spin_ns:
            self._busy_waits = BUSY_WAITS
        return False

    def _stirred(self, kind: int, lanes: list[Lane]) -> bool:
        """The last look before sleep. Raises ExchangeLost where there is no use in waiting."""
        self._fence()  # the flag is seen before this look: whoever publishes after it rings
        if any(lane.stirs() for lane in lanes):
            return True
        if self._leaving:
            raise self._lost(kind, "this rank leaves the group")
        for lane in lanes:
            if lane.left:
                raise self._lost(kind, f"rank {lane.peer} has left the group")
        return False

    # --------------------------------------------------------- rows

    def _shares_of(self, experts: int) -> list[range]:
        if experts not in self._shares:
            self._shares[experts] = [local_experts(experts, rank, self.size) for rank in range(self.size)]
        return self._shares[experts]

    def _lost(self, kind: int, why: str) -> ExchangeLost:
        self._leaving = True  # ranks may be out of step from here on: nothing more is taken or given
        return ExchangeLost(f"{WHAT[kind]} in epoch {self._epoch}, rank {self._rank} of {self.size}: {why}")


def _computed(like: Tensor, wanted: list[list[int]], parts: list[Bytes], compute: Compute) -> Bytes:
    """Outputs of all senders' rows, in order of sender and then expert, as they came.

    numpy moves the rows: for the few of a decode step, calls of torch would cost more than the copies.
    """
    counts = [sum(column) for column in zip(*wanted, strict=True)]
    total = sum(counts)
    if not total:
        return NOTHING
    got = torch.empty(total, like.shape[1], dtype=like.dtype)
    if sum(1 for part in parts if len(part)) == 1:  # then they are in order of expert already
        np.concatenate(parts, out=_bytes_of(got))
        return _bytes_of(compute(got.to(like.device), counts))
    row = np.dtype((np.void, like.shape[1] * like.element_size()))
    expert_of = np.repeat(np.arange(len(counts) * len(wanted)) % len(counts), [n for asked in wanted for n in asked])
    order = expert_of.argsort(kind="stable")
    np.concatenate(parts).view(row).take(order, out=_bytes_of(got).view(row))
    outputs = np.empty(total, row)
    outputs[order] = _bytes_of(compute(got.to(like.device), counts)).view(row)
    return outputs.view(np.uint8)


def _edges(sizes: Iterable[int]) -> list[int]:
    return [0, *accumulate(sizes)]


def _bytes_of(tensor: Tensor) -> Bytes:
    """The tensor's memory; that of a copy where it is not on this side or not in one piece."""
    here = tensor.cpu().contiguous()
    if here.dtype == torch.bfloat16:  # which numpy does not know
        here = here.view(torch.int16)
    return here.numpy().reshape(-1).view(np.uint8)
