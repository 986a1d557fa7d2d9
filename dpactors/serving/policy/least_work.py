"""The rank from which a first token is expected soonest, in seconds, by its own pace.

score = rest of what it has reported (running step, prefill queued behind it)
      + prefill of what it cannot have reported yet and of this prompt (seconds a token, one decode step a chunk)
      + a little for the company the request will have (batch and KV), a lot where its KV does not fit.
"""

from dpactors.serving.policy.choice import Asked, Choice, lightest, scan
from dpactors.serving.protocol.load import LoadView, RankView

WINDOW = 32
"""Most ranks weighed for one request; in larger fleets the next window follows with the next request. The best of 32
is within a hair of the best of 512, and a choice costs the same in both."""
COMPANY = 1 / 64
"""Decode steps that each request there is held to cost: enough to part equals, too little to outweigh a queue."""
KV_FULL = 1.0
"""Decode steps that a full cache is held to cost, for the preemptions that follow."""


def least_work(view: LoadView, request: Asked) -> Choice:
    """The rank whose first token for this request is expected soonest; ties go round."""
    now_s, tokens = request.at_s, request.tokens

    def expected_s(rank: RankView) -> float:
        step_s = rank.decode_step_s
        todo = rank.unseen_todo + tokens
        late_s = rank.free_s - now_s
        score = todo * rank.prefill_token_s + step_s * (
            -(-todo // rank.chunk_tokens) + COMPANY * rank.requests + KV_FULL * rank.kv_used
        )
        if late_s > 0:
            score += late_s
        if tokens > rank.kv_left:  # it waits until others have ended: each step frees about one token a decoder
            score += (tokens - rank.kv_left) * step_s / (rank.decoding or 1)
        return round(score, 6)  # no estimate is better than a microsecond, and equals should tie

    ranks, turn, reason = scan(view), view.turn + 1, "soonest first token"
    if len(ranks) > WINDOW:
        ranks, turn, reason = ranks[:WINDOW], view.turn + WINDOW, "soonest first token of its window"
    return lightest(ranks, [expected_s(rank) for rank in ranks], reason, turn)
