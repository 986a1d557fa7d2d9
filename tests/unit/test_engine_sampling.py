"""Sampling is a function of logits, parameters, seed and position, and draws what it should."""

from collections import Counter

import attrs
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from dpactors.engine.sampling import draw, draw_one, uniform
from dpactors.message.message import tokens
from dpactors.serving.jobs import SequenceSlice
from dpactors.serving.messages import Sampling

PLAIN = Sampling(temperature=1.0, top_p=1.0, top_k=0, seed=5, stop_token_ids=tokens(), ignore_eos=False, min_tokens=0)
GREEDY = attrs.evolve(PLAIN, temperature=0.0)
LOGITS = torch.tensor([0.5, 0.1, 0.3, 0.0999, 0.0001]).log()


def part(sampling: Sampling | None, position: int = 0, banned: tuple[int, ...] = ()) -> SequenceSlice:
    """One sequence's part of a step, as far as sampling looks."""
    return SequenceSlice(1, 0, tokens([0]), sampling, position, tokens(banned))


def drawn(sampling: Sampling, logits: Tensor = LOGITS, count: int = 2000) -> Counter[int]:
    """How often each token comes at `count` positions."""
    return Counter(draw_one(logits, sampling, position) for position in range(count))


def test_the_uniform_number_depends_on_seed_and_position_only() -> None:
    """These values are a promise: another version must continue a stream with the same tokens."""
    expected = [0.0564663990004608, 0.44008326622012284, 0.6487508310490744]
    assert expected == [uniform(0, 0), uniform(0, 1), uniform(1, 0)]
    assert uniform(-1, 3) == uniform(2**64 - 1, 3)


def test_uniform_numbers_fill_the_interval() -> None:
    numbers = [uniform(7, position) for position in range(4000)]

    assert all(0.0 <= number < 1.0 for number in numbers)
    assert [True] * 10 == [350 < sum(low / 10 <= n < (low + 1) / 10 for n in numbers) < 450 for low in range(10)]


def test_temperature_zero_is_greedy() -> None:
    assert [0] == list(draw(LOGITS.unsqueeze(0).clone(), [part(GREEDY)]))


def test_banned_ids_are_not_drawn_and_ids_outside_the_vocabulary_ignored() -> None:
    logits = LOGITS.repeat(2, 1)

    assert [2, 0] == list(draw(logits, [part(GREEDY, banned=(0, 99, -5)), part(GREEDY)]))


def test_a_chunk_that_draws_nothing_has_no_row() -> None:
    assert [0] == list(draw(LOGITS.unsqueeze(0).clone(), [part(None), part(GREEDY), part(None)]))
    assert [] == list(draw(LOGITS[None, :0][:0], []))


def test_frequencies_follow_the_distribution() -> None:
    counts = drawn(PLAIN)

    assert abs(counts[0] / 2000 - 0.5) < 0.05
    assert abs(counts[2] / 2000 - 0.3) < 0.05


@pytest.mark.parametrize(
    ("changes", "possible"),
    [
        ({"top_k": 1}, {0}),
        ({"top_k": 2}, {0, 2}),
        ({"top_p": 0.4}, {0}),
        ({"top_p": 0.51}, {0, 2}),
        ({"top_p": 0.0}, {0}),
        # Top-p counts what top-k left over: 0.5 of 0.8 is under 0.7, so the second is still in.
        ({"top_k": 2, "top_p": 0.7}, {0, 2}),
        ({"top_k": 2, "top_p": 0.6}, {0}),
        ({"temperature": 0.001}, {0}),
        ({"top_k": 99}, {0, 1, 2, 3}),
    ],
)
def test_what_may_be_drawn(changes: dict[str, float], possible: set[int]) -> None:
    assert possible == set(drawn(attrs.evolve(PLAIN, **changes), count=500)) - {4}


@settings(max_examples=60, deadline=None)
@given(
    seed=st.integers(0, 2**62),
    position=st.integers(0, 10_000),
    temperature=st.floats(1e-4, 5.0),
    top_p=st.floats(0.0, 1.0),
    top_k=st.integers(0, 60),
    company=st.integers(0, 3),
)
def test_a_draw_does_not_depend_on_its_company(
    seed: int, position: int, temperature: float, top_p: float, top_k: int, company: int
) -> None:
    """Nor on earlier draws: called again, it gives the same."""
    logits = torch.randn(1 + company, 50, generator=torch.Generator().manual_seed(seed % 1000)) * 5
    sampling = attrs.evolve(PLAIN, seed=seed, temperature=temperature, top_p=top_p, top_k=top_k)
    others = [part(attrs.evolve(PLAIN, seed=one), position=one) for one in range(company)]

    alone = draw(logits[-1:].clone(), [part(sampling, position)])
    together = draw(logits.clone(), [*others, part(sampling, position)])

    assert alone[0] == together[-1]
    assert 0 <= alone[0] < 50


def test_a_banned_token_is_never_drawn_at_any_temperature() -> None:
    for position in range(200):
        (token,) = draw(LOGITS.unsqueeze(0).clone(), [part(PLAIN, position, banned=(0, 2))])
        assert token not in {0, 2}
