"""What belongs to this machine: which hosts of a topology it is, and the HTTP sockets it opens for them."""

import errno
import ipaddress
import socket
import time
from collections.abc import Iterable, Mapping

import psutil

from dpactors.topology.listen import is_wildcard, join_address, split_address
from dpactors.topology.plan import Plan

BACKLOG = 2048
IN_USE_PATIENCE_S = 1.5
"""Processes of a killed supervisor hold its HTTP ports for up to half a second longer than it lived."""


class NotThisMachine(ValueError):
    """No host of the topology is this machine, or a named one does not exist; says how to name one."""


class PortTaken(OSError):
    """An HTTP address that cannot be opened."""


def own_hosts(hosts: Mapping[str, str], named: Iterable[str] = ()) -> tuple[str, ...]:
    """The hosts to bring up here: those named, else those whose address is this machine's; raises NotThisMachine."""
    wanted = tuple(dict.fromkeys(named))
    known = ", ".join(f"{name} ({address})" for name, address in hosts.items())
    if unknown := [name for name in wanted if name not in hosts]:
        raise NotThisMachine(f"the topology has no host {', '.join(unknown)}. Hosts: {known}")
    if wanted:
        return tuple(name for name in hosts if name in wanted)
    mine = _own_addresses()
    found = tuple(name for name, address in hosts.items() if _is_own(address, mine))
    if not found:
        raise NotThisMachine(
            f"none of the hosts {known} has an address of this machine. "
            f"Name the one that it is, for example --host {next(iter(hosts))}, or give its address in the environment"
        )
    return found


def _own_addresses() -> set[str]:
    return {
        address.address.partition("%")[0]
        for addresses in psutil.net_if_addrs().values()
        for address in addresses
        if address.family in (socket.AF_INET, socket.AF_INET6)
    }


def _is_own(address: str, mine: set[str]) -> bool:
    try:
        found = {str(info[4][0]) for info in socket.getaddrinfo(address, None, type=socket.SOCK_STREAM)}
    except OSError:
        return False
    return any(one in mine or ipaddress.ip_address(one.partition("%")[0]).is_loopback for one in found)


class FrontDoors:
    """The listening sockets of this machine's front ends, each opened once and kept over restarts."""

    def __init__(self, plan: Plan, hosts: Iterable[str]) -> None:
        """Open all of them; raises PortTaken for one that another program has."""
        self._plan = plan
        self._sockets: dict[tuple[str, str, str], socket.socket] = {}
        try:
            for process in plan.processes:
                for address in process.listen if process.host in tuple(hosts) else ():
                    key = (process.role, process.host, address)
                    if key not in self._sockets:
                        self._sockets[key] = _open(address)
        except PortTaken:
            self.close()
            raise

    def of(self, process: str) -> dict[str, int]:
        """The descriptors that a process inherits, by the address in its plan."""
        plan = next(one for one in self._plan.processes if one.name == process)
        return {address: self._sockets[plan.role, plan.host, address].fileno() for address in plan.listen}

    @property
    def urls(self) -> tuple[str, ...]:
        """Where clients go, in the order of the plan."""
        return tuple(dict.fromkeys(self._url(host, one) for (_, host, _), one in self._sockets.items()))

    def close(self) -> None:
        """Give the ports back."""
        for one in self._sockets.values():
            one.close()
        self._sockets.clear()

    def _url(self, host: str, opened: socket.socket) -> str:
        name, port = opened.getsockname()[:2]
        return f"http://{join_address(self._plan.hosts[host] if is_wildcard(name) else name, port)}"


def _open(address: str) -> socket.socket:
    host, port = split_address(address)
    until_s = time.monotonic() + IN_USE_PATIENCE_S
    while True:
        try:
            family, kind, protocol, _, at = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
            opened = socket.socket(family, kind, protocol)
            try:
                opened.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                opened.bind(at)
                opened.listen(BACKLOG)
                opened.setblocking(False)  # noqa: FBT003 - the socket's own signature
            except OSError:
                opened.close()
                raise
            return opened
        except OSError as error:
            if error.errno == errno.EADDRINUSE and time.monotonic() < until_s:
                time.sleep(0.05)
                continue
            mend = (
                "Another program has it: stop that, or give another listen"
                if error.errno == errno.EADDRINUSE
                else ("Give a listen on an address of this machine")
            )
            raise PortTaken(error.errno, f"cannot listen on {address}: {error.strerror}. {mend}") from error
