"""Ports: the named, typed doors of an actor. A port is not a socket."""

from typing import Any, Generic, Literal, TypeAlias, TypeVar, overload

from dpactors.actor.address import Address
from dpactors.actor.effects import Send

M = TypeVar("M")
A = TypeVar("A")
B = TypeVar("B")
C = TypeVar("C")
D = TypeVar("D")
E = TypeVar("E")

Fan: TypeAlias = Literal["one", "each"]
"""How an outlet treats its peers: ``one`` named by the sender, or ``each`` of them."""
Delivery: TypeAlias = Literal["reliable", "latest"]
"""``reliable``: in order, exactly once, else reported. ``latest``: only the newest matters."""
Need: TypeAlias = Literal["always", "group", "never"]
"""When a wire is mandatory: always, when its actor is in or next to a declared group, or never."""


class Port:
    """What inlets and outlets share: a name, the message classes, when a wire is needed."""

    def __init__(self, carries: tuple[type, ...], need: Need) -> None:
        self.carries = carries
        self.need: Need = need
        self.name = ""

    def __set_name__(self, owner: type, name: str) -> None:
        self.name = name


class Inlet(Port):
    """A door for messages coming in; the actor's ``on_<name>`` takes them."""


class Outlet(Port, Generic[M]):
    """A door for messages going out; typed, so that a checker refuses a message it does not carry."""

    def __init__(self, carries: tuple[type, ...], fan: Fan, delivery: Delivery, need: Need) -> None:
        super().__init__(carries, need)
        self.fan: Fan = fan
        self.delivery: Delivery = delivery

    def to(self, peer: Address, message: M) -> Send:
        """Send `message` to one peer of this outlet."""
        return Send(self.name, message, peer)

    def each(self, message: M) -> Send:
        """Send `message` to every peer of this outlet."""
        return Send(self.name, message, None)


def inlet(*carries: type, need: Need = "always") -> Inlet:
    """Declare a door for the given message classes."""
    return Inlet(carries, need)


@overload
def outlet(a: type[A], /, *, fan: Fan = ..., delivery: Delivery = ..., need: Need = ...) -> Outlet[A]: ...
@overload
def outlet(
    a: type[A], b: type[B], /, *, fan: Fan = ..., delivery: Delivery = ..., need: Need = ...
) -> Outlet[A | B]: ...
@overload
def outlet(
    a: type[A], b: type[B], c: type[C], /, *, fan: Fan = ..., delivery: Delivery = ..., need: Need = ...
) -> Outlet[A | B | C]: ...
@overload
def outlet(
    a: type[A], b: type[B], c: type[C], d: type[D], /, *, fan: Fan = ..., delivery: Delivery = ..., need: Need = ...
) -> Outlet[A | B | C | D]: ...
@overload
def outlet(
    a: type[A],
    b: type[B],
    c: type[C],
    d: type[D],
    e: type[E],
    /,
    *,
    fan: Fan = ...,
    delivery: Delivery = ...,
    need: Need = ...,
) -> Outlet[A | B | C | D | E]: ...
def outlet(*carries: type, fan: Fan = "one", delivery: Delivery = "reliable", need: Need = "always") -> Outlet[Any]:
    """Declare a door out; `fan`, `delivery` and `need` as in the aliases above."""
    return Outlet(carries, fan, delivery, need)
