"""What every rule of ``check`` looks at: a document beside its catalogue, with the wires that make sense resolved."""

from collections.abc import Iterator, Mapping

from attrs import frozen

from dpactors.actor.actor import Actor
from dpactors.actor.port import Inlet, Outlet, Port
from dpactors.topology.document import Document, Seat, Wire
from dpactors.topology.errors import Problem
from dpactors.topology.graph import Catalogue, ends_of, ports_of
from dpactors.topology.lines import Path


@frozen
class Joint:
    """A wire whose two ends exist: an outlet and an inlet of placed actors."""

    wire: Wire
    source: Seat
    outlet: Outlet[object]
    target: Seat
    inlet: Inlet


@frozen
class Case:
    """One document under check."""

    document: Document
    catalogue: Catalogue
    seats: Mapping[str, Seat]
    """By name; the first where a name is taken twice."""
    joints: tuple[Joint, ...]

    def problem(self, path: Path, wrong: str, mend: str) -> Problem:
        """A problem with the value at `path`."""
        return self.document.source.problem(path, wrong, mend)

    def actor(self, seat: Seat) -> type[Actor] | None:
        """The class of a seat; None where the catalogue has none of that name."""
        return self.catalogue.get(seat.actor)

    def ports(self) -> Iterator[tuple[Seat, Port]]:
        """Every port of every known actor."""
        for seat in self.seats.values():
            actor = self.actor(seat)
            for port in ports_of(actor).values() if actor else ():
                yield seat, port

    def joints_at(self, seat: Seat, port: Port) -> list[Joint]:
        """The wires that begin or end at a port."""
        return [
            joint
            for joint in self.joints
            if (joint.source.name == seat.name and joint.outlet is port)
            or (joint.target.name == seat.name and joint.inlet is port)
        ]

    def written_at(self, seat: Seat, port: Port) -> bool:
        """Whether a wire names this port at all, be its other end right or wrong."""
        return any((seat.name, port.name) in ends_of(wire) for wire in self.document.wires)


def case_of(document: Document, catalogue: Catalogue) -> Case:
    """Resolve what can be resolved of a document."""
    seats: dict[str, Seat] = {}
    for seat in document.seats:
        seats.setdefault(seat.name, seat)
    joints = [joint for wire in document.wires for joint in _joint(wire, seats, catalogue)]
    return Case(document, catalogue, seats, tuple(joints))


def _joint(wire: Wire, seats: Mapping[str, Seat], catalogue: Catalogue) -> Iterator[Joint]:
    (source_name, outlet_name), (target_name, inlet_name) = ends_of(wire)
    source, target = seats.get(source_name), seats.get(target_name)
    if source is None or target is None or source.actor not in catalogue or target.actor not in catalogue:
        return
    outlet = catalogue[source.actor].outlets.get(outlet_name)
    inlet = catalogue[target.actor].inlets.get(inlet_name)
    if outlet is not None and inlet is not None:
        yield Joint(wire, source, outlet, target, inlet)
