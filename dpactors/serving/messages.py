"""The whole vocabulary of data-parallel serving on one page. Ranks are global everywhere."""

from typing import Literal, TypeAlias

from attrs import frozen

from dpactors.message.message import Tokens, message

FinishReason: TypeAlias = Literal["stop", "length", "abort", "error"]
"""``stop``: an end token or stop token; ``length``: max_tokens or the context is full."""

# ------------------------------------------------------------- requests, tokens


@frozen
class Sampling:
    """How to draw tokens; a pure function of logits, seed and position draws them."""

    temperature: float
    """0 is greedy."""
    top_p: float
    top_k: int
    """0 is all."""
    seed: int
    """Always set: the ingress draws one where the user gave none."""
    stop_token_ids: Tokens
    """Beside the model's own end tokens."""
    ignore_eos: bool
    min_tokens: int


@message("request.generate/1")
class Generate:
    """What one user wants. Only the ingress writes it, only an engine core reads it."""

    request_id: str
    prompt: Tokens
    """Token ids, shape [prompt_len]."""
    max_tokens: int
    sampling: Sampling
    rank: int | None
    """A rank the user pinned, else None."""


@message("request.dispatch/1")
class Dispatch:
    """A client hands `generate`, unopened, to the engine core it chose."""

    generate: Generate
    wave: int
    """The wave the client believes is current when it sends; FIRST_REQ carries the same."""
    sequence: int
    """Counts this client's dispatches to this rank from 1; load reports echo the highest accepted."""
    woke: bool
    """The client sent FIRST_REQ with it, so the rank need not ask for a wave at once."""
    resume: Tokens
    """Output tokens an earlier rank has drawn before it was lost; the next one drawn follows them."""


@message("request.abort/1")
class Abort:
    """Forget these requests; unknown ones are no error."""

    request_ids: tuple[str, ...]


@frozen
class RequestOutput:
    """What one step brought to one request."""

    request_id: str
    position: int
    """Index of the first of `tokens` among the request's output tokens, from 0."""
    tokens: Tokens
    """New token ids, shape [new]; empty on abort or error."""
    finish: FinishReason | None
    stop_token: int | None
    """The token that ended it, where one did."""
    error: str | None
    """Why, where finish is ``error``."""
    status: int
    """HTTP status of `error`: 400 refused, 503 no rank could serve it; 200 without one."""
    cached_tokens: int
    """Prompt tokens found in the prefix cache."""


@frozen
class RankLoad:
    """One rank's queue. Counts are requests unless the name says otherwise."""

    rank: int
    report: int
    """Counts this rank's reports from 1; the newest wins."""
    wave: int
    step: int
    waiting: int
    running: int
    decoding: int
    """Of `running`, those that draw a token in every step."""
    waiting_tokens: int
    """Tokens of the waiting ones, whole, cached or not."""
    pending_tokens: int
    """Uncached tokens still to be prefilled when the step that runs or begins now is over."""
    step_tokens: int
    """Tokens that this step prefills; 0 where it only decodes or there is none."""
    step_left_s: float
    """Expected time to its end; where it is overdue, by how much, for it may well take that long again."""
    decode_step_s: float
    """How long a step without prefill takes here, of late; 0 until one was taken."""
    prefill_token_s: float
    """What each prefilled token adds to a step, of late; 0 until one was."""
    kv_tokens: int
    """Tokens for which the KV blocks in use have room."""
    kv_capacity: int
    """Tokens for which all KV blocks have room; 0 until the engine has them."""
    accepted: tuple["ClientMark", ...]

    @property
    def kv_used(self) -> float:
        """Share of KV blocks in use, 0 to 1."""
        return self.kv_tokens / self.kv_capacity if self.kv_capacity else 0.0


@frozen
class ClientMark:
    """The highest dispatch sequence a rank has accepted from one client."""

    client: int
    sequence: int


@message("engine.outputs/2")
class StepOutputs:
    """All that one step brought to one client, with the rank's load after it."""

    load: RankLoad
    outputs: tuple[RequestOutput, ...]


@message("engine.ready/2")
class EngineReady:
    """A rank can take requests."""

    rank: int
    model: str
    max_model_len: int
    """Longest prompt + output, in tokens."""
    kv_blocks: int
    block_size: int
    """Tokens of one KV block."""
    max_step_tokens: int
    """Most tokens that one of its steps computes."""
    reports_from: int
    """Its load reports have higher numbers; what has not is of an earlier life."""


@message("client.reply/1")
class Reply:
    """One request's news on its way back to the ingress."""

    rank: int | None
    """The rank that serves it; None where no rank was reached."""
    attempts: int
    output: RequestOutput


@message("client.ranks/2")
class RanksReady:
    """Which of the client's ranks can take requests, for /ready and the context limit."""

    ready: tuple[int, ...]
    all: tuple[int, ...]
    """Every rank the client is wired to."""
    max_model_len: int
    """Smallest of the ready ranks; 0 while none is ready."""
    loads: tuple[RankLoad, ...]
    """Newest load of each rank known to the client."""
    wave: int
    running: bool


# ------------------------------------------------------------- loads


@message("load.report/2")
class LoadReport:
    """An engine core's load, on change and on a timer."""

    load: RankLoad


@frozen
class HeardLoad:
    """A load on its way through the coordinator."""

    load: RankLoad
    age_s: float
    """How long ago the coordinator heard it, when it published."""


@message("load.snapshot/2")
class LoadSnapshot:
    """The newest load of every rank that reports, and the coordinator's wave evidence."""

    epoch: int
    """The coordinator's incarnation; a lower one is stale."""
    sequence: int
    loads: tuple[HeardLoad, ...]
    """In order of rank; empty where no load wire exists."""
    wave: int
    running: bool


# ------------------------------------------------------------- waves


@message("wave.first_request/1")
class FirstRequest:
    """FIRST_REQ: a client dispatched to `rank` while it believed the group paused."""

    rank: int
    wave: int


@message("wave.start/1")
class StartWave:
    """START_DP_WAVE, to every rank without exception; idempotent."""

    wave: int


@message("wave.wanted/1")
class WaveWanted:
    """A rank has work while its group is paused; repeated until a START answers (level-triggered)."""

    rank: int
    wave: int


@message("wave.joined/1")
class WaveJoined:
    """A rank has entered `wave`: the acknowledgement of its START."""

    rank: int
    wave: int


@message("wave.complete/1")
class WaveComplete:
    """A rank left `wave` because all ranks agreed that none has work."""

    rank: int
    wave: int


# ------------------------------------------------------------- group membership


@message("group.join/1")
class GroupJoin:
    """A rank wants to be in the group, or tells a new coordinator that it is; repeated until answered."""

    rank: int
    """Its place in the group, from 0."""
    epoch: int
    """The epoch it is in and can go on with; 0 where it is in none."""
    seen: int
    """The highest epoch it was ever told of."""
    wave: int
    running: bool


@message("group.form/1")
class FormGroup:
    """Meet in `epoch`: all `size` ranks begin paused at `wave`."""

    epoch: int
    size: int
    wave: int


@message("group.key/1")
class GroupKey:
    """One rendezvous key of the collective library, carried from one rank to all."""

    epoch: int
    key: str
    value: bytes
