"""All that can be wrong with a topology, every problem at once, before anything starts."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path as FilePath
from typing import TypeAlias

from dpactors.topology.case import Case, case_of
from dpactors.topology.document import Document, read_topology
from dpactors.topology.errors import Problem, TopologyError
from dpactors.topology.graph import Catalogue
from dpactors.topology.rules_addresses import (
    hosts_have_addresses,
    listens_are_addresses,
    nothing_exposed_without_keys,
    ports_are_bound_once,
    rendezvous_port_is_a_port,
)
from dpactors.topology.rules_groups import (
    groups_have_members,
    groups_have_their_wires,
    one_group_beside_an_actor,
)
from dpactors.topology.rules_places import (
    actors_are_known,
    addresses_are_unique,
    hosts_are_known,
    process_settings_make_sense,
    settings_fit,
)
from dpactors.topology.rules_wires import (
    ends_exist,
    every_instance_is_joined,
    inlets_take_what_outlets_carry,
    needed_ports_are_wired,
    one_rank_once,
    reaches_fit,
    together_means_one_process,
    transports_fit,
    wires_are_written_once,
)

Rule: TypeAlias = Callable[[Case], Iterator[Problem]]

RULES: tuple[Rule, ...] = (
    actors_are_known,
    settings_fit,
    hosts_are_known,
    addresses_are_unique,
    process_settings_make_sense,
    hosts_have_addresses,
    nothing_exposed_without_keys,
    listens_are_addresses,
    ports_are_bound_once,
    rendezvous_port_is_a_port,
    ends_exist,
    inlets_take_what_outlets_carry,
    reaches_fit,
    transports_fit,
    wires_are_written_once,
    together_means_one_process,
    needed_ports_are_wired,
    every_instance_is_joined,
    one_rank_once,
    groups_have_members,
    groups_have_their_wires,
    one_group_beside_an_actor,
)


def check(document: Document, catalogue: Catalogue) -> list[Problem]:
    """Every problem of a document, in the order of its lines; a clean one builds and plans without raising."""
    case = case_of(document, catalogue)
    problems = [*document.problems, *(problem for rule in RULES for problem in rule(case))]
    return sorted(dict.fromkeys(problems), key=lambda problem: problem.line or 0)


def checked_topology(
    path: str | FilePath,
    catalogue: Catalogue,
    overrides: Iterable[str] = (),
    env: Mapping[str, str] | None = None,
) -> Document:
    """The clean document in a file; raises TopologyError with all that is wrong."""
    document = read_topology(path, overrides, env)
    problems = check(document, catalogue)
    if problems:
        raise TopologyError(problems)
    return document
