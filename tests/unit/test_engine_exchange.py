"""The exchange of experts between ranks: the meeting without a server, agreement, and what a lost rank looks like."""

import random
import threading
import time
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import torch
from attrs import evolve
from torch import Tensor

from dpactors.engine.errors import ExchangeLost, ExchangeMissing, MeetingFailed
from dpactors.engine.exchange import LocalExchange, join_gloo
from dpactors.engine.meeting import meet_in_memory
from dpactors.engine.performer import EnginePerformer
from dpactors.engine.rendezvous import Mailbox
from dpactors.engine.weights import local_experts
from dpactors.serving.jobs import AgreeIdle, JoinExchange, KeyKnown, KeySet, LoadModel
from dpactors.serving.scheduling.scheduler import Scheduler, dummy
from dpactors.serving.settings import EngineSettings
from tests.ranks import CLIENT, Ranks, ask, book, nothing

SETTINGS = EngineSettings(kv_blocks=16, block_size=4)
HIDDEN, EXPERTS = 6, 7


KINDS = {"gloo": join_gloo, "shared": meet_in_memory}
every = pytest.mark.parametrize("kind", KINDS)
EVERY_SETTING = pytest.mark.parametrize("settings", [evolve(SETTINGS, exchange=kind) for kind in KINDS], ids=KINDS)


def meet(size: int, kind: str, epoch: int = 1) -> list[Any]:
    """A group of `size` exchanges in this process."""
    mailboxes = [Mailbox() for _ in range(size)]

    def say(item: KeySet) -> None:
        for mailbox in mailboxes:
            mailbox.put(item.key, item.value)

    def join(rank: int) -> Any:
        return KINDS[kind](
            mailboxes[rank],
            JoinExchange(epoch, rank, size, "127.0.0.1"),
            say,
            meeting_timeout_s=20,
            operation_timeout_s=20,
        )

    with ThreadPoolExecutor(size) as pool:
        return list(pool.map(join, range(size)))


def scaled_by_expert(first: int) -> Any:
    """Experts that multiply by 1 + their number: wrong routing shows at once."""

    def compute(rows: Tensor, counts: list[int]) -> Tensor:
        assert rows.shape[0] == sum(counts)
        factors = torch.arange(first + 1, first + 1 + len(counts)).repeat_interleave(torch.tensor(counts))
        return rows * factors.unsqueeze(1)

    return compute


@every
@pytest.mark.parametrize("size", [2, 3, 4])
def test_rows_come_back_from_their_experts_in_order(size: int, kind: str) -> None:
    """Seven experts do not divide by any size; ranks send different numbers of rows, the last one none."""
    generator = torch.Generator().manual_seed(size)
    counts = [torch.randint(0, 4, (EXPERTS,), generator=generator) for _ in range(size - 1)]
    counts.append(torch.zeros(EXPERTS, dtype=torch.int64))
    rows = [torch.randn(int(count.sum()), HIDDEN, generator=generator) for count in counts]
    group = meet(size, kind)

    def exchange(rank: int) -> Tensor:
        first = local_experts(EXPERTS, rank, size).start
        return group[rank].experts(rows[rank], counts[rank], scaled_by_expert(first))

    with ThreadPoolExecutor(size) as pool:
        got = list(pool.map(exchange, range(size)))
    for one in group:
        one.close()

    for rank in range(size):
        assert torch.equal(LocalExchange().experts(rows[rank], counts[rank], scaled_by_expert(0)), got[rank])


@every
def test_agreement_counts_who_has_work(kind: str) -> None:
    group = meet(3, kind)
    with ThreadPoolExecutor(3) as pool:
        for work, expected in (((True, False, True), 2), ((False, False, False), 0)):
            counts = pool.map(lambda rank, work=work: group[rank].agree(work[rank]), range(3))
            assert [expected] * 3 == list(counts)
    for one in group:
        one.close()


