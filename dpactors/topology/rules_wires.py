"""Rules about wires: both ends exist and agree, and every port that needs a wire has one."""

from collections.abc import Iterator

from dpactors.actor.port import Inlet, Outlet, Port
from dpactors.topology.case import Case, Joint
from dpactors.topology.document import Seat, Wire
from dpactors.topology.errors import Problem, nearest, shown
from dpactors.topology.graph import ends_of, ports_of, within
from dpactors.topology.keys import REACHES, TRANSPORTS

TOGETHER = {
    ("ingress", "client"): "a request that moves to another rank goes on in the process that holds its HTTP connection"
}
"""Pairs of actors that may only be wired within one process, and why."""
_NAMED_MAX = 4
"""Instances that a message lists before it says how many more."""


def ends_exist(case: Case) -> Iterator[Problem]:
    """A wire goes from an outlet of a placed actor to an inlet of one."""
    for wire in case.document.wires:
        source, target = ends_of(wire)
        yield from _end(case, wire, "from", *source)
        yield from _end(case, wire, "to", *target)


def inlets_take_what_outlets_carry(case: Case) -> Iterator[Problem]:
    """An inlet takes every message that its wires can bring."""
    for joint in case.joints:
        strange = [cls.__name__ for cls in joint.outlet.carries if cls not in joint.inlet.carries]
        if strange:
            source, target = joint.wire.source, joint.wire.target
            wrong = f"{source} carries {', '.join(strange)}, which {target} does not take"
            takers = list(_partners(case, joint.outlet))
            near = [name for name in takers if name.startswith(f"{joint.target.name}.")] or takers
            mend = f"Did you mean to = {shown(near[0])}?" if near else f"No placed actor takes all of {source}"
            yield case.problem(joint.wire.path, wrong, mend)


def reaches_fit(case: Case) -> Iterator[Problem]:
    """A reach is one of three words, and what it joins exists."""
    for wire in case.document.wires:
        if wire.reach not in REACHES:
            yield case.problem((*wire.path, "reach"), f"{wire.reach} is no reach", nearest(wire.reach, REACHES))
    for joint in case.joints:
        wire, path = joint.wire, joint.wire.path
        if within(joint.source, joint.target):
            if wire.reach_given and wire.reach in ("all", "same-host"):
                wrong = f"both ends live in one process of {joint.source.role.name}, so only equal indices are joined"
                yield case.problem((*path, "reach"), wrong, "Leave reach out")
        elif wire.reach == "same-index":
            froms, tos = len(joint.source.role.hosts), len(joint.target.role.hosts)
            if froms != tos and froms and tos:
                wrong = f"same-index joins {froms} {joint.source.name} to {tos} {joint.target.name}"
                yield case.problem((*path, "reach"), wrong, "Place as many of one as of the other, or widen the reach")


def transports_fit(case: Case) -> Iterator[Problem]:
    """A stated transport can carry the wire, and two processes agree on theirs."""
    stated: dict[tuple[str, ...], Wire] = {}
    for wire in case.document.wires:
        if wire.transport is not None and wire.transport not in TRANSPORTS:
            wrong = f"{wire.transport} is no transport"
            yield case.problem((*wire.path, "transport"), wrong, nearest(wire.transport, TRANSPORTS))
    for joint in case.joints:
        wire, path = joint.wire, (*joint.wire.path, "transport")
        if wire.transport not in TRANSPORTS:
            continue
        roles = tuple(sorted((joint.source.role.name, joint.target.role.name)))
        other = stated.setdefault(roles, wire)
        if within(joint.source, joint.target):
            yield case.problem(path, "both ends live in one process", "Leave transport out")
        elif other.transport != wire.transport:
            wrong = f"{wire.transport} differs from {other.transport} of wires[{other.index}] between these processes"
            yield case.problem(path, wrong, "State one transport: two processes share one link")
        elif wire.transport == "ipc" and _crosses(joint):
            wrong = f"ipc stays on one host, and this wire joins {wire.source} and {wire.target} across hosts"
            yield case.problem(path, wrong, 'Leave transport out, or write "tcp", or reach = "same-host"')


def wires_are_written_once(case: Case) -> Iterator[Problem]:
    """The same two ports are joined by one wire."""
    first: dict[tuple[str, str], int] = {}
    for wire in case.document.wires:
        known = first.setdefault((wire.source, wire.target), wire.index)
        if known != wire.index:
            wrong = f"{wire.source} to {wire.target} is wires[{known}] again"
            yield case.problem(wire.path, wrong, "Remove one of the two")


def together_means_one_process(case: Case) -> Iterator[Problem]:
    """Some actors may only be wired within one process."""
    for joint in case.joints:
        for pair, reason in TOGETHER.items():
            if sorted(pair) == sorted((joint.source.actor, joint.target.actor)) and not within(
                joint.source, joint.target
            ):
                wrong = f"{joint.source.name} and {joint.target.name} are wired but do not share a process: {reason}"
                mend = f"Place both by one role, with actor = [{', '.join(shown(name) for name in pair)}]"
                yield case.problem(joint.wire.path, wrong, mend)


