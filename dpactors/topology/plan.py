"""Graph -> what each host starts: processes, links between them, sockets, start order."""
from typing import Literal

from attrs import frozen

from dpactors.actor.address import Address, Setup
from dpactors.actor.actor import Actor


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