@every
@pytest.mark.parametrize("size", [2, 3])
def test_many_rounds_of_random_rows_are_those_of_one_rank(size: int, kind: str) -> None:
    """Zero rows, some, and now and then more than any slot holds; an agreement between; nobody waits for a turn."""
    group = meet(size, kind)
    rounds = 60

    def serve(rank: int) -> None:
        draw = random.Random(f"rows of {rank}")
        shared = random.Random("what all know")
        first = local_experts(EXPERTS, rank, size).start
        for turn in range(rounds):
            longest = draw.choice((0, 1, 5, 5, 5, 40)) if turn % 20 else 900
            counts = torch.tensor([draw.randint(0, longest) for _ in range(EXPERTS)])
            rows = torch.randn(int(counts.sum()), 96)
            got = group[rank].experts(rows, counts, scaled_by_expert(first))
            assert torch.equal(LocalExchange().experts(rows, counts, scaled_by_expert(0)), got), turn
            work = [shared.random() < 0.5 for _ in range(size)]
            assert sum(work) == group[rank].agree(work[rank])

    with ThreadPoolExecutor(size) as pool:
        list(pool.map(serve, range(size)))
    for one in group:
        one.close()


# ------------------------------------------------------------- the meeting


def loaded(rank: int, **timeouts: float) -> EnginePerformer:
    """A performer that holds half of the experts."""
    performer = EnginePerformer(**timeouts)
    performer.perform(LoadModel("tiny-moe", "float32", 1, 16, 4, 0, rank, 2), nothing)
    return performer


def test_keys_may_come_before_the_join_and_from_other_epochs() -> None:
    left, right = loaded(0), loaded(1)
    said: list[KeySet] = []
    right.feed(KeyKnown("1/0", b"an old epoch's"))
    with ThreadPoolExecutor(2) as pool:
        first = pool.submit(left.perform, JoinExchange(3, 0, 2, "127.0.0.1"), said.append)
        while not said:
            assert not first.done()
        for item in said[:]:
            right.feed(item)
        second = pool.submit(right.perform, JoinExchange(3, 1, 2, "127.0.0.1"), left.feed)
        while not second.done() or not first.done():
            for item in said[:]:
                right.feed(item)
    first.result()
    second.result()
    assert all(item.key.startswith("3/") for item in said)
    left.close()
    right.close()


def test_a_meeting_that_nobody_else_comes_to_ends_with_the_missing_key() -> None:
    performer = loaded(0, meeting_timeout_s=0.2)

    with pytest.raises(MeetingFailed, match="did not meet in time: nobody has set 5/"):
        performer.perform(JoinExchange(5, 0, 2, "127.0.0.1"), nothing)


def test_cancel_ends_a_meeting_at_once_and_the_next_one_may_begin() -> None:
    performer = loaded(0, meeting_timeout_s=60)
    began = threading.Event()
    with ThreadPoolExecutor(1) as pool:
        join: Future[Any] = pool.submit(performer.perform, JoinExchange(5, 0, 2, "127.0.0.1"), lambda _: began.set())
        assert began.wait(20)
        performer.cancel()

        with pytest.raises(MeetingFailed, match="cancelled"):
            join.result(20)
    peer = loaded(1)
    performers = (performer, peer)

    def say(item: KeySet) -> None:
        for one in performers:
            one.feed(item)

    with ThreadPoolExecutor(2) as pool:
        list(pool.map(lambda rank: performers[rank].perform(JoinExchange(6, rank, 2, "127.0.0.1"), say), (0, 1)))
    for one in performers:
        one.close()


def test_an_address_of_another_machine_is_named() -> None:
    with pytest.raises(MeetingFailed, match=r"rank 0 at 192\.0\.2\.1 could not meet"):
        loaded(0).perform(JoinExchange(1, 0, 2, "192.0.2.1", "gloo"), nothing)


@EVERY_SETTING
def test_a_newer_epoch_closes_the_old_group(settings: EngineSettings) -> None:
    """Twelve epochs hold no more files and threads than two."""
    with Ranks(2, settings) as ranks:
        ranks.join()
        held = _held()
        for _ in range(10):
            ranks.join()
            ranks.serve([[ask("a", [5], 1)], []])
        assert _settles_at(held)


