"""Rules about groups: a group has members, and the wires by which they act as one."""

from collections.abc import Iterator

from dpactors.topology.case import Case
from dpactors.topology.document import GroupEntry, Seat
from dpactors.topology.errors import Problem, nearest
from dpactors.topology.graph import group_seat, ports_of
from dpactors.topology.keys import COUNT_MAX, GROUP_KINDS
from dpactors.topology.rules_wires import wire_to_add


def groups_have_members(case: Case) -> Iterator[Problem]:
    """A group is of a known kind, and of one role whose actor knows groups."""
    first: dict[str, int] = {}
    for entry in case.document.groups:
        path = ("groups", entry.index)
        if entry.kind not in GROUP_KINDS:
            yield case.problem((*path, "kind"), f"{entry.kind} is no kind of group", nearest(entry.kind, GROUP_KINDS))
        seat = group_seat(case.document, case.catalogue, entry)
        if seat is None:
            yield from _no_members(case, entry)
            continue
        if seat.name in first:
            wrong = f"{seat.name} is in a group already: groups[{first[seat.name]}]"
            yield case.problem((*path, "role"), wrong, "Remove one of the two")
        first.setdefault(seat.name, entry.index)
        if len(seat.role.hosts) > COUNT_MAX:
            wrong = f"has {len(seat.role.hosts)} members, more than {COUNT_MAX}"
            yield case.problem(path, wrong, f"Place fewer instances of {seat.role.name}")


def groups_have_their_wires(case: Case) -> Iterator[Problem]:
    """Members of a group, and actors wired to them, have every wire that the group needs."""
    members = _members(case)
    for seat in case.seats.values():
        actor = case.actor(seat)
        if actor is None:
            continue
        reason = f"{seat.name} is in" if seat.name in members else _beside(case, seat, members)
        if reason is None:
            continue
        for port in ports_of(actor).values():
            if port.need == "group" and not case.written_at(seat, port):
                entry = members.get(seat.name) or next(iter(members.values()))
                wrong = f"{seat.name}.{port.name} has no wire, and {reason} the group groups[{entry.index}]"
                yield case.problem(seat.role.path, wrong, wire_to_add(case, seat, port))


def one_group_beside_an_actor(case: Case) -> Iterator[Problem]:
    """An actor is wired to members of one group at most: it is told of one group only."""
    members = _members(case)
    for seat in case.seats.values():
        beside = [name for name in members if name != seat.name and _joined(case, seat.name, name)]
        if len(beside) > 1 and seat.name not in members:
            wrong = f"{seat.name} is wired to members of {len(beside)} groups: {', '.join(beside)}"
            yield case.problem(seat.role.path, wrong, f"Give each group a {seat.actor} of its own, by another role")


def _members(case: Case) -> dict[str, GroupEntry]:
    members: dict[str, GroupEntry] = {}
    for entry in case.document.groups:
        seat = group_seat(case.document, case.catalogue, entry)
        if seat is not None:
            members.setdefault(seat.name, entry)
    return members


def _beside(case: Case, seat: Seat, members: dict[str, GroupEntry]) -> str | None:
    name = next((name for name in members if _joined(case, seat.name, name)), None)
    return None if name is None else f"{seat.name} is wired to {name} of"


def _joined(case: Case, one: str, other: str) -> bool:
    return any({one, other} == {joint.source.name, joint.target.name} for joint in case.joints)


def _no_members(case: Case, entry: GroupEntry) -> Iterator[Problem]:
    path = ("groups", entry.index, "role")
    seats = [seat for seat in case.document.seats if entry.role in (seat.name, seat.role.name)]
    able = [
        seat.name
        for seat in case.seats.values()
        if (actor := case.actor(seat)) and any(port.need == "group" for port in ports_of(actor).values())
    ]
    if not seats:
        yield case.problem(path, f"there is no role {entry.role}", nearest(entry.role, able))
    elif all(seat.actor in case.catalogue for seat in seats):
        inside = [seat.name for seat in seats if seat.name in able]
        if inside:
            wrong = f"{entry.role} has {len(inside)} actors with ports for groups"
            yield case.problem(path, wrong, f"Name the actor: {' or '.join(inside)}")
        else:
            actors = ", ".join(dict.fromkeys(seat.actor for seat in seats))
            wrong = f"{entry.role} cannot be a group: {actors} has no ports for groups"
            yield case.problem(path, wrong, nearest(entry.role, able, "Roles that can"))
