"""Load views and requests for tests of policies."""

from collections.abc import Iterable

from dpactors.message.message import tokens
from dpactors.serving.policy.choice import Asked, Policy
from dpactors.serving.policy.registry import policy_of
from dpactors.serving.protocol.load import LoadView
from dpactors.serving.settings import ClientSettings


def view_of(ranks: int = 2, clients: int = 1, turn: int = 0) -> LoadView:
    """All `ranks` ready, nothing reported."""
    made = LoadView(0, clients, tuple(range(ranks)), turn)
    for rank in range(ranks):
        made.add(rank)
    return made


def named(name: str, **settings: int | str) -> Policy:
    return policy_of(ClientSettings(policy=name, **settings))


def request(name: str = "r", prompt: Iterable[int] = (1, 2, 3), room: int | None = None, at_s: float = 0.0) -> Asked:
    ids = tokens(prompt)
    return Asked(name, ids, len(ids), at_s, room)


def serve(view: LoadView, policy: Policy, asked: Asked) -> int:
    """Choose, remember the turn and book, as the client does; returns the rank."""
    choice = policy(view, asked)
    view.turn = choice.turn
    view.book(choice.rank, asked.tokens)
    return choice.rank


def burst(view: LoadView, name: str, count: int, prompt: int = 3) -> list[int]:
    """The ranks of `count` requests without a report in between."""
    return [serve(view, named(name), request(f"r{n}", range(prompt))) for n in range(count)]
