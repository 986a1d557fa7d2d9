"""Prompts that begin alike go to one rank, which then has their KV, unless it has much more to do than others.

Each rank draws a number for a prefix; the lowest owns it (rendezvous hashing), so that a rank that comes or goes moves
its own prefixes only. The guard is that of consistent hashing with bounded loads: an owner above the limit passes a
prefix on to the next lowest, always the same one.
"""

from bisect import bisect
from operator import attrgetter

from dpactors.serving.policy.choice import Asked, Choice, draw
from dpactors.serving.protocol.load import LoadView, RankView

SLACK = 1.25
"""An owner may have this times the mean load: from here on, balance costs more than a repeated prefill saves."""
ALLOWED = 4
"""Requests above that which are always allowed: a batch of a few costs little more than one."""
WINDOW = 32
"""Most ranks that draw for one prefix: those whose own numbers follow its number, so that a choice in a fleet of 512
costs what one in 32 does."""
_ODD = 0x9E3779B97F4A7C15
_MASK = (1 << 64) - 1
_UNIT = 2.0**-64
_salt = attrgetter("salt")


def prefix_affinity(view: LoadView, request: Asked, prefix_tokens: int = 256) -> Choice:
    """The owner of the first `prefix_tokens` of the prompt, or the next in its order below the limit."""
    key = draw(request.prompt[:prefix_tokens].tobytes())
    ranks = _around(view, key) if len(view.order) > WINDOW else view.order
    draws = [((key ^ rank.salt) * _ODD & _MASK) * _UNIT for rank in ranks]
    limit = SLACK * sum([rank.load for rank in ranks]) / len(ranks) + ALLOWED
    at = draws.index(min(draws))
    owner, reason = ranks[at], "owns the prefix"
    if owner.load > limit:
        at = next(place for place in sorted(range(len(ranks)), key=draws.__getitem__) if ranks[place].load <= limit)
        reason = f"next for the prefix: {owner.rank} has {owner.load} requests"
    return Choice(ranks[at].rank, draws[at], reason, view.turn, ranks, draws)


def _around(view: LoadView, key: int) -> list[RankView]:
    at = bisect(view.salted, key, key=_salt) if key <= view.salted[-1].salt else 0
    found = view.salted[at : at + WINDOW]
    return found + view.salted[: WINDOW - len(found)]
