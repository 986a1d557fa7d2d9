"""Graph -> what each host starts: processes, links between them, sockets, start order."""

import hashlib
import json
from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any, Literal

import attrs
from attrs import field, frozen

from dpactors.actor.actor import Actor
from dpactors.actor.address import Address, Group, Setup
from dpactors.topology.document import Document
from dpactors.topology.graph import Graph, Link, Node, ends_of
from dpactors.topology.listen import listen_address


@frozen
class Route:
    """One outlet-to-inlet edge that crosses (or stays in) a process; its index on a wire link is its place."""

    source: Address
    outlet: str
    target: Address
    inlet: str
    delivery: Literal["reliable", "latest"]


@frozen
class ActorPlan:
    """One actor of a process."""

    actor: type[Actor]
    setup: Setup


def _no_env() -> Mapping[str, str]:
    return {}


@frozen
class ProcessPlan:
    """One OS process: its actors stand and fall together."""

    name: str
    """`role.index`."""
    role: str
    host: str
    actors: tuple[ActorPlan, ...]
    listen: tuple[str, ...]
    """HTTP addresses (`host:port`) whose listening sockets the supervisor opens and hands on."""
    start_limit_s: float
    cores: tuple[int, ...] = ()
    """CPU cores it may run on; empty is all."""
    env: Mapping[str, str] = field(factory=_no_env)
    """Added to the environment it is started with."""


@frozen
class LinkPlan:
    """The one socket pair between two processes; `binder` < `connector` by name."""

    binder: str
    connector: str
    transport: Literal["ipc", "tcp"]
    routes: tuple[Route, ...]
    """Both directions, in an order that both ends derive alike; the index is the route's number on the wire."""


@frozen
class Plan:
    """Everything `up` needs to know."""

    name: str
    digest: str
    """Hash of all that both ends of a link must agree on."""
    hosts: dict[str, str]
    processes: tuple[ProcessPlan, ...]
    """In start order; stop order is its reverse."""
    links: tuple[LinkPlan, ...]
    local_routes: tuple[Route, ...]
    """Edges between actors of one process."""
    rendezvous_port: int
    """TCP port on each host's address, bound only where a host of the plan runs under another supervisor."""
    keys: str | None
    """Directory of CURVE keys, where `[security] keys` names one."""


def make_plan(document: Document, graph: Graph) -> Plan:
    """What every host starts; the same on each host, whatever the order in which hosts come up."""
    process_of = {node.address: f"{node.role}.{node.address.index}" for node in graph.nodes}
    host_of = {process_of[node.address]: node.host for node in graph.nodes}
    routes = _routes(graph)
    return Plan(
        name=document.name,
        digest=_digest(document, graph),
        hosts=dict(graph.hosts),
        processes=_processes(document, graph, process_of),
        links=_links(routes, process_of, host_of, _over_tcp(document)),
        local_routes=tuple(route for route in routes if process_of[route.source] == process_of[route.target]),
        rendezvous_port=document.rendezvous_port,
        keys=document.keys,
    )


def _routes(graph: Graph) -> list[Route]:
    actors = {node.address: node.actor for node in graph.nodes}
    routes = [
        Route(link.source, link.outlet, link.target, link.inlet, actors[link.source].outlets[link.outlet].delivery)
        for link in graph.links
    ]
    return sorted(routes, key=lambda r: (*_key(r.source), r.outlet, *_key(r.target), r.inlet))


def _key(address: Address) -> tuple[str, int]:
    """Sorts as the address does; comparing plain tuples takes a tenth of the time."""
    return address.role, address.index


def _over_tcp(document: Document) -> set[tuple[str, str, str, str]]:
    """The wires that state tcp, as names and ports of both ends."""
    return {
        (*source, *target) for wire in document.wires if wire.transport == "tcp" for source, target in [ends_of(wire)]
    }


def _links(
    routes: Iterable[Route],
    process_of: Mapping[Address, str],
    host_of: Mapping[str, str],
    over_tcp: set[tuple[str, str, str, str]],
) -> tuple[LinkPlan, ...]:
    pairs: dict[tuple[str, str], list[Route]] = {}
    for route in routes:
        binder, connector = sorted((process_of[route.source], process_of[route.target]))
        if binder != connector:
            pairs.setdefault((binder, connector), []).append(route)
    links: list[LinkPlan] = []
    for (binder, connector), own in sorted(pairs.items()):
        stated = any((r.source.role, r.outlet, r.target.role, r.inlet) in over_tcp for r in own)
        transport = "tcp" if stated or host_of[binder] != host_of[connector] else "ipc"
        links.append(LinkPlan(binder, connector, transport, tuple(own)))
    return tuple(links)


