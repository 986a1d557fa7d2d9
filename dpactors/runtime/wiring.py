"""Keeps the links of one process in step with what the supervisor says of its peers. Decides; the links do the work."""

from collections.abc import Iterable
from typing import Literal, Protocol

import structlog
from attrs import define

from dpactors.runtime.control import Endpoint, Entry
from dpactors.topology.plan import LinkPlan, Plan


class Links(Protocol):
    """What is needed of ZmqLinks."""

    def bind(self, peer: str, transport: Literal["ipc", "tcp"], host_address: str) -> str:
        """Open the end of a link that waits, and say where."""
        ...

    def connect(self, peer: str, endpoint: str, peer_incarnation: int) -> None:
        """Open the end of a link that goes there."""
        ...

    def drop(self, peer: str, reason: str, incarnation: int | None = None) -> None:
        """That incarnation of the peer is gone; another one that is linked by now is left alone."""
        ...


@define
class _End:
    """This process's end of one link."""

    plan: LinkPlan
    binds: bool
    endpoint: str = ""
    incarnation: int = 0
    """Of the peer that is or was last linked; 0 before any."""


class Wiring:
    """Binds, connects and drops links as directories come in."""

    def __init__(self, process: str, plan: Plan, links: Links) -> None:
        hosts = {one.name: one.host for one in plan.processes}
        self._address = plan.hosts[hosts[process]]
        self._links = links
        self._log = structlog.get_logger()
        self._ends: dict[str, _End] = {}
        for link in plan.links:
            if process in (link.binder, link.connector):
                peer = link.connector if process == link.binder else link.binder
                self._ends[peer] = _End(link, process == link.binder)

    def bind(self) -> None:
        """Open every waiting end."""
        for peer, end in self._ends.items():
            if end.binds:
                end.endpoint = self._links.bind(peer, end.plan.transport, self._address)

    def endpoints(self) -> tuple[Endpoint, ...]:
        """What to announce: where each waiting end is."""
        return tuple(Endpoint(peer, end.endpoint) for peer, end in self._ends.items() if end.binds)

    def linked(self, peer: str, incarnation: int) -> None:
        """The link with a peer stands."""
        self._ends[peer].incarnation = incarnation

    def learn(self, entries: Iterable[Entry]) -> bool:
        """Follow a directory; True where a waiting end moved and must be announced."""
        moved = False
        for entry in entries:
            end = self._ends.get(entry.process)
            if end is None:
                continue
            gone = end.incarnation not in (0, entry.incarnation) or (end.incarnation and entry.state == "down")
            if gone:
                self._links.drop(entry.process, "its process ended", end.incarnation)
                end.incarnation = 0
                if end.binds:
                    end.endpoint = self._links.bind(entry.process, end.plan.transport, self._address)
                    moved = True
            if not end.binds and entry.state == "up":
                self._follow(end, entry)
        return moved

    def _follow(self, end: _End, entry: Entry) -> None:
        """Connect where the peer waits for this process."""
        endpoint = next((one.address for one in entry.endpoints), "")
        if not endpoint or (endpoint, entry.incarnation) == (end.endpoint, end.incarnation):
            return
        self._log.debug("link.connect", peer=entry.process, endpoint=endpoint)
        end.endpoint, end.incarnation = endpoint, entry.incarnation
        self._links.connect(entry.process, endpoint, entry.incarnation)
