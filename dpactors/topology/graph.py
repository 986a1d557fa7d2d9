"""The validated graph: every instance placed, every link between real ports."""
from collections.abc import Mapping
from typing import Any, TypeAlias

from attrs import frozen

from dpactors.actor.actor import Actor
from dpactors.actor.address import Address, Group

Catalogue: TypeAlias = Mapping[str, type[Actor]]
"""Actor names as topology files write them, to classes."""


@frozen
class Node:
    """One instance of an actor."""

    address: Address
    actor: type[Actor]
    role: str
    """The role it was placed by; its process is `role.index`."""
    host: str
    settings: Any
    group: Group | None
    """The declared group it is a member of."""


@frozen
class Link:
    """One instance-to-instance edge that a wire expands to."""

    source: Address
    outlet: str
    target: Address
    inlet: str


@frozen
class Graph:
    """All instances and links of a topology."""

    name: str
    hosts: Mapping[str, str]
    """Host name to address."""
    nodes: tuple[Node, ...]
    """In start order: the order of the roles in the file, then by index."""
    links: tuple[Link, ...]
