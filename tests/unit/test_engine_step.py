"""A step writes the slots it names and no byte more; a dummy writes none."""

from collections.abc import Iterator

import pytest
import torch
from torch import Tensor

from dpactors.engine.errors import EngineError, ExchangeMissing
from dpactors.engine.performer import EnginePerformer
from dpactors.message.message import tokens
from dpactors.serving.jobs import AgreeIdle, JoinExchange, LoadModel, RunStep
from dpactors.serving.scheduling.scheduler import Scheduler, dummy
from dpactors.serving.settings import EngineSettings
from tests.ranks import CLIENT, Ranks, ask, nothing

SETTINGS = EngineSettings(kv_blocks=16, block_size=4)


@pytest.fixture
def one() -> Iterator[Ranks]:
    """A single rank with 16 blocks of 4 tokens."""
    with Ranks(1, SETTINGS) as ranks:
        yield ranks


def kv(ranks: Ranks, rank: int = 0) -> list[Tensor]:
    """The rank's own KV tensors: keys and values, by layer."""
    decoder = ranks.performers[rank].decoder
    assert decoder is not None
    return [pages for layer in decoder.cache.layers for pages in (layer.keys, layer.values)]


def fill(ranks: Ranks, rank: int = 0) -> list[Tensor]:
    """Noise in every byte, so that a write of zeros is seen too; and a copy of it."""
    with torch.inference_mode():
        for index, pages in enumerate(kv(ranks, rank)):
            pages.copy_(torch.randn(pages.shape, generator=torch.Generator().manual_seed(index)))
    return [pages.clone() for pages in kv(ranks, rank)]


def test_kv_is_shaped_in_blocks(one: Ranks) -> None:
    assert [(16, 4, 4, 32)] * 8 == [tuple(pages.shape) for pages in kv(one)]


def test_a_dummy_step_changes_no_byte_of_kv_and_draws_nothing(one: Ranks) -> None:
    before = fill(one)

    result = one.perform(0, dummy())

    assert [] == list(result.tokens)
    assert all(torch.equal(old, new) for old, new in zip(before, kv(one), strict=True))


def test_dummies_of_a_group_leave_kv_and_the_queue_alone_while_a_peer_works() -> None:
    with Ranks(2, SETTINGS) as ranks:
        before = fill(ranks, 1)
        model = ranks.loaded[1]
        queue = Scheduler(SETTINGS, model.end_tokens, model.max_model_len, model.kv_blocks)

        _, (working, idle) = ranks.serve([[ask("a", [5, 6, 7], 5)], []])

        assert 5 == len(working) == len(idle)
        assert [()] * 5 == [step.sequences for step in idle]
        assert all(torch.equal(old, new) for old, new in zip(before, kv(ranks, 1), strict=True))
        queue.check()
        assert (0, 0, 0.0) == (queue.waiting, queue.running, queue.kv_used)


def test_a_real_step_writes_its_slots_and_no_other(one: Ranks) -> None:
    before = fill(one)
    queue = Scheduler(SETTINGS, tokens(), 64, 16)
    queue.add(ask("a", [1, 2, 3, 4, 5], 3), CLIENT)
    plan = queue.plan()
    assert plan is not None

    one.perform(0, plan)

    written = set(plan.slots)
    for old, new in zip(before, kv(one), strict=True):
        changed = (old != new).flatten(2).any(-1).view(-1).nonzero().view(-1)
        assert written == set(changed.tolist())


def test_slot_minus_one_among_real_tokens_writes_nothing(one: Ranks) -> None:
    """Never planned, but the contract of a slot all the same."""
    before = fill(one)

    one.perform(0, RunStep(tokens([1, 2]), tokens([0, 0]), tokens([-1, 9]), ()))

    for old, new in zip(before, kv(one), strict=True):
        changed = (old != new).flatten(2).any(-1).view(-1).nonzero().view(-1)
        assert [9] == changed.tolist()


def test_a_repeated_step_draws_the_same(one: Ranks) -> None:
    queue = Scheduler(SETTINGS, tokens(), 64, 16)
    queue.add(ask("a", [1, 2, 3], 3), CLIENT)
    plan = queue.plan()
    assert plan is not None

    first, again = one.perform(0, plan), one.perform(0, queue.repeat())

    assert first.tokens == again.tokens
    assert first.seconds > 0


def test_a_step_before_a_model_is_an_error() -> None:
    with pytest.raises(EngineError, match="before a model was loaded"):
        EnginePerformer().perform(dummy(), nothing)


def test_a_share_of_experts_without_a_group_does_not_step() -> None:
    performer = EnginePerformer()
    performer.perform(LoadModel("tiny-moe", "float32", 1, 16, 4, 0, rank=0, size=2), nothing)

    for job in (dummy(), AgreeIdle(unfinished=True)):
        with pytest.raises(ExchangeMissing, match="in no group now"):
            performer.perform(job, nothing)


def test_a_group_of_another_size_than_the_share_is_refused() -> None:
    performer = EnginePerformer()
    performer.perform(LoadModel("tiny-moe", "float32", 1, 16, 4, 0, rank=0, size=2), nothing)

    with pytest.raises(EngineError, match="exchange of 4 ranks; the experts were loaded as a share of 2"):
        performer.perform(JoinExchange(1, 0, 4, "127.0.0.1"), nothing)


def test_a_single_rank_agrees_with_itself(one: Ranks) -> None:
    assert [0, 1] == [one.perform(0, AgreeIdle(unfinished=work)).unfinished for work in (False, True)]


def test_bfloat16_answers_too() -> None:
    with Ranks(1, EngineSettings(kv_blocks=16, dtype="auto")) as ranks:
        assert torch.bfloat16 == kv(ranks)[0].dtype
        answers, _ = ranks.serve([[ask("a", [5, 6, 7], 4)]])

    assert 4 == len(answers["a"])
