"""Which tokens of which requests the next step computes: continuous batching over paged KV.

A step reads plan, run, postprocess. Rule 1: blocks are freed only between postprocess and plan, so a running step
never loses the memory it writes. Rule 2: the oldest running request can always go on, so nothing deadlocks.
"""

from array import array
from collections import deque
from collections.abc import Iterable

from attrs import define, field, frozen

from dpactors.actor.address import Address
from dpactors.message.message import Tokens, tokens
from dpactors.serving.jobs import RunStep, SequenceSlice, StepResult
from dpactors.serving.messages import FinishReason, Generate, RequestOutput, Sampling
from dpactors.serving.scheduling.blocks import KVBlocks
from dpactors.serving.scheduling.pace import Outlook
from dpactors.serving.settings import EngineSettings

Output = tuple[Address, RequestOutput]
"""News of one request and whom it is for."""

_NOTHING = tokens()
_DUMMY = RunStep(tokens=tokens([0]), positions=tokens([0]), slots=tokens([-1]), sequences=())


def dummy() -> RunStep:
    """The step of a rank without work: one token, slot -1, no sequences."""
    return _DUMMY


@define(eq=False)
class _Sequence:
    """One request on its way. Mutable and compared by identity: it changes in every step."""

    generate: Generate
    owner: Address
    max_tokens: int
    """As asked, clamped to the context limit."""
    stops: frozenset[int]
    tokens: Tokens
    """Prompt and drawn tokens, shape [prompt_len + drawn]."""
    computed: int = 0
    """How many of `tokens` have their KV in `blocks`."""
    blocks: list[int] = field(factory=list[int])

    @property
    def sampling(self) -> Sampling:
        return self.generate.sampling

    @property
    def drawn(self) -> int:
        return len(self.tokens) - len(self.generate.prompt)

    @property
    def left(self) -> int:
        return len(self.tokens) - self.computed

    @property
    def decoding(self) -> bool:
        return self.left == 1

    def output(self, new: Tokens, finish: FinishReason | None, stop_token: int | None) -> RequestOutput:
        return RequestOutput(
            request_id=self.generate.request_id,
            position=self.drawn - len(new),
            tokens=new,
            finish=finish,
            stop_token=stop_token,
            error=None,
            status=200,
            cached_tokens=0,
        )


@frozen(eq=False)
class _Part:
    """One sequence's share of a planned step."""

    sequence: _Sequence
    query: int
    draws: bool


@define(eq=False)
class _Planned:
    """A step that was handed out and not yet postprocessed."""

    step: RunStep
    parts: list[_Part]
    aborted: set[str] = field(factory=set[str])