def _held() -> tuple[int, int]:
    return len(list(Path("/proc/self/fd").iterdir())), len(list(Path("/proc/self/task").iterdir()))


def _settles_at(held: tuple[int, int]) -> bool:
    """Gloo's threads end a moment after their group."""
    deadline = time.monotonic() + 10
    while time.monotonic() < deadline:
        now = _held()
        if now[0] <= held[0] and now[1] <= held[1]:
            return True
        time.sleep(0.01)
    raise AssertionError(f"files and threads: {held} before, {_held()} after")


# ------------------------------------------------------------- a lost rank


@EVERY_SETTING
def test_a_rank_that_leaves_is_lost_to_its_peer_at_once(settings: EngineSettings) -> None:
    with Ranks(2, settings, operation_timeout_s=60) as ranks:
        ranks.serve([[ask("a", [5], 2)], []])
        ranks.performers[1].close()

        with pytest.raises(ExchangeLost, match=r"expert (rows|counts) in epoch 1, rank 0 of 2"):
            ranks.perform(0, dummy())
        with pytest.raises(ExchangeMissing):
            ranks.perform(0, dummy())
        ranks.join()
        answers, _ = ranks.serve([[ask("b", [5], 2)], []])
        assert 2 == len(answers["b"])


@EVERY_SETTING
def test_a_step_that_lost_its_group_is_repeated_in_the_next_epoch(settings: EngineSettings) -> None:
    """The peer leaves before each of the first steps; the answer is the undisturbed one."""
    request = ask("a", [5, 6, 7], 4)
    with Ranks(2, settings) as ranks:
        expected, _ = ranks.serve([[request], []])
        model = ranks.loaded[0]
        queue = Scheduler(settings, model.end_tokens, model.max_model_len, model.kv_blocks)
        queue.add(request, CLIENT)
        answer: list[int] = []
        while queue.unfinished:
            plan = queue.plan()
            assert plan is not None
            ranks.performers[1].close()
            with pytest.raises(ExchangeLost):
                ranks.perform(0, plan)
            ranks.join()
            again = queue.repeat()
            result, _ = ranks.each(lambda rank, step=again: ranks.perform(rank, dummy() if rank else step))
            for _, output in queue.postprocess(result):
                book(answer, output)

    assert expected["a"] == answer


@EVERY_SETTING
def test_a_silent_rank_is_lost_after_the_timeout(settings: EngineSettings) -> None:
    with (
        Ranks(2, settings, operation_timeout_s=0.3) as ranks,
        pytest.raises(ExchangeLost, match="finish agreement in epoch 1"),
    ):
        ranks.perform(0, AgreeIdle(unfinished=False))


@every
def test_rows_larger_than_any_buffer_pass_both_ways_at_once(kind: str) -> None:
    """Both ranks send megabytes before either has received: nobody may block in a send."""
    group = meet(2, kind)
    counts = torch.tensor([4000, 4000])
    rows = [torch.randn(8000, 256, generator=torch.Generator().manual_seed(rank)) for rank in range(2)]
    with ThreadPoolExecutor(2) as pool:
        got = list(pool.map(lambda rank: group[rank].experts(rows[rank], counts, scaled_by_expert(rank)), range(2)))
    for rank, one in enumerate(group):
        one.close()
        assert torch.equal(LocalExchange().experts(rows[rank], counts, scaled_by_expert(0)), got[rank])


@every
def test_bfloat16_rows_arrive_bit_by_bit(kind: str) -> None:
    group = meet(2, kind)
    counts = [torch.tensor([1, 2]), torch.tensor([0, 0])]
    rows = [torch.randn(int(c.sum()), HIDDEN).to(torch.bfloat16) for c in counts]
    with ThreadPoolExecutor(2) as pool:
        got = list(pool.map(lambda r: group[r].experts(rows[r], counts[r], lambda x, _: x), range(2)))
    for rank, one in enumerate(group):
        one.close()
        assert torch.equal(rows[rank], got[rank])
