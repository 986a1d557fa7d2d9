"""The methods of SGLang 0.5's DataParallelController, decision by decision.

They differ from SGLang in what is told of ranks, not in what is done with it: the view holds only ranks that can take
requests (SGLang's load methods and rooms do not look), and dispatches that no report has counted stay counted.
"""

from dpactors.serving.policy.choice import Asked, Choice, Policy, draw, lightest
from dpactors.serving.protocol.load import LoadView, RankView


def round_robin(view: LoadView, _: Asked) -> Choice:
    """The next of the ranks that can take requests; a rank that leaves shifts the sequence, as there."""
    at = view.turn % len(view.order)
    return Choice(view.order[at].rank, 0.0, "next in turn", (at + 1) % len(view.order))


def follow_bootstrap_room(view: LoadView, request: Asked) -> Choice:
    """Rank number room % slots, dead ones counted; where that one is dead the next living one, not a lost request.

    A request without a room gets one from its id, as SGLang's router rolls dice for it; SGLang itself exits there.
    """
    slots = view.slots
    room = draw(request.request_id.encode()) >> 1 if request.room is None else request.room
    first = room % len(slots)
    for rank in (*slots[first:], *slots[:first]):
        if rank in view.ranks:
            reason = "its room's rank" if rank == slots[first] else f"its room's rank {slots[first]} is not ready"
            return Choice(rank, 0.0, reason, view.turn)
    raise AssertionError("a view with ranks has slots for them")


def total_requests(view: LoadView, _: Asked) -> Choice:
    """Fewest requests waiting and running, ties to the lowest rank."""
    return lightest(view.order, [rank.requests for rank in view.order], "fewest requests", view.turn)


def total_tokens(view: LoadView, _: Asked) -> Choice:
    """Fewest tokens in KV and queue, whole prompts counted; ties to fewer requests, then to the lowest rank."""
    best = min(view.order, key=_tokens_then_requests)
    scores = [rank.tokens for rank in view.order]
    return Choice(best.rank, best.tokens, "fewest tokens", view.turn, view.order, scores)


def auto(pd_role: str) -> Policy:
    """The room where this deployment only prefills, else turns."""
    return follow_bootstrap_room if pd_role == "prefill" else round_robin


def _tokens_then_requests(rank: RankView) -> tuple[int, int]:
    return rank.tokens, rank.requests
