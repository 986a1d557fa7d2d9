"""What a load report foretells: the queue in tokens, and the rank's own pace."""

import pytest

from dpactors.message.message import tokens
from dpactors.serving.jobs import StepResult
from dpactors.serving.scheduling.pace import Outlook, Pace
from dpactors.serving.scheduling.scheduler import Scheduler
from tests.unit.fake_model import CLIENT, ask, scheduler


def draw(queue: Scheduler, *ids: int) -> None:
    queue.postprocess(StepResult(tokens(ids), 0.0))


def test_a_queue_is_told_in_tokens_before_during_and_after_a_step() -> None:
    """Prompts of 20 and 10 tokens, 16 a step, blocks of 4."""
    queue = scheduler()
    queue.add(ask("a", range(20), ignore_eos=True), CLIENT)
    queue.add(ask("b", range(10), ignore_eos=True), CLIENT)
    assert queue.outlook() == Outlook(0, 30, 14, 16, 0)

    queue.plan()  # 16 of a
    assert queue.outlook() == Outlook(0, 10, 14, 16, 20)
    draw(queue)
    assert queue.outlook() == Outlook(0, 10, 0, 14, 20)

    queue.plan()  # 4 of a, 10 of b
    assert queue.outlook() == Outlook(0, 0, 0, 14, 32)
    draw(queue, 1, 2)
    assert queue.outlook() == Outlook(2, 0, 0, 0, 32)

    queue.plan()
    assert queue.outlook() == Outlook(2, 0, 0, 0, 36)  # a goes on in a new block
    queue.check()


def test_what_is_aborted_in_mid_step_is_nobody_s_work() -> None:
    queue = scheduler()
    queue.add(ask("a", range(40), ignore_eos=True), CLIENT)
    queue.add(ask("b", range(8), ignore_eos=True), CLIENT)
    queue.plan()
    queue.abort(["a", "b"])

    assert queue.outlook() == Outlook(0, 0, 0, 16, 40)
    draw(queue)
    assert queue.outlook() == Outlook()


def test_a_preempted_request_waits_with_all_its_tokens() -> None:
    """Two requests fill six blocks; the older one's next block costs the newer one its place."""
    queue = scheduler(kv_blocks=6)
    queue.add(ask("a", range(12), max_tokens=9, ignore_eos=True), CLIENT)
    queue.add(ask("b", range(4), max_tokens=9, ignore_eos=True), CLIENT)
    queue.plan()
    draw(queue, 1, 2)
    for _ in range(4):
        queue.plan()
        draw(queue, 1, 2)
    assert queue.outlook().decoding == 2

    queue.plan()

    assert queue.preemptions == 1
    assert queue.outlook().waiting_tokens == queue.outlook().pending_tokens == 9
    queue.check()


def test_a_pace_is_unknown_until_it_was_measured() -> None:
    pace = Pace()

    assert (pace.decode_step_s, pace.prefill_token_s, pace.expect_s(100)) == (0.0, 0.0, 0.0)


def test_a_step_is_a_base_and_so_much_a_token() -> None:
    pace = Pace()
    for _ in range(30):
        pace.learn(0, 0.010)
        pace.learn(500, 0.060)

    assert pace.decode_step_s == pytest.approx(0.010)
    assert pace.prefill_token_s == pytest.approx(0.0001)
    assert pace.expect_s(1000) == pytest.approx(0.110)


def test_a_rank_that_only_prefills_still_tells_a_time_a_token() -> None:
    pace = Pace()
    pace.learn(200, 0.4)

    assert pace.expect_s(100) == pytest.approx(0.2)


def test_a_rank_that_turns_slow_is_seen_within_ten_steps() -> None:
    pace = Pace()
    for seconds in (*[0.01] * 50, *[0.1] * 10):
        pace.learn(0, seconds)

    assert pace.decode_step_s > 0.08


def test_short_prompts_in_long_steps_do_not_pretend_that_tokens_are_dear() -> None:
    pace = Pace()
    for _ in range(10):
        pace.learn(0, 0.010)
        pace.learn(2000, 0.210)
        for _ in range(5):
            pace.learn(3, 0.012)

    assert pace.prefill_token_s == pytest.approx(0.0001, rel=0.1)


def test_the_end_of_a_step_is_foretold_from_its_beginning_and_lateness_counts_double() -> None:
    pace = Pace(decode_step_s=0.1)
    assert pace.left_s(None, 5.0) == 0.0
    assert pace.left_s(0, 5.0) == pytest.approx(0.1)  # one begins now

    pace.begin(0, 5.0, dummy=False)
    assert pace.left_s(0, 5.03) == pytest.approx(0.07)
    assert pace.left_s(0, 5.5) == pytest.approx(0.4)  # 0.4 s late: as long again

    pace.begin(0, 6.0, dummy=True)
    assert pace.left_s(None, 6.02) == pytest.approx(0.08)
    assert pace.left_s(0, 6.02) == pytest.approx(0.18)  # the real one comes behind it


def test_a_step_that_failed_teaches_nothing() -> None:
    pace = Pace(decode_step_s=0.1)
    pace.begin(0, 1.0, dummy=False)
    pace.fail()
    pace.end(9.0)

    assert (pace.decode_step_s, pace.left_s(None, 9.0)) == (0.1, 0.0)


def test_a_pace_is_forgotten_by_a_rank_that_has_long_been_idle_and_by_no_other() -> None:
    pace = Pace()
    pace.begin(0, 1.0, dummy=False)
    pace.rest(100.0)
    pace.end(101.0)
    pace.rest(110.0)
    assert pace.decode_step_s == 100.0

    pace.rest(112.0)
    assert (pace.decode_step_s, pace.prefill_token_s) == (0.0, 0.0)
