"""Policies by name: pure functions of a load view."""

from collections.abc import Callable, Mapping
from typing import TypeAlias

from attrs import frozen

from dpactors.serving.protocol.load import LoadView, RankView


@frozen
class Choice:
    """A rank, the score that chose it, and how far the next scan's start moves."""

    rank: int
    score: float
    rotate: int


Policy: TypeAlias = Callable[[LoadView], Choice]


def vllm(view: LoadView) -> Choice:
    """The score of vLLM 0.32: own in-flight as a floor, a penalty for waiting behind a full KV cache, rotating ties.

    score = max(clients * in_flight, waiting + running) + waiting * 6 * max(0, kv_used - 0.5).
    Differs from vLLM where LoadView does: own unreported dispatches stay counted across snapshots.
    """

    def score(rank: RankView) -> float:
        waiting = rank.waiting + view.clients * rank.unseen
        base = float(max(view.clients * rank.in_flight, waiting + rank.running))
        return base + waiting * 6 * max(0.0, rank.kv_used - 0.5)

    return _lightest(view, score, rotate=1)


def vllm_classic(view: LoadView) -> Choice:
    """The score of vLLM before mid-2026: 4 * waiting + running, ties to the first in scan order."""

    def score(rank: RankView) -> float:
        return 4.0 * (rank.waiting + view.clients * rank.unseen) + rank.running

    return _lightest(view, score, rotate=0)


POLICIES: Mapping[str, Policy] = {"vllm": vllm, "vllm_classic": vllm_classic}


def _lightest(view: LoadView, score: Callable[[RankView], float], rotate: int) -> Choice:
    ranks = list(view.ranks.values())
    start = view.start % len(ranks)
    scored = [(score(rank), rank.rank) for rank in ranks[start:] + ranks[:start]]
    best_score, best_rank = min(scored, key=lambda pair: pair[0])
    return Choice(best_rank, best_score, rotate)
