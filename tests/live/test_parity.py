"""Greedy answers in float32 are transformers' answers, at any number of ranks and in any company.

The oracle reads our own output: each of our tokens must be within 1e-3 of the best logit at its place. So two nearly
equal logits never fail the test, and an error anywhere does.
"""

import random
from pathlib import Path
from typing import Any

import pytest
import torch
from tokenizers import Tokenizer

from dpactors.engine.exchange import LocalExchange
from dpactors.models import model_dir
from dpactors.serving.jobs import RunStep
from dpactors.serving.settings import EngineSettings
from scripts.make_dense import write_dense
from tests.ranks import Ranks, ask

TOLERANCE = 1e-3

SENTENCES = (
    "What is a wave?",
    "<user>What is a rank?",
    "The coordinator",
    "def main():",
    "Once upon a time, in a small village",
    "1 + 1 =",
    "Zürich, 東京 and São Paulo",
    "a",
    "    ",
    "Expert parallelism means that each rank holds some of the experts, and rows travel to them.",
)


class Oracle:
    """The same checkpoint in transformers; remembers what it has judged."""

    def __init__(self, directory: Path) -> None:
        import transformers

        self.model = transformers.AutoModelForCausalLM.from_pretrained(
            directory, dtype=torch.float32, attn_implementation="eager"
        ).eval()
        self.judged: dict[tuple[int, ...], float] = {}

    def worst(self, prompt: list[int], answer: list[int]) -> float:
        """How far the worst of `answer`'s tokens is below the best logit at its place."""
        ids = (*prompt, *answer)
        if ids not in self.judged:
            with torch.inference_mode():
                logits = self.model(torch.tensor([ids])).logits[0, len(prompt) - 1 : -1]
            ours = logits.gather(1, torch.tensor(answer).unsqueeze(1)).squeeze(1)
            self.judged[ids] = float((logits.max(dim=1).values - ours).max())
        return self.judged[ids]


@pytest.fixture(scope="module")
def oracle() -> Oracle:
    torch.set_num_threads(1)
    return Oracle(model_dir("tiny-moe"))


def varied_prompts(count: int, longest: int, seed: int) -> list[list[int]]:
    """Sentences, then random ids of all lengths up to `longest`."""
    tokenizer: Any = Tokenizer.from_file(str(model_dir("tiny-moe") / "tokenizer.json"))
    prompts: list[list[int]] = [tokenizer.encode(sentence).ids for sentence in SENTENCES]
    draw = random.Random(seed)
    while len(prompts) < count:
        prompts.append([draw.randrange(3072) for _ in range(draw.randint(1, longest))])
    return prompts


@pytest.mark.parametrize("size", [1, 2, 4])
def test_fifty_prompts(oracle: Oracle, size: int) -> None:
    """Spread unevenly: the last rank gets only every seventh prompt, so it makes dummy steps."""
    prompts = varied_prompts(50, longest=60, seed=1)
    ranks = range(size)
    by_rank = [[index for index in range(50) if _rank_of(index, size) == rank] for rank in ranks]

    with Ranks(size, EngineSettings(kv_blocks=128, max_running=8)) as group:
        answers, steps = group.serve(
            [[ask(f"p{index}", prompts[index], 12) for index in by_rank[rank]] for rank in ranks]
        )

    assert 50 == len(answers)
    assert {f"p{index}": 12 for index in range(50)} == {name: len(answer) for name, answer in answers.items()}
    far = {name: oracle.worst(prompts[int(name[1:])], answer) for name, answer in answers.items()}
    assert {} == {name: distance for name, distance in far.items() if distance > TOLERANCE}
    assert 1 == len({len(one) for one in steps}), "a rank made more steps than another"
    if size > 1:
        assert any(not step.sequences for step in steps[-1]), "no rank made a dummy step"


def _rank_of(index: int, size: int) -> int:
    return size - 1 if index % 7 == 0 else index % max(1, size - 1)


@pytest.mark.parametrize("size", [1, 2])
def test_thirty_two_at_once_of_mixed_lengths(oracle: Oracle, size: int) -> None:
    """Chunked prefill beside decode."""
    prompts = varied_prompts(32, longest=200, seed=2)
    lengths = [1 + (index * 7) % 48 for index in range(32)]
    settings = EngineSettings(kv_blocks=512, max_running=32, max_step_tokens=256)

    with Ranks(size, settings) as group:
        answers, steps = group.serve(
            [
                [ask(f"p{index}", prompts[index], lengths[index]) for index in range(rank, 32, size)]
                for rank in range(size)
            ]
        )

    assert {f"p{index}": lengths[index] for index in range(32)} == {
        name: len(answer) for name, answer in answers.items()
    }
    far = {name: oracle.worst(prompts[int(name[1:])], answer) for name, answer in answers.items()}
    assert {} == {name: distance for name, distance in far.items() if distance > TOLERANCE}
    assert any(_mixes(step) for step in steps[0]), "no step had prefill and decode"
    assert max(len(step.sequences) for step in steps[0]) > 24 // size, "they were not served at once"


def _mixes(step: RunStep) -> bool:
    queries = [part.query for part in step.sequences]
    return min(queries, default=0) == 1 < max(queries, default=0)


def test_a_preempted_request_is_computed_again_and_goes_on(oracle: Oracle) -> None:
    prompts = varied_prompts(24, longest=12, seed=5)[-4:]
    with Ranks(1, EngineSettings(kv_blocks=16, block_size=4)) as group:
        answers, _ = group.serve([[ask(f"p{index}", prompt, 40) for index, prompt in enumerate(prompts)]])

    assert group.preemptions > 0, "KV never ran short"
    for name, answer in answers.items():
        assert 40 == len(answer)
        assert oracle.worst(prompts[int(name[1:])], answer) < TOLERANCE


def test_a_dense_checkpoint_has_transformers_logits(tmp_path: Path) -> None:
    """Random weights, prompt in chunks, then decode: every logit that we see, relative to the largest."""
    directory = write_dense(tmp_path)
    oracle = Oracle(directory)
    draw = random.Random(4)
    prompt = [draw.randrange(3072) for _ in range(70)]
    settings = EngineSettings(model=str(directory), kv_blocks=16, max_step_tokens=32)

    with Ranks(1, settings) as group:
        answers, (steps,) = group.serve([[ask("p", prompt, 10)]])
        decoder = group.performers[0].decoder
        assert decoder is not None
        with torch.inference_mode():
            seen = torch.cat([decoder.forward(step, LocalExchange()) for step in steps])

    assert 12 == len(steps)
    with torch.inference_mode():
        expected = oracle.model(torch.tensor([[*prompt, *answers["p"]]])).logits[0, len(prompt) - 1 : -1]
    assert expected.shape == seen.shape
    assert float((expected - seen).abs().max() / expected.abs().max()) < 1e-4
