"""The engine's queue: what it plans, what it answers, and that it loses neither requests nor blocks."""

import pytest

from dpactors.actor.address import Address
from dpactors.message.message import tokens
from dpactors.serving.jobs import StepResult
from dpactors.serving.messages import Generate
from dpactors.serving.scheduling.blocks import KVBlocks
from dpactors.serving.scheduling.scheduler import Scheduler, dummy
from dpactors.serving.settings import EngineSettings
from tests.unit.fake_model import CLIENT, END, VOCABULARY, FakeModel, alone, ask, finish, joined, scheduler, step

# ------------------------------------------------------------- blocks


def test_a_block_is_free_again_after_its_last_reference() -> None:
    blocks = KVBlocks(4)
    held = blocks.allocate(2)
    blocks.share(held[:1])

    blocks.free(held)

    assert 1 == blocks.references(held[0])
    assert 0.25 == blocks.used
    blocks.free(held[:1])
    assert 4 == blocks.available
    blocks.check()


def test_a_double_free_is_a_programming_error() -> None:
    blocks = KVBlocks(2)
    held = blocks.allocate(1)
    blocks.free(held)

    with pytest.raises(AssertionError, match="freed twice"):
        blocks.free(held)


# ------------------------------------------------------------- one request


def test_prompt_then_one_token_a_step() -> None:
    queue = scheduler()
    assert queue.add(ask("a", [1, 2, 3, 4, 5], max_tokens=2, ignore_eos=True), CLIENT) is None
    assert (1, 0, True) == (queue.waiting, queue.running, queue.unfinished)

    first = queue.plan()

    assert first is not None
    assert [1, 2, 3, 4, 5] == list(first.tokens)
    assert [0, 1, 2, 3, 4] == list(first.positions)
    (part,) = first.sequences
    assert (5, 0, 2, 0) == (part.query, part.context, len(part.blocks), part.position)
    assert part.sampling is not None
    assert (0, 1) == (queue.waiting, queue.running)
    assert first is queue.repeat()

    ((owner, output),) = queue.postprocess(StepResult(tokens([9]), 0.0))

    assert CLIENT == owner
    assert (0, [9], None) == (output.position, list(output.tokens), output.finish)
    second = queue.plan()
    assert second is not None
    assert ([9], [5]) == (list(second.tokens), list(second.positions))
    ((_, output),) = queue.postprocess(StepResult(tokens([10]), 0.0))
    assert (1, [10], "length") == (output.position, list(output.tokens), output.finish)
    assert not queue.unfinished
    assert 0.0 == queue.kv_used
    assert queue.plan() is None


def test_an_end_token_is_in_the_output_and_named() -> None:
    queue = scheduler()
    queue.add(ask("a", [1]), CLIENT)
    queue.plan()

    ((_, output),) = queue.postprocess(StepResult(tokens([END]), 0.0))

    assert ([END], "stop", END) == (list(output.tokens), output.finish, output.stop_token)


def test_ignore_eos_goes_on_but_stop_token_ids_still_stop() -> None:
    queue = scheduler()
    queue.add(ask("a", [1], ignore_eos=True, stop_token_ids=tokens([9])), CLIENT)
    queue.plan()
    ((_, output),) = queue.postprocess(StepResult(tokens([END]), 0.0))
    assert output.finish is None
    queue.plan()

    ((_, output),) = queue.postprocess(StepResult(tokens([9]), 0.0))

    assert ("stop", 9) == (output.finish, output.stop_token)


def test_end_tokens_are_banned_until_min_tokens_are_drawn() -> None:
    queue = scheduler()
    queue.add(ask("a", [1], min_tokens=2, stop_token_ids=tokens([9])), CLIENT)

    banned: list[list[int]] = []
    for _ in range(3):
        plan = queue.plan()
        assert plan is not None
        banned.append(list(plan.sequences[0].banned))
        queue.postprocess(StepResult(tokens([3]), 0.0))

    assert [[END, 9], [END, 9], []] == banned


@pytest.mark.parametrize(
    ("generate", "text"),
    [
        (ask("a", []), "the prompt is empty"),
        (ask("a", range(64)), "leaves no room"),
        (ask("a", [1], max_tokens=0), "max_tokens is 0"),
        (ask("a", [1, 50]), "outside the vocabulary; ids go from 0 to 49"),
        (ask("a", [-1]), "outside the vocabulary"),
        (ask("a", range(30), max_tokens=20), "needs 13 KV blocks of 4 tokens"),
    ],
)
def test_a_request_that_can_never_run_is_refused_with_the_reason(generate: Generate, text: str) -> None:
    queue = Scheduler(EngineSettings(block_size=4), tokens([END]), 64, kv_blocks=10, vocab_size=VOCABULARY)

    output = queue.add(generate, CLIENT)

    assert output is not None
    assert ("error", 400) == (output.finish, output.status)
    assert text in str(output.error)
    assert not queue.unfinished
    queue.check()


