"""Every ZeroMQ socket that a plan results in, as rows for ``dpactors plan``."""

from collections.abc import Iterator, Mapping

from attrs import frozen

from dpactors.actor.actor import Actor
from dpactors.actor.address import Address
from dpactors.message.message import tag_of
from dpactors.topology.listen import join_address
from dpactors.topology.meetings import meetings
from dpactors.topology.plan import LinkPlan, Plan, Route

RENDEZVOUS = "rendezvous"
"""Stands for the supervisor in the column of processes."""


@frozen
class SocketRow:
    """One ZeroMQ socket of one process."""

    process: str
    host: str
    socket: str
    """ZeroMQ socket type."""
    side: str
    """bind or connect."""
    endpoint: str
    """RUN is the run's socket directory, N the binder's incarnation; port 0 is a free one, announced once bound."""
    peer: str
    delivery: tuple[str, ...]
    tags: tuple[str, ...]
    """Tags of the messages that cross it, both directions."""


def sockets(plan: Plan, host: str | None = None) -> list[SocketRow]:
    """The sockets of the processes of `host` (None: of all hosts), in start order."""
    process_hosts = {process.name: process.host for process in plan.processes}
    actors = {actor.setup.address: actor.actor for process in plan.processes for actor in process.actors}
    rows = list(_rendezvous(plan))
    for process in plan.processes:
        own = (link for link in plan.links if process.name in (link.binder, link.connector))
        rows.extend(_row(plan, process.name, link, process_hosts, actors) for link in own)
    return [row for row in rows if host in (None, row.host)]


def endpoint_text(plan: Plan, link: LinkPlan, host: str) -> str:
    """Where a link meets, as far as it is known before its binder, on `host`, has bound it."""
    if link.transport == "ipc":
        return f"ipc://RUN/{link.binder}+{link.connector}.N"
    return f"tcp://{join_address(plan.hosts[host], 0)} (announced)"


def _row(
    plan: Plan,
    process: str,
    link: LinkPlan,
    hosts: Mapping[str, str],
    actors: Mapping[Address, type[Actor]],
) -> SocketRow:
    binds = process == link.binder
    return SocketRow(
        process=process,
        host=hosts[process],
        socket="DEALER",
        side="bind" if binds else "connect",
        endpoint=endpoint_text(plan, link, hosts[link.binder]),
        peer=link.connector if binds else link.binder,
        delivery=tuple(sorted({route.delivery for route in link.routes}, reverse=True)),
        tags=tuple(sorted({tag for route in link.routes for tag in _tags(route, actors)})),
    )


def _tags(route: Route, actors: Mapping[Address, type[Actor]]) -> list[str]:
    return [tag_of(cls) for cls in actors[route.source].outlets[route.outlet].carries]


def _rendezvous(plan: Plan) -> Iterator[SocketRow]:
    """Hosts under one supervisor need none; which are is known only at ``up``."""
    for one in meetings(plan.hosts, (process.host for process in plan.processes), plan.rendezvous_port):
        endpoint = f"tcp://{join_address(one.address, one.port)}"
        for host, side, other in ((one.binder, "bind", one.connector), (one.connector, "connect", one.binder)):
            peer = f"supervisor of {other}"
            yield SocketRow(RENDEZVOUS, host, "DEALER", side, endpoint, peer, ("reliable",), ("control.directory/1",))