def needed_ports_are_wired(case: Case) -> Iterator[Problem]:
    """A port without which its actor is of no use has a wire."""
    for seat, port in case.ports():
        if port.need == "always" and not case.written_at(seat, port):
            wrong = f"{seat.name}.{port.name} has no wire, and {seat.actor} needs one"
            yield case.problem(seat.role.path, wrong, wire_to_add(case, seat, port))


def every_instance_is_joined(case: Case) -> Iterator[Problem]:
    """No instance is left out because its host has no partner."""
    for seat, port in case.ports():
        joints = case.joints_at(seat, port)
        if port.need == "never" or not joints or any(joint.wire.reach != "same-host" for joint in joints):
            continue
        partners = [joint.target if joint.source.name == seat.name else joint.source for joint in joints]
        if any(within(seat, partner) for partner in partners):
            continue
        near = {host for partner in partners for host in partner.role.hosts}
        lonely = [f"{seat.name}.{i}" for i, host in enumerate(seat.role.hosts) if host not in near]
        if lonely and near:
            more = f" and {len(lonely) - _NAMED_MAX} more" if len(lonely) > _NAMED_MAX else ""
            names = " or ".join(dict.fromkeys(partner.name for partner in partners))
            wrong = f"{', '.join(lonely[:_NAMED_MAX])}{more} would have no {names} on their host for {port.name}"
            mend = f"Place {names} on each host of {seat.name}, or widen the reach"
            yield case.problem((*joints[0].wire.path, "reach"), wrong, mend)


def one_rank_once(case: Case) -> Iterator[Problem]:
    """An outlet that chooses among peers never finds one rank twice."""
    first: dict[tuple[str, str, str], Joint] = {}
    for joint in case.joints:
        key = (joint.source.name, joint.outlet.name, joint.target.actor)
        other = first.setdefault(key, joint)
        if joint.outlet.fan == "one" and other.target.name != joint.target.name:
            wrong = f"{joint.target.name}.0 and {other.target.name}.0 are both rank 0 for {joint.wire.source}"
            wrong += f" (wires[{other.wire.index}]): duplicate rank"
            mend = f"Place all {joint.target.actor} actors of {joint.wire.source} by one role"
            yield case.problem(joint.wire.path, wrong, mend)


def wire_to_add(case: Case, seat: Seat, port: Port) -> str:
    """The mend for a port without a wire: the wire, literally."""
    own = f"{seat.name}.{port.name}"
    partners = sorted(_partners(case, port), key=lambda name: not name.endswith(f".{port.name}"))
    before = ""
    if not partners:
        partners = [
            f"{name}.{other.name}"
            for name, actor in case.catalogue.items()
            for other in ports_of(actor).values()
            if _agree(port, other)
        ]
        if not partners:
            return f"No actor of the catalogue has a partner for {own}; remove {seat.name}"
        before = f"Place a {partners[0].partition('.')[0]} and add"
    ends = (own, partners[0]) if isinstance(port, Outlet) else (partners[0], own)
    return f"{before or 'Add'} [[wires]] with from = {shown(ends[0])} and to = {shown(ends[1])}"


def _partners(case: Case, port: Port) -> Iterator[str]:
    """Ports of placed actors at the other end of which `port` may be."""
    return (f"{seat.name}.{other.name}" for seat, other in case.ports() if _agree(port, other))


def _agree(one: Port, other: Port) -> bool:
    if isinstance(one, Inlet):
        one, other = other, one
    return isinstance(one, Outlet) and isinstance(other, Inlet) and set(one.carries) <= set(other.carries)


def _end(case: Case, wire: Wire, key: str, name: str, port: str) -> Iterator[Problem]:
    path = (*wire.path, key)
    text = wire.source if key == "from" else wire.target
    seat = case.seats.get(name)
    if not port or "." in port:
        mend = f"Write NAME.{'OUTLET' if key == 'from' else 'INLET'}, for example {shown('client.requests')}"
        yield case.problem(path, f"{shown(text)} names no port", mend)
    elif seat is None:
        inside = next((role.actors for role in case.document.roles if role.name == name), ())
        wrong = f"nothing is placed under the name {name}" if not inside else f"{name} has {len(inside)} actors"
        mend = f"Name the actor: {' or '.join(inside)}" if inside else nearest(name, case.seats)
        yield case.problem(path, wrong, mend)
    elif (actor := case.actor(seat)) is not None:
        right, other = (actor.outlets, actor.inlets) if key == "from" else (actor.inlets, actor.outlets)
        kind = "outlet" if key == "from" else "inlet"
        if port in other:
            wrong = f"{text} is {'an inlet' if key == 'from' else 'an outlet'}, and {shown(key)} wants an {kind}"
            yield case.problem(path, wrong, nearest(port, right, f"{kind.title()}s of {name}"))
        elif port not in right:
            yield case.problem(path, f"{name} has no {kind} {port}", nearest(port, right, f"{kind.title()}s of {name}"))


def _crosses(joint: Joint) -> bool:
    """Whether some pair of instances that the wire joins lives on two hosts."""
    froms, tos = joint.source.role.hosts, joint.target.role.hosts
    if joint.wire.reach == "all":
        return len({*froms, *tos}) > 1 and bool(froms and tos)
    return joint.wire.reach == "same-index" and any(near != far for near, far in zip(froms, tos, strict=False))
