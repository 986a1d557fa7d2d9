"""A world from a topology file."""

from collections.abc import Iterable
from pathlib import Path

from dpactors.serving.catalogue import CATALOGUE
from dpactors.simulation.weather import Weather
from dpactors.simulation.world import World
from dpactors.topology.check import checked_topology
from dpactors.topology.graph import build
from dpactors.topology.named import Named, make_importable
from dpactors.topology.plan import make_plan


def open_world(file: str | Path, seed: int = 0, weather: Weather | None = None, overrides: Iterable[str] = ()) -> World:
    """The actors of a topology file in virtual time; raises TopologyError with all that is wrong with the file."""
    catalogue = Named(CATALOGUE)
    make_importable(Path(file).resolve().parent)
    document = checked_topology(file, catalogue, overrides)
    return World(make_plan(document, build(document, catalogue)), seed, weather)