def _processes(document: Document, graph: Graph, process_of: Mapping[Address, str]) -> tuple[ProcessPlan, ...]:
    actors: dict[str, list[ActorPlan]] = {}
    setups = _setups(graph)
    for node in graph.nodes:
        actors.setdefault(process_of[node.address], []).append(ActorPlan(node.actor, setups[node.address]))
    processes: list[ProcessPlan] = []
    for role in document.roles:
        for index, host in enumerate(role.hosts):
            own = tuple(actors[f"{role.name}.{index}"])
            listen = dict.fromkeys(
                listen_address(plan.setup.settings.listen, document.hosts[host], index)
                for plan in own
                if hasattr(plan.setup.settings, "listen")
            )
            name = f"{role.name}.{index}"
            processes.append(
                ProcessPlan(name, role.name, host, own, tuple(listen), role.start_limit_s, role.cores, role.env)
            )
    return tuple(processes)


def _setups(graph: Graph) -> dict[Address, Setup]:
    peers, sources = _ends(graph.links), _ends(Link(k.target, k.inlet, k.source, k.outlet) for k in graph.links)
    groups, sharers = {node.address: node.group for node in graph.nodes}, _sharers(peers)
    return {node.address: _setup(graph, node, _Around(peers, sources, sharers, groups)) for node in graph.nodes}


_Ends = dict[tuple[Address, str], dict[Address, None]]


def _ends(links: Iterable[Link]) -> _Ends:
    """The far ends of each port, every one once."""
    ends: _Ends = {}
    for link in links:
        ends.setdefault((link.source, link.outlet), {})[link.target] = None
    return ends


@frozen
class _Around:
    """What is known of all ports and actors at once."""

    peers: _Ends
    sources: _Ends
    sharers: Mapping[tuple[Address, str], int]
    groups: Mapping[Address, Group | None]


def _setup(graph: Graph, node: Node, around: _Around) -> Setup:
    at = node.address
    peers = {outlet: tuple(sorted(around.peers.get((at, outlet), ()), key=_key)) for outlet in node.actor.outlets}
    sources = {inlet: tuple(sorted(around.sources.get((at, inlet), ()), key=_key)) for inlet in node.actor.inlets}
    neighbours = [peer for ends in (*peers.values(), *sources.values()) for peer in ends]
    beside = next((around.groups[peer] for peer in neighbours if around.groups[peer] is not None), None)
    return Setup(
        address=at,
        settings=node.settings,
        peers=peers,
        sources=sources,
        sharers={outlet: around.sharers[at, outlet] for outlet in peers if peers[outlet]},
        group=node.group or beside,
        host=node.host,
        host_address=graph.hosts[node.host],
    )


def _sharers(peers: _Ends) -> dict[tuple[Address, str], int]:
    """For each outlet of each actor, how many instances send by that outlet to any of its peers, itself included."""
    sets = {(source, outlet): frozenset(ends) for (source, outlet), ends in peers.items()}
    kinds: dict[tuple[str, str], Counter[frozenset[Address]]] = {}  # few: instances mostly have the same peers
    for (source, outlet), own in sets.items():
        kinds.setdefault((source.role, outlet), Counter())[own] += 1
    shared = {
        (kind, own): sum(count for other, count in counts.items() if not own.isdisjoint(other))
        for kind, counts in kinds.items()
        for own in counts
    }
    return {(source, outlet): shared[(source.role, outlet), own] for (source, outlet), own in sets.items()}


def _digest(document: Document, graph: Graph) -> str:
    """Host addresses are left out: each machine may know another by a name of its own."""
    settings = {node.address.role: attrs.asdict(node.settings) for node in graph.nodes if node.group is not None}
    agreed: dict[str, Any] = {
        "name": document.name,
        "roles": [[role.name, list(role.actors), list(role.place.items())] for role in document.roles],
        "groups": sorted([group.role, group.kind] for group in document.groups),
        "wires": sorted([wire.source, wire.target, wire.reach, wire.transport or ""] for wire in document.wires),
        "settings": settings,
    }
    text = json.dumps(agreed, sort_keys=True, separators=(",", ":"), default=str)
    return hashlib.sha256(text.encode()).hexdigest()
