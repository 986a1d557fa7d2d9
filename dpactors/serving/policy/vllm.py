"""The two scores of vLLM's DPLBAsyncMPClient.

Both differ from vLLM in one thing: dispatches that no report has counted stay in `waiting` and `load`, where vLLM
forgets them with each snapshot.
"""

from dpactors.serving.policy.choice import Asked, Choice, lightest, scan
from dpactors.serving.protocol.load import LoadView

HALF_FULL = 0.5
"""KV use from which waiting is weighed more."""


def vllm(view: LoadView, _: Asked) -> Choice:
    """VLLM 0.32: own in-flight as a floor, a penalty for waiting behind a full KV cache, rotating ties.

    score = max(clients * in_flight, waiting + running) + waiting * 6 * max(0, kv_used - 0.5).
    """
    ranks = scan(view)
    scores = [
        rank.load + rank.waiting * 6 * (rank.kv_used - HALF_FULL)
        if rank.waiting and rank.kv_used > HALF_FULL
        else rank.load
        for rank in ranks
    ]
    return lightest(ranks, scores, "lightest by vLLM's score", view.turn + 1)


def vllm_classic(view: LoadView, _: Asked) -> Choice:
    """VLLM before mid-2026: 4 * waiting + running, ties to the first in a scan that never turns."""
    ranks = scan(view)
    scores = [3 * rank.waiting + rank.requests for rank in ranks]
    return lightest(ranks, scores, "lightest by vLLM's older score", view.turn)
