"""Links between the supervisors of a deployment's machines: one a pair of hosts, at addresses the topology tells."""

from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path
from typing import Any

from attrs import evolve

from dpactors.actor.address import Address
from dpactors.net import notices
from dpactors.net.curve import Security, load_keys
from dpactors.net.zeromq import ZmqLinks
from dpactors.runtime.control import SUPERVISOR
from dpactors.topology.listen import join_address
from dpactors.topology.meetings import meetings
from dpactors.topology.plan import LinkPlan, Plan, Route


class Neighbours:
    """The ends of this machine's hosts; does nothing where all hosts are here.

    A host speaks under its own name, since no supervisor knows which hosts another one brings up together.
    """

    def __init__(
        self,
        plan: Plan,
        mine: Iterable[str],
        others: Iterable[str],
        incarnation: int,
        links_dir: Path,
        on_event: Callable[[notices.LinkNotice], None],
        keys: Path | None = None,
    ) -> None:
        """Raises KeysError where the folder `keys` lacks one of the hosts'."""
        self._plan = plan
        self._pairs = [(own, other) for own in mine for other in others]
        self._on_event = on_event
        self._links = {
            own: ZmqLinks(
                own,
                incarnation,
                plan.digest,
                links_dir,
                partial(self._notice, own),
                links_max=len(plan.hosts),
                security=keys and Security(load_keys(keys, own, plan.hosts), {host: host for host in plan.hosts}),
            )
            for own in dict.fromkeys(own for own, _ in self._pairs)
        }

    @property
    def addresses(self) -> tuple[Address, ...]:
        """The other hosts' supervisors as peers."""
        return tuple(dict.fromkeys(Address(other, 0) for _, other in self._pairs))

    def links(self, me: Address) -> list[LinkPlan]:
        """How the supervisor's own plan names these links; the lower host's route comes first on both sides."""
        plans: list[LinkPlan] = []
        for own, other in self._pairs:
            there = Address(other, 0)
            out = Route(me, "tellings", there, "rosters", "reliable")
            back = Route(there, "tellings", me, "rosters", "reliable")
            routes = (out, back) if own < other else (back, out)
            plans.append(LinkPlan(SUPERVISOR, _name(own, other), "tcp", routes))
        return plans

    def open(self) -> None:
        """Bind or connect each pair where the topology says that they meet."""
        for own, other in self._pairs:
            (one,) = meetings(self._plan.hosts, (own, other), self._plan.rendezvous_port)
            if own == one.binder:
                self._links[own].bind(other, "tcp", one.address, one.port)
            else:
                self._links[own].connect(other, f"tcp://{join_address(one.address, one.port)}", 0)

    def knows(self, peer: str) -> bool:
        """Whether a link's name is one of these."""
        return peer in {_name(own, other) for own, other in self._pairs}

    def send(self, peer: str, route: int, trace: str, message: Any, *, latest: bool = False) -> None:
        """Hand a message to another host's supervisor."""
        own, _, other = peer.partition("|")
        self._links[own].send(other, route, trace, message, latest)

    async def close(self) -> None:
        """Let go of all."""
        for links in self._links.values():
            await links.close(0.1)

    def _notice(self, own: str, notice: Any) -> None:
        if isinstance(notice, notices.Delivered):
            notice.peer = _name(own, notice.peer)
            self._on_event(notice)
        else:
            self._on_event(evolve(notice, peer=_name(own, notice.peer)))


def _name(own: str, other: str) -> str:
    return f"{own}|{other}"
