"""Two ranks drawn from the request's id, the lighter of them: nearly as even as all, at the price of two."""

from dpactors.serving.policy.choice import Asked, Choice, draw, lightest
from dpactors.serving.protocol.load import LoadView


def power_of_two(view: LoadView, request: Asked, seed: int = 0) -> Choice:
    """The lighter of two ranks, the one drawn first on ties; lightness is requests, own in-flight at least."""
    order = view.order
    drawn = draw(request.request_id.encode(), seed)
    first = drawn % len(order)
    if len(order) == 1:
        return Choice(order[0].rank, order[0].load, "the only rank", view.turn)
    two = order[first], order[(first + 1 + (drawn >> 32) % (len(order) - 1)) % len(order)]
    return lightest(two, [rank.load for rank in two], "lighter of two drawn", view.turn)
