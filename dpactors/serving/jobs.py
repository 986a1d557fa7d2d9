"""Work that takes time, as data: what actors ask of the process they live in.

A job may say things while it runs and be fed; it ends with a result or an error.
"""

from attrs import field, frozen

from dpactors.message.message import Tokens
from dpactors.serving.messages import FinishReason, Generate, RankLoad, Sampling

# ------------------------------------------------------------- engine


@frozen
class LoadModel:
    """Load a checkpoint and reserve its KV; says Progress, ends with ModelLoaded."""

    model: str
    """``tiny-moe`` (bundled) or a Hugging Face checkpoint directory."""
    dtype: str
    """``float32``, ``bfloat16`` or ``auto`` (the checkpoint's)."""
    threads: int
    """Intra-op threads of this process."""
    kv_blocks: int
    block_size: int
    max_model_len: int
    """0 takes the checkpoint's own limit."""
    rank: int
    """This engine's place among `size` holders of experts."""
    size: int
    """1 holds every expert."""


@frozen
class Progress:
    """How far a job is, 0 to 1, and on what."""

    fraction: float
    doing: str


@frozen
class ModelLoaded:
    """What the scheduler must know of the loaded model."""

    name: str
    max_model_len: int
    kv_blocks: int
    end_tokens: Tokens
    vocab_size: int = 0
    """Token ids go from 0 to `vocab_size` - 1; 0 where nobody knows."""


@frozen
class JoinExchange:
    """Meet the other ranks of an epoch; says KeySet, is fed KeyKnown, ends with None."""

    epoch: int
    rank: int
    size: int
    address: str
    """This host's address, on which the other ranks can reach it."""
    exchange: str = "auto"
    """As in the engine's settings."""


@frozen
class KeySet:
    """A rendezvous key that every rank must come to know."""

    key: str
    value: bytes


KeyKnown = KeySet


@frozen
class SequenceSlice:
    """One request's part of a step: `query` new tokens after `context` cached ones."""

    query: int
    context: int
    blocks: Tokens
    """KV blocks of the whole sequence in order, shape [ceil((context + query) / block_size)]."""
    sampling: Sampling | None
    """None where this chunk does not reach the last prompt token: nothing is drawn."""
    position: int
    """Index among the output tokens of the token to draw: 0 for the first."""
    banned: Tokens
    """Ids that may not be drawn now (the end tokens before min_tokens), usually empty."""


@frozen
class RunStep:
    """One forward over the flattened tokens of all sequences; ends with StepResult.

    A dummy step has one token, slot -1 and no sequences: it joins every collective and writes no KV.
    """

    tokens: Tokens
    """Shape [tokens]."""
    positions: Tokens
    """Shape [tokens]; absolute position of each token in its sequence."""
    slots: Tokens
    """Shape [tokens]; block * block_size + offset where its KV goes, -1 writes nothing."""
    sequences: tuple[SequenceSlice, ...]
    """In the order of their tokens."""


@frozen
class StepResult:
    """Drawn tokens, one a sequence that had `sampling`, in order; and how long the step took."""

    tokens: Tokens
    seconds: float


@frozen
class AgreeIdle:
    """The finish agreement: all-reduce of who has work; ends with Agreed. Runs on the step thread."""

    unfinished: bool


@frozen
class Agreed:
    """How many ranks of the group have work."""

    unfinished: int


# ------------------------------------------------------------- HTTP edge


@frozen
class ServeHttp:
    """Serve the OpenAI API; says Submitted and ClientGone, is fed StreamWrite and Availability; never ends."""

    model: str
    """As in LoadModel: the tokenizer and chat template come from there."""
    served_name: str
    listen: str
    """``host:port``; port 0 takes a free one. A socket opened by the supervisor wins."""
    sequences_max: int = 2048
    """In flight; a request that would be more is refused."""
    tokens_max: int = 8 << 20
    """Of the prompts in flight."""
    api_keys: str = ""
    """File of keys, empty for none."""


@frozen
class Listening:
    """The edge accepts connections."""

    urls: tuple[str, ...]


@frozen
class Submitted:
    """One HTTP request wants one sequence; `stream` names it until its last StreamWrite."""

    stream: int
    generate: Generate


@frozen
class ClientGone:
    """The HTTP client left, or its stop string was met: nothing more is wanted of this stream."""

    stream: int


@frozen
class StreamWrite:
    """News for one stream; the last one has `finish`."""

    stream: int
    tokens: Tokens
    finish: FinishReason | None
    stop_token: int | None = None
    error: str | None = None
    status: int = 500
    """HTTP status where `error` is set and nothing was sent yet: 400, 503 or 500."""
    rank: int | None = None
    attempts: int = 1
    cached_tokens: int = 0


@frozen
class Availability:
    """Feeds /ready and the per-rank gauges of /metrics."""

    ready: tuple[int, ...]
    all: tuple[int, ...]
    """Every rank that requests of this edge can reach."""
    max_model_len: int
    loads: tuple[RankLoad, ...] = field(default=())
    wave: int = 0
    running: bool = False