class Scheduler:
    """An engine's queue: waiting and running requests, and the KV blocks that the running ones hold.

    Mutable, because the state is large and each step changes a little of it. Between `plan` and `postprocess` only
    `add`, `abort` and `repeat` may be called.
    """

    def __init__(
        self, settings: EngineSettings, end_tokens: Tokens, max_model_len: int, kv_blocks: int, vocab_size: int = 0
    ) -> None:
        """`max_model_len` in tokens, `kv_blocks` in blocks, as in ModelLoaded; `vocab_size` 0 checks no token id."""
        assert settings.max_step_tokens >= 1
        assert settings.max_running >= 1
        self._block_size = settings.block_size
        self._max_running = settings.max_running
        self._max_step_tokens = settings.max_step_tokens
        self._max_model_len = max_model_len
        self._vocab_size = vocab_size
        self._end_tokens = frozenset(end_tokens)
        self._blocks = KVBlocks(kv_blocks)
        self._waiting: deque[_Sequence] = deque()
        self._waiting_tokens = 0
        self._running: list[_Sequence] = []
        self._by_id: dict[str, _Sequence] = {}
        self._planned: _Planned | None = None
        self.preemptions = 0

    # --------------------------------------------------------- what the load report says

    @property
    def waiting(self) -> int:
        """Requests that hold no KV."""
        return len(self._waiting)

    @property
    def running(self) -> int:
        """Requests that hold KV and are still wanted."""
        return len(self._running)

    @property
    def unfinished(self) -> bool:
        """Whether any request still wants a step."""
        return bool(self._waiting or self._running)

    @property
    def kv_used(self) -> float:
        """Share of KV blocks in use, 0 to 1."""
        return self._blocks.used

    def outlook(self) -> Outlook:
        """What the step that runs, or the next one, prefills, and what is left for later ones."""
        decoding = sum([sequence.decoding for sequence in self._running])
        todo = self._waiting_tokens + sum([s.left for s in self._running if not s.decoding])
        if self._planned is None:
            step = min(todo, max(0, self._max_step_tokens - decoding))
        else:
            step = sum([part.query for part in self._planned.parts if not part.sequence.decoding])
        return Outlook(decoding, self._waiting_tokens, max(0, todo - step), step, self._blocks.held * self._block_size)

    # --------------------------------------------------------- requests come and go

    def owned_by(self, owner: Address) -> list[str]:
        """Ids of the requests that came from `owner`, in order of arrival."""
        return [request_id for request_id, sequence in self._by_id.items() if sequence.owner == owner]

    def add(self, generate: Generate, owner: Address, resume: Tokens = _NOTHING) -> RequestOutput | None:
        """Queue a request for `owner`; None accepts it, an output with finish ``error`` says why it can never run.

        `resume` holds output tokens drawn elsewhere: they are prefilled like the prompt and counted like output.
        """
        problem = self._problem(generate)
        if problem is not None:
            return RequestOutput(generate.request_id, 0, _NOTHING, "error", None, problem, 400, 0)
        sampling = generate.sampling
        ends = frozenset[int]() if sampling.ignore_eos else self._end_tokens
        sequence = _Sequence(
            generate=generate,
            owner=owner,
            max_tokens=self._clamped(generate),
            stops=ends | frozenset(sampling.stop_token_ids),
            tokens=generate.prompt + resume,
        )
        self._by_id[generate.request_id] = sequence
        self._waiting.append(sequence)
        self._waiting_tokens += len(sequence.tokens)
        return None

    def _clamped(self, generate: Generate) -> int:
        return min(generate.max_tokens, self._max_model_len - len(generate.prompt))

    def _problem(self, generate: Generate) -> str | None:
        prompt = generate.prompt
        if not prompt:
            return "the prompt is empty; it needs at least one token"
        if len(prompt) + 1 > self._max_model_len:
            return (
                f"the prompt has {len(prompt)} tokens and leaves no room for an answer: "
                f"prompt and answer together may have {self._max_model_len}"
            )
        if generate.max_tokens < 1:
            return f"max_tokens is {generate.max_tokens}; it must be at least 1"
        if self._vocab_size and not 0 <= min(prompt) <= max(prompt) < self._vocab_size:
            return f"the prompt has a token id outside the vocabulary; ids go from 0 to {self._vocab_size - 1}"
        needed = self._blocks_for(len(prompt) + self._clamped(generate) - 1)
        if needed > self._blocks.count:
            return (
                f"the request needs {needed} KV blocks of {self._block_size} tokens for prompt and answer; "
                f"this engine has {self._blocks.count}"
            )
        if generate.request_id in self._by_id:
            return f"a request {generate.request_id!r} is already here"
        return None

    def abort(self, request_ids: Iterable[str]) -> list[Output]:
        """Forget these requests and say so to their owners; unknown ids are no error."""
        outputs: list[Output] = []
        for request_id in request_ids:
            sequence = self._by_id.pop(request_id, None)
            if sequence is None:
                continue
            outputs.append((sequence.owner, sequence.output(_NOTHING, "abort", None)))
            if sequence in self._running:
                self._running.remove(sequence)
            else:
                self._waiting.remove(sequence)
                self._waiting_tokens -= len(sequence.tokens)
            if self._in_step(sequence):
                # The step thread may be writing to its blocks now: postprocess frees them.
                assert self._planned is not None
                self._planned.aborted.add(request_id)
            else:
                self._release(sequence)
        return outputs

    def _in_step(self, sequence: _Sequence) -> bool:
        return self._planned is not None and any(part.sequence is sequence for part in self._planned.parts)

    def _release(self, sequence: _Sequence) -> None:
        self._blocks.free(sequence.blocks)
        sequence.blocks = []
        sequence.computed = 0

    # --------------------------------------------------------- plan

    def plan(self) -> RunStep | None:
        """The next step: decodes, then chunks of running prefills, then new requests; None when there is no work."""
        assert self._planned is None, "the last planned step was not postprocessed"
        budget = self._max_step_tokens
        parts: list[_Part] = []
        preempted = False
        for sequence in list(self._running):
            if budget == 0:
                break
            if not sequence.decoding or not sequence.blocks:  # without blocks it was preempted a moment ago
                continue
            before = self.preemptions
            fits = self._grow(sequence)
            preempted = preempted or before != self.preemptions
            if fits:
                parts.append(_Part(sequence, 1, draws=True))
                budget -= 1
        for sequence in self._running:
            if budget == 0:
                break
            if not sequence.decoding:
                parts.append(_chunk(sequence, budget))
                budget -= parts[-1].query
        # A request admitted right after a preemption would take the blocks that were just won.
        while budget and not preempted and self._admit():
            parts.append(_chunk(self._running[-1], budget))
            budget -= parts[-1].query
        if not parts:
            assert not self.unfinished, "requests wait and no step can run"
            return None
        self._planned = _Planned(self._step(parts), parts)
        return self._planned.step

    def _blocks_for(self, length: int) -> int:
        return -(-length // self._block_size)

    def _grow(self, sequence: _Sequence) -> bool:
        """Room for one more token's KV, by preemption of newer requests if need be; False if it fell itself."""
        if sequence.computed < len(sequence.blocks) * self._block_size:
            return True
        while not self._blocks.available:
            victim = self._running.pop()
            self._release(victim)
            self._waiting.appendleft(victim)
            self._waiting_tokens += len(victim.tokens)
            self.preemptions += 1
            if victim is sequence:
                return False
        sequence.blocks += self._blocks.allocate(1)
        return True

    def _admit(self) -> bool:
        """Move the first waiting request to running, with blocks for all its tokens; False if it must wait."""
        if not self._waiting or len(self._running) >= self._max_running:
            return False
        needed = self._blocks_for(len(self._waiting[0].tokens))
        # One block each for those who run already: else they would preempt the newcomer at once.
        if needed + len(self._running) > self._blocks.available:
            return False
        sequence = self._waiting.popleft()
        self._waiting_tokens -= len(sequence.tokens)
        sequence.blocks = self._blocks.allocate(needed)
        self._running.append(sequence)
        return True

    def _step(self, parts: list[_Part]) -> RunStep:
        ids, positions, slots = array("i"), array("i"), array("i")
        slices: list[SequenceSlice] = []
        size = self._block_size
        for part in parts:
            sequence, start, end = part.sequence, part.sequence.computed, part.sequence.computed + part.query
            ids += sequence.tokens[start:end]
            positions.extend(range(start, end))
            slots.extend(sequence.blocks[at // size] * size + at % size for at in range(start, end))
            slices.append(
                SequenceSlice(
                    query=part.query,
                    context=start,
                    blocks=array("i", sequence.blocks[: self._blocks_for(end)]),
                    sampling=sequence.sampling if part.draws else None,
                    position=sequence.drawn,
                    banned=_banned(sequence),
                )
            )
        return RunStep(ids, positions, slots, tuple(slices))

    def repeat(self) -> RunStep:
        """The last planned step once more, after it failed; nothing has changed since `plan`."""
        assert self._planned is not None, "no planned step is open"
        return self._planned.step

    # --------------------------------------------------------- postprocess

    def postprocess(self, result: StepResult) -> list[Output]:
        """Book the last planned step's result and say what it brought; a dummy step brings nothing."""
        planned, self._planned = self._planned, None
        if planned is None:
            assert not result.tokens, "tokens were drawn and no step was planned"
            return []
        drawn = iter(result.tokens)
        assert sum(part.draws for part in planned.parts) == len(result.tokens), "drawn tokens do not match the step"
        outputs: list[Output] = []
        for part in planned.parts:
            sequence = part.sequence
            token = next(drawn) if part.draws else None
            if sequence.generate.request_id in planned.aborted and sequence not in self._running:
                self._release(sequence)
                continue
            sequence.computed += part.query
            if token is not None:
                outputs.append((sequence.owner, self._append(sequence, token)))
        return outputs

    def _append(self, sequence: _Sequence, token: int) -> RequestOutput:
        assert sequence.computed == len(sequence.tokens), "a token was drawn before its context was computed"
        sequence.tokens.append(token)
        finish: FinishReason | None = None
        stop_token: int | None = None
        if token in sequence.stops and sequence.drawn >= sequence.sampling.min_tokens:
            finish, stop_token = "stop", token
        elif sequence.drawn >= sequence.max_tokens:
            finish = "length"
        if finish is not None:
            self._running.remove(sequence)
            del self._by_id[sequence.generate.request_id]
            self._release(sequence)
        return sequence.output(tokens([token]), finish, stop_token)

    # --------------------------------------------------------- invariants

    def check(self) -> None:
        """Assert the invariants: every block is held by exactly one wanted or just aborted request, none leaks."""
        self._blocks.check()
        leaving = self._leaving()
        held = [block for sequence in [*self._running, *leaving] for block in sequence.blocks]
        assert len(set(held)) == len(held), "two requests hold one block"
        assert all(self._blocks.references(block) == 1 for block in held), "a reference count differs from its holders"
        assert len(held) + self._blocks.available == self._blocks.count, "a block is held by nobody"
        assert all(not sequence.blocks and sequence.computed == 0 for sequence in self._waiting), "a waiter holds KV"
        assert self._waiting_tokens == sum(len(one.tokens) for one in self._waiting), "waiting tokens miscounted"
        assert len(self._running) <= self._max_running, "too many running"
        assert len(self._by_id) == len(self._waiting) + len(self._running), "a request was lost"
        for sequence in self._running:
            assert sequence.computed <= len(sequence.blocks) * self._block_size, "KV beyond its blocks"
            assert sequence.computed < len(sequence.tokens) <= self._max_model_len, "a finished request runs"

    def _leaving(self) -> list[_Sequence]:
        if self._planned is None:
            return []
        return [part.sequence for part in self._planned.parts if part.sequence not in self._running]


def _chunk(sequence: _Sequence, budget: int) -> _Part:
    query = min(sequence.left, budget)
    return _Part(sequence, query, draws=query == sequence.left)


def _banned(sequence: _Sequence) -> Tokens:
    # As in vLLM 0.32: a request may only end after min_tokens others, so its end token comes on top of them.
    if sequence.drawn >= sequence.sampling.min_tokens:
        return _NOTHING
    return array("i", sorted(sequence.stops))
