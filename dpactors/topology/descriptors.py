"""How many file descriptors each process of a plan may come to hold, so that a limit is met before anything starts."""

from collections.abc import Collection, Sequence
from itertools import chain

from attrs import frozen

from dpactors.topology.plan import Plan, ProcessPlan

SUPERVISOR = "supervisor"
PROCESS = 64
"""Streams, loop, log, trace, control requests, model files and libraries of a process; 12 to 20 were seen."""
CONTEXT = 8
"""What ZeroMQ holds for itself; 5 were seen."""
LINK = 4
"""The end that binds has a socket, its listener, and connections of a peer's old and new incarnation; the one that
connects has two sockets with a connection each while its peer restarts."""
WATCH = 4
"""More of a link that takes keys: both ends of what tells of strangers, twice where a new connection takes over."""
MEMBER = 8
"""Towards each other rank of a group: segment, doorbell and life, of an epoch that ends and of the one that begins."""
CHILD = 4
"""What a supervisor holds of a child beside its link: its life, and for a moment log, record and exec pipe."""
CONNECTIONS = 1024
"""Of HTTP clients, kept free in a process that listens."""


@frozen
class Need:
    """What one process may come to hold at once."""

    process: str
    host: str
    links: int
    descriptors: int


def needs(plan: Plan, hosts: Collection[str]) -> list[Need]:
    """Of the processes on `hosts`, in start order, after that of the one supervisor that brings them all up."""
    links = dict.fromkeys((one.name for one in plan.processes), 1)  # each has one with its supervisor
    for end in chain.from_iterable((link.binder, link.connector) for link in plan.links):
        links[end] += 1
    own = [one for one in plan.processes if one.host in hosts]
    return [_supervisor(plan, own, hosts), *(_process(one, links[one.name], _per_link(plan)) for one in own)]


def _per_link(plan: Plan) -> int:
    return LINK + (WATCH if plan.keys else 0)


def _process(one: ProcessPlan, links: int, per_link: int) -> Need:
    groups = [(actor.setup.address, actor.setup.group) for actor in one.actors]
    others = sum(len(group.members) - 1 for address, group in groups if group is not None and address in group.members)
    doors = len(one.listen) + (CONNECTIONS if one.listen else 0)
    return Need(one.name, one.host, links, PROCESS + CONTEXT + per_link * links + MEMBER * others + doors)


def _supervisor(plan: Plan, own: Sequence[ProcessPlan], hosts: Collection[str]) -> Need:
    mine = [host for host in dict.fromkeys(one.host for one in plan.processes) if host in hosts]
    strange = {one.host for one in plan.processes} - set(mine)
    meetings = len(mine) * len(strange)
    contexts = 1 + (len(mine) if strange else 0)
    doors = {(one.role, one.host, address) for one in own for address in one.listen}
    links = len(own) + meetings
    held = PROCESS + CONTEXT * contexts + _per_link(plan) * links + CHILD * len(own) + len(doors)
    return Need(SUPERVISOR, ", ".join(mine), links, held)
