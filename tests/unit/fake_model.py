"""A model without weights, and the scheduler's requests and answers around it."""

import hashlib
from collections.abc import Iterable

import attrs

from dpactors.actor.address import Address
from dpactors.message.message import tokens
from dpactors.serving.jobs import RunStep, StepResult
from dpactors.serving.messages import Generate, RequestOutput, Sampling
from dpactors.serving.scheduling.scheduler import Output, Scheduler
from dpactors.serving.settings import EngineSettings

CLIENT = Address("client", 0)
GREEDY = Sampling(temperature=0.0, top_p=1.0, top_k=0, seed=0, stop_token_ids=tokens(), ignore_eos=False, min_tokens=0)
END = 7
VOCABULARY = 50


def ask(name: str, prompt: Iterable[int], max_tokens: int = 4, **sampling: object) -> Generate:
    """A request; `sampling` changes greedy defaults."""
    return Generate(name, tokens(prompt), max_tokens, attrs.evolve(GREEDY, **sampling), rank=None)


def scheduler(kv_blocks: int = 64, max_model_len: int = 64, **changes: int) -> Scheduler:
    """A scheduler with blocks of 4 tokens."""
    chosen = EngineSettings(**{"block_size": 4, "max_step_tokens": 16, "max_running": 8, **changes})
    return Scheduler(chosen, tokens([END]), max_model_len, kv_blocks)


def next_token(ids: Iterable[int], banned: Iterable[int] = ()) -> int:
    """A model without weights: the next token is a hash of all before it."""
    known = ",".join(map(str, ids))
    for salt in range(100):
        token = hashlib.blake2b(f"{salt}:{known}".encode(), digest_size=2).digest()[0] % VOCABULARY
        if token not in banned:
            return token
    raise AssertionError("everything is banned")


class FakeModel:
    """Keeps token ids where a real one keeps KV, so a wrong slot, block or position changes what it draws."""

    def __init__(self, block_size: int) -> None:
        self.block_size = block_size
        self.kv: dict[int, tuple[int, int]] = {}

    def run(self, step: RunStep) -> StepResult:
        """Write the step's tokens to their slots, then draw from what the blocks hold."""
        for token, position, slot in zip(step.tokens, step.positions, step.slots, strict=True):
            assert slot >= 0
            self.kv[slot] = (token, position)
        assert len(set(step.slots)) == len(step.slots), "two tokens in one slot"
        drawn = tokens()
        assert sum(part.query for part in step.sequences) == len(step.tokens)
        for part in step.sequences:
            length = part.context + part.query
            assert len(part.blocks) == -(-length // self.block_size)
            seen: list[int] = []
            for at in range(length):
                token, position = self.kv[part.blocks[at // self.block_size] * self.block_size + at % self.block_size]
                assert position == at
                seen.append(token)
            if part.sampling is not None:
                drawn.append(next_token(seen, part.banned))
        return StepResult(drawn, 0.0)


def alone(generate: Generate, max_model_len: int = 64) -> list[int]:
    """What the fake model answers when it serves one request at a time."""
    ids, answer = list(generate.prompt), list[int]()
    stops = set(generate.sampling.stop_token_ids) | (set() if generate.sampling.ignore_eos else {END})
    while len(answer) < generate.max_tokens and len(ids) < max_model_len:
        banned = stops if len(answer) < generate.sampling.min_tokens else set[int]()
        token = next_token(ids, banned)
        ids.append(token)
        answer.append(token)
        if token in stops:
            break
    return answer


def step(queue: Scheduler, model: FakeModel) -> list[Output]:
    """Plan, run, postprocess, and the invariants after it."""
    plan = queue.plan()
    if plan is None:
        return []
    outputs = queue.postprocess(model.run(plan))
    queue.check()
    return outputs


def finish(queue: Scheduler, model: FakeModel, limit: int = 1000) -> dict[str, list[RequestOutput]]:
    """Step until nothing is left."""
    heard: dict[str, list[RequestOutput]] = {}
    for _ in range(limit):
        if not queue.unfinished:
            return heard
        for _, output in step(queue, model):
            heard.setdefault(output.request_id, []).append(output)
    raise AssertionError(f"requests are left after {limit} steps")


def joined(outputs: list[RequestOutput]) -> list[int]:
    """The tokens of one request, whose positions must follow each other from 0."""
    answer: list[int] = []
    for output in outputs:
        assert output.position == len(answer)
        answer += output.tokens
    assert [output.finish for output in outputs[:-1]] == [None] * (len(outputs) - 1)
    return answer
