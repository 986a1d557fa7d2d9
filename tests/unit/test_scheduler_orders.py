"""Whatever arrives, is aborted or fails, and when: each request gets the tokens it would get alone."""

from hypothesis import given, settings
from hypothesis import strategies as st

from dpactors.message.message import Tokens, tokens
from dpactors.serving.messages import RequestOutput
from tests.unit.fake_model import CLIENT, VOCABULARY, FakeModel, alone, ask, joined, next_token, scheduler

REQUEST = st.tuples(
    st.lists(st.integers(0, VOCABULARY - 1), min_size=1, max_size=14),
    st.integers(1, 12),
    st.booleans(),
    st.integers(0, 3),
)


@settings(max_examples=150, deadline=None)
@given(
    requests=st.lists(REQUEST, min_size=1, max_size=12),
    # At each step: how many arrive, whom to abort before and in mid-step, whether the step fails once.
    script=st.lists(st.tuples(st.integers(0, 3), st.integers(0, 30), st.integers(0, 30), st.booleans()), max_size=20),
    kv_blocks=st.integers(7, 12),
    max_step_tokens=st.integers(1, 20),
    max_running=st.integers(1, 6),
)
def test_any_schedule_answers_as_one_request_at_a_time(
    requests: list[tuple[list[int], int, bool, int]],
    script: list[tuple[int, int, int, bool]],
    kv_blocks: int,
    max_step_tokens: int,
    max_running: int,
) -> None:
    queue = scheduler(kv_blocks, max_model_len=28, max_step_tokens=max_step_tokens, max_running=max_running)
    model = FakeModel(4)
    asked = {
        f"r{index}": ask(f"r{index}", prompt, most, ignore_eos=ignore, min_tokens=least)
        for index, (prompt, most, ignore, least) in enumerate(requests)
    }
    heard: dict[str, list[RequestOutput]] = {name: [] for name in asked}
    coming = list(asked.values())
    turn = 0
    while coming or queue.unfinished:
        arrivals, before, during, fails = script[turn] if turn < len(script) else (12, -1, -1, False)
        turn += 1
        assert turn < 2000, "no progress"
        for generate in coming[:arrivals]:
            assert queue.add(generate, CLIENT) is None
        del coming[:arrivals]
        outputs = queue.abort([f"r{before}"])
        plan = queue.plan()
        if plan is not None:
            assert len(plan.tokens) <= max_step_tokens
            assert len(plan.sequences) <= max_running
            outputs += queue.abort([f"r{during}"])
            queue.check()
            if fails:
                model.run(plan)
                plan = queue.repeat()
            outputs += queue.postprocess(model.run(plan))
        queue.check()
        for _, output in outputs:
            heard[output.request_id].append(output)

    for name, outputs in heard.items():
        expected = alone(asked[name], max_model_len=28)
        answer = joined(outputs)
        if outputs[-1].finish == "abort":
            assert expected[: len(answer)] == answer
        else:
            assert expected == answer
            assert ("stop" if answer[-1] == outputs[-1].stop_token else "length") == outputs[-1].finish
    assert 0.0 == queue.kv_used


def test_tokens_of_the_fake_model_depend_on_all_before() -> None:
    """Else the test above would prove nothing."""
    first: Tokens = tokens([1, 2, 3])

    assert len({next_token([*first[:1], other, *first[1:]]) for other in range(20)}) > 5
