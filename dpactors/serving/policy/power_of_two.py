"""Two ranks drawn from the request's id, the lighter of them: nearly as even as all, at the price of two."""

from dpactors.serving.policy.choice import Asked, Choice, draw, lightest
from dpactors.serving.protocol.load import LoadView, RankView


def power_of_two(view: LoadView, request: Asked, seed: int = 0) -> Choice:
    """The lighter of two ranks, the one drawn first on ties; lightness is requests, own in-flight at least."""
    order = view.order
    drawn = draw(request.request_id.encode(), seed)
    first = drawn % len(order)
    if len(order) == 1:
        return lightest(order, _load, "the only rank", view.turn)
    second = (first + 1 + (drawn >> 32) % (len(order) - 1)) % len(order)
    return lightest((order[first], order[second]), _load, "lighter of two drawn", view.turn)


def _load(rank: RankView) -> float:
    return rank.load
