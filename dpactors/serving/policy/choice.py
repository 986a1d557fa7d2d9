"""What every policy takes and gives."""

from collections.abc import Callable, Sequence
from hashlib import blake2b
from heapq import nsmallest
from typing import TypeAlias

from attrs import define

from dpactors.message.message import Tokens
from dpactors.serving.messages import Generate
from dpactors.serving.protocol.load import LoadView, RankView

CANDIDATES_TOLD = 8
"""Best ranks that a choice names as text: the trace of a large fleet stays readable."""

# Both records are written to by nobody; attrs makes a frozen one three times as slowly, which a choice would feel.


@define
class Asked:
    """What a policy may know of a request."""

    request_id: str
    prompt: Tokens
    tokens: int
    """To prefill: the prompt, and the output that a lost rank has drawn already."""
    at_s: float
    """Now."""
    room: int | None = None
    """SGLang's bootstrap room, a key of up to 63 bits; None where nobody brought one along."""


@define(repr=False)
class Choice:
    """A rank and why; `turn` is where the next choice begins to look. As text it is its best candidates."""

    rank: int
    score: float
    """Lowest wins; 0 where nothing was weighed."""
    reason: str
    turn: int
    scan: Sequence[RankView] = ()
    """The candidates in the order in which they were looked at."""
    scores: Sequence[float] = ()
    """One each."""

    def best(self, count: int) -> list[tuple[int, float]]:
        """At most `count` candidates and their scores, best first."""
        pairs = zip(self.scores, range(len(self.scan)), strict=True)
        return [(self.scan[at].rank, score) for score, at in nsmallest(count, pairs)]

    def __repr__(self) -> str:
        return " ".join(f"{rank}:{score:.6g}" for rank, score in self.best(CANDIDATES_TOLD)) or f"{self.rank} alone"


Policy: TypeAlias = Callable[[LoadView, Asked], Choice]
"""Pure: it writes to nothing, and the same view and request give the same choice. The view has at least one rank."""


def asked(generate: Generate, resumed: int, now_s: float) -> Asked:
    """A request as policies see it, `resumed` output tokens into its answer."""
    return Asked(generate.request_id, generate.prompt, len(generate.prompt) + resumed, now_s)


def draw(text: bytes, seed: int = 0) -> int:
    """64 bits that look random and are a pure function of `text` and `seed`."""
    return int.from_bytes(blake2b(text, digest_size=8, salt=seed.to_bytes(8, "little", signed=True)).digest(), "little")


def scan(view: LoadView) -> list[RankView]:
    """All ranks, from the view's turn on."""
    count = len(view.order)
    at = view.turn % count
    return view.ring[at : at + count]


def lightest(ranks: Sequence[RankView], scores: Sequence[float], reason: str, turn: int) -> Choice:
    """The rank with the smallest score, the first of them on ties."""
    low = min(scores)
    return Choice(ranks[scores.index(low)].rank, low, reason, turn, ranks, scores)
