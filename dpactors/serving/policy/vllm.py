"""The two scores of vLLM's DPLBAsyncMPClient.

Both differ from vLLM in one thing: dispatches that no report has counted stay in `waiting` and `load`, where vLLM
forgets them with each snapshot.
"""

from dpactors.serving.policy.choice import Asked, Choice, lightest, scan
from dpactors.serving.protocol.load import LoadView, RankView


def vllm(view: LoadView, _: Asked) -> Choice:
    """VLLM 0.32: own in-flight as a floor, a penalty for waiting behind a full KV cache, rotating ties.

    score = max(clients * in_flight, waiting + running) + waiting * 6 * max(0, kv_used - 0.5).
    """
    return lightest(scan(view), _score, "lightest by vLLM's score", view.turn + 1)


def vllm_classic(view: LoadView, _: Asked) -> Choice:
    """VLLM before mid-2026: 4 * waiting + running, ties to the first in a scan that never turns."""
    return lightest(scan(view), _classic, "lightest by vLLM's older score", view.turn)


def _score(rank: RankView) -> float:
    if rank.waiting and rank.kv_used > 0.5:  # noqa: PLR2004 - vLLM's threshold
        return rank.load + rank.waiting * 6 * (rank.kv_used - 0.5)
    return rank.load


def _classic(rank: RankView) -> float:
    return 3 * rank.waiting + rank.requests
