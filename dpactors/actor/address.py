"""Who an actor is and what it is told of its surroundings before it starts."""

from collections.abc import Mapping
from typing import Any

from attrs import field, frozen


@frozen(order=True, cache_hash=True)
class Address:
    """Which instance of which role: ``engine.2``; the index is the global rank for engines."""

    role: str
    index: int

    def __str__(self) -> str:
        return f"{self.role}.{self.index}"


def parse_address(text: str) -> Address:
    """``engine.2`` as an Address; raises ValueError that says the form."""
    role, dot, index = text.rpartition(".")
    if not dot or not role or not index.isdecimal():
        raise ValueError(f"{text!r} is no address; the form is role.index, for example engine.2")
    return Address(role, int(index))


@frozen
class Group:
    """A set of actors that act as one, such as the ranks of an expert-parallel group."""

    kind: str
    members: tuple[Address, ...]
    """In order of rank."""


def _no_peers() -> Mapping[str, tuple[Address, ...]]:
    return {}


def _no_sharers() -> Mapping[str, int]:
    return {}


@frozen
class Setup:
    """All that an actor knows before its first event; derived from the topology."""

    address: Address
    settings: Any
    """An instance of the actor class's ``Settings``."""
    peers: Mapping[str, tuple[Address, ...]] = field(factory=_no_peers)
    """Outlet name to the actors wired to it, in index order."""
    sources: Mapping[str, tuple[Address, ...]] = field(factory=_no_peers)
    """Inlet name to the actors whose wires end there, in index order."""
    sharers: Mapping[str, int] = field(factory=_no_sharers)
    """Outlet name to the number of actors, this one included, that share its peers."""
    group: Group | None = None
    """The declared group this actor belongs to, or whose members it is wired to."""
    host: str = "node0"
    """Name of its host in the topology."""
    host_address: str = "127.0.0.1"
