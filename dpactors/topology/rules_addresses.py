"""Rules about network addresses: who may bind what, and that nothing is open to others by accident."""

from collections.abc import Iterator

from attrs import frozen

from dpactors.topology.case import Case
from dpactors.topology.document import Role
from dpactors.topology.errors import Problem, shown
from dpactors.topology.lines import Path
from dpactors.topology.listen import (
    PORT_MAX,
    is_address,
    is_loopback,
    is_wildcard,
    join_address,
    listen_address,
    split_address,
)
from dpactors.topology.meetings import meetings
from dpactors.topology.settings import settings_of
from dpactors.topology.values import Misfit, fit

_KEYS = "Add [security] with the keys of dpactors keys new, or insecure = true if that network is yours alone"


@frozen
class _Bound:
    """One address that a host will bind."""

    who: str
    path: Path
    machine: str
    host: str
    port: int


def hosts_have_addresses(case: Case) -> Iterator[Problem]:
    """Every host has an address that its peers can connect to."""
    for name, address in case.document.hosts.items():
        if not is_address(address):
            mend = "Give an IP address or a host name, without a port"
            yield case.problem(("hosts", name), f"{shown(address)} is no address", mend)
        elif is_wildcard(address):
            mend = "Give the address by which the other hosts reach it"
            yield case.problem(("hosts", name), f"{address} stands for any address, peers cannot connect to it", mend)


def nothing_exposed_without_keys(case: Case) -> Iterator[Problem]:
    """An address that other machines can reach wants keys, or the word insecure."""
    document = case.document
    if document.keys or document.insecure:
        return
    used = {host for role in document.roles for host in role.place}
    for name, address in document.hosts.items():
        if name in used and is_address(address) and not is_loopback(address):
            wrong = f"{address} can be reached from other machines, and the file names no keys"
            yield case.problem(("hosts", name), wrong, _KEYS)
    for role, listen, path in _listens(case):
        try:
            host, _ = split_address(listen.replace("{index}", "0"))
        except ValueError:
            continue
        if role.place and host and not is_loopback(host):
            wrong = f"listens on {host}, which can be reached from other machines, and the file names no keys"
            yield case.problem(path, wrong, _KEYS)


def listens_are_addresses(case: Case) -> Iterator[Problem]:
    """What an actor listens on is an address and a port, for every instance."""
    for role, listen, path in _listens(case):
        for index in range(max(len(role.hosts), 1)):
            try:
                listen_address(listen, "127.0.0.1", index)
            except ValueError as error:
                wrong = f"{shown(listen)} for instance {index}: {error}"
                yield case.problem(path, wrong, "Write for example :8000, or :800{index} for one port an instance")
                break


def ports_are_bound_once(case: Case) -> Iterator[Problem]:
    """No two roles, and no two hosts of one machine, bind one port; instances of a role on a host share theirs."""
    known: dict[int, list[_Bound]] = {}
    told: set[tuple[str, str]] = set()
    for bound in _bounds(case):
        others = known.setdefault(bound.port, [])
        clash = next((other for other in others if _clash(bound, other, case)), None)
        others.append(bound)
        if clash is None or (bound.who, clash.who) in told:
            continue
        told.add((bound.who, clash.who))
        wrong = f"{bound.who} on {bound.machine} binds {join_address(bound.host, bound.port)}, which {clash.who} has"
        wrong += f" on {clash.machine}" if clash.machine != bound.machine else ""
        yield case.problem(bound.path, wrong, "Give it another port, or :800{index} for one port an instance")


def rendezvous_port_is_a_port(case: Case) -> Iterator[Problem]:
    """Hosts meet at a port that exists."""
    port = case.document.rendezvous_port
    if not 1 <= port <= PORT_MAX:
        yield case.problem(("rendezvous", "port"), f"{port} is no port", f"Give 1 to {PORT_MAX}")


def _listens(case: Case) -> Iterator[tuple[Role, str, Path]]:
    """Every ``listen`` setting, the default one too."""
    for seat in case.seats.values():
        actor = case.actor(seat)
        setting = settings_of(actor).get("listen") if actor else None
        if setting is None:
            continue
        path = (*seat.role.path, "settings", "listen")
        value = seat.role.settings.get("listen", setting.default)
        try:
            yield seat.role, fit(value, str, case.document.source.raw.get(path)), path
        except Misfit:
            continue


def _bounds(case: Case) -> Iterator[_Bound]:
    document = case.document
    used = [host for host in document.hosts if any(host in role.place for role in document.roles)]
    for one in meetings(document.hosts, used, document.rendezvous_port):
        yield _Bound("the rendezvous", ("rendezvous", "port"), one.binder, one.address, one.port)
    for role, listen, path in _listens(case):
        seen: set[tuple[str, str, int]] = set()
        for index, machine in enumerate(role.hosts):
            if machine not in document.hosts:
                continue
            try:
                host, port = split_address(listen_address(listen, document.hosts[machine], index))
            except ValueError:
                continue
            if port and host and (machine, host, port) not in seen:
                seen.add((machine, host, port))
                yield _Bound(f"roles.{role.name}", path, machine, host, port)


def _clash(one: _Bound, other: _Bound, case: Case) -> bool:
    if one.who == other.who == "the rendezvous":
        return False  # one supervisor answers for all hosts of its machine
    here, there = (case.document.hosts[bound.machine] for bound in (one, other))
    same_machine = one.machine == other.machine or here == there or (is_loopback(here) and is_loopback(there))
    hosts = {"127.0.0.1" if bound.host.lower() == "localhost" else bound.host for bound in (one, other)}
    return same_machine and (len(hosts) == 1 or any(is_wildcard(host) for host in hosts))