def test_a_request_id_in_use_is_refused() -> None:
    queue = scheduler()
    queue.add(ask("a", [1]), CLIENT)

    output = queue.add(ask("a", [1]), CLIENT)

    assert output is not None
    assert "already here" in str(output.error)


def test_max_tokens_is_clamped_to_the_context() -> None:
    queue = scheduler(max_model_len=8)
    queue.add(ask("a", [1, 2, 3], max_tokens=1000, ignore_eos=True), CLIENT)

    heard = finish(queue, FakeModel(4))

    assert 5 == len(joined(heard["a"]))
    assert "length" == heard["a"][-1].finish


# ------------------------------------------------------------- many requests


def test_decodes_come_first_and_share_the_step_with_prefill_chunks() -> None:
    queue, model = scheduler(max_step_tokens=8), FakeModel(4)
    queue.add(ask("old", [1, 2], max_tokens=20, ignore_eos=True), CLIENT)
    step(queue, model)
    queue.add(ask("long", range(12), ignore_eos=True), CLIENT)

    plan = queue.plan()

    assert plan is not None
    assert [(1, 2, True), (7, 0, False)] == [
        (part.query, part.context, part.sampling is not None) for part in plan.sequences
    ]
    queue.postprocess(model.run(plan))
    plan = queue.plan()
    assert plan is not None
    assert [(1, 3, True), (5, 7, True)] == [
        (part.query, part.context, part.sampling is not None) for part in plan.sequences
    ]


def test_no_more_run_than_max_running() -> None:
    queue, model = scheduler(max_running=2), FakeModel(4)
    for name in "abc":
        queue.add(ask(name, [1], ignore_eos=True), CLIENT)

    step(queue, model)

    assert (1, 2) == (queue.waiting, queue.running)


def test_the_newest_is_preempted_and_its_tokens_are_kept() -> None:
    queue, model = scheduler(kv_blocks=5), FakeModel(4)
    asked = [ask(name, range(start, start + 4), max_tokens=10, ignore_eos=True) for name, start in (("a", 0), ("b", 9))]
    for generate in asked:
        queue.add(generate, CLIENT)

    heard = finish(queue, model)

    assert queue.preemptions > 0
    for generate in asked:
        assert alone(generate) == joined(heard[generate.request_id])


def test_abort_of_a_waiting_and_of_a_running_request() -> None:
    queue, model = scheduler(max_running=1), FakeModel(4)
    queue.add(ask("runs", [1, 2], max_tokens=9, ignore_eos=True), CLIENT)
    queue.add(ask("waits", [3]), Address("client", 1))
    step(queue, model)

    assert ["waits"] == queue.owned_by(Address("client", 1))
    outputs = queue.abort(["runs", "waits", "unknown"])

    assert [("runs", 1, "abort"), ("waits", 0, "abort")] == [
        (output.request_id, output.position, output.finish) for _, output in outputs
    ]
    assert [CLIENT, Address("client", 1)] == [owner for owner, _ in outputs]
    assert (0.0, False) == (queue.kv_used, queue.unfinished)
    queue.check()


def test_abort_in_mid_step_keeps_the_blocks_until_the_step_is_over() -> None:
    queue, model = scheduler(), FakeModel(4)
    queue.add(ask("a", [1, 2]), CLIENT)
    plan = queue.plan()
    assert plan is not None

    queue.abort(["a"])

    assert not queue.unfinished
    assert 1 / 64 == queue.kv_used
    queue.check()
    # The same id may come again while the old one's step still runs.
    assert queue.add(ask("a", [5]), CLIENT) is None
    assert [] == queue.postprocess(model.run(plan))
    assert 0.0 == queue.kv_used
    queue.check()
    assert alone(ask("a", [5])) == joined(finish(queue, model)["a"])


def test_a_failed_step_is_repeated_unchanged_and_then_booked() -> None:
    queue, model = scheduler(), FakeModel(4)
    queue.add(ask("a", [1, 2]), CLIENT)
    plan = queue.plan()
    queue.abort(["nobody"])

    again = queue.repeat()

    assert plan == again
    model.run(again)
    ((_, output),) = queue.postprocess(model.run(again))
    assert alone(ask("a", [1, 2]))[0] == output.tokens[0]


def test_a_dummy_step_has_one_token_no_slot_and_no_sequence() -> None:
    queue = scheduler()

    assert ([0], [0], [-1], ()) == (
        list(dummy().tokens),
        list(dummy().positions),
        list(dummy().slots),
        dummy().sequences,
    )
    assert [] == queue.postprocess(StepResult(tokens(), 0.0))
