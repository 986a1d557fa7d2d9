"""The validated graph: every instance placed, every link between real ports."""

from collections.abc import Iterator, Mapping
from typing import Any, TypeAlias

from attrs import frozen

from dpactors.actor.actor import Actor
from dpactors.actor.address import Address, Group
from dpactors.actor.port import Port
from dpactors.topology.document import Document, GroupEntry, Seat, Wire
from dpactors.topology.errors import TopologyError
from dpactors.topology.settings import make_settings

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


def build(document: Document, catalogue: Catalogue) -> Graph:
    """Expand a document that ``check`` found clean; indices count over hosts in the order of ``place``.

    Raises TopologyError for what was wrong with the shape of the file; all other rules are ``check``'s.
    """
    if document.problems:
        raise TopologyError(document.problems)
    seats = {seat.name: seat for seat in document.seats}
    groups: dict[str, Group] = {}
    for entry in document.groups:
        seat = group_seat(document, catalogue, entry)
        assert seat is not None, f"groups[{entry.index}] was not checked"
        groups[seat.name] = Group(entry.kind, tuple(Address(seat.name, i) for i in range(len(seat.role.hosts))))
    settings = {seat.name: make_settings(document, seat.role, catalogue[seat.actor]) for seat in seats.values()}
    nodes = [
        Node(Address(seat.name, i), catalogue[seat.actor], role.name, host, settings[seat.name], groups.get(seat.name))
        for role in document.roles
        for i, host in enumerate(role.hosts)
        for seat in document.seats
        if seat.role is role
    ]
    links: list[Link] = []
    for wire in document.wires:
        (source, outlet), (target, inlet) = ends_of(wire)
        for i, j in joined(wire, seats[source], seats[target]):
            links.append(Link(Address(source, i), outlet, Address(target, j), inlet))
    return Graph(document.name, document.hosts, tuple(nodes), tuple(links))


def ends_of(wire: Wire) -> tuple[tuple[str, str], tuple[str, str]]:
    """The two ends of a wire, each as name and port; a port is empty where none is written."""
    (source, _, outlet), (target, _, inlet) = wire.source.partition("."), wire.target.partition(".")
    return (source, outlet), (target, inlet)


def within(source: Seat, target: Seat) -> bool:
    """Whether two actors share a process, so that a wire joins equal indices only."""
    return source.role.name == target.role.name and source.name != target.name


def joined(wire: Wire, source: Seat, target: Seat) -> Iterator[tuple[int, int]]:
    """The pairs of instances that a wire joins; never an instance to itself."""
    froms, tos = source.role.hosts, target.role.hosts
    if wire.reach == "same-index" or within(source, target):
        yield from ((i, i) for i in range(min(len(froms), len(tos))) if source.name != target.name)
        return
    for i, near in enumerate(froms):
        for j, far in enumerate(tos):
            if (wire.reach == "all" or near == far) and (source.name != target.name or i != j):
                yield i, j


def ports_of(actor: type[Actor]) -> dict[str, Port]:
    """All ports of an actor class by name."""
    return {**actor.inlets, **actor.outlets}


def group_seat(document: Document, catalogue: Catalogue, entry: GroupEntry) -> Seat | None:
    """Whose instances are the members: the one actor of the role that has ports for groups; None where unclear."""
    seats = [seat for seat in document.seats if entry.role in (seat.name, seat.role.name) and seat.actor in catalogue]
    able = [seat for seat in seats if any(port.need == "group" for port in ports_of(catalogue[seat.actor]).values())]
    named = [seat for seat in able if seat.name == entry.role]
    return (named or able)[0] if len(named or able) == 1 else None
