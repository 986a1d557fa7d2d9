"""Rules about roles: actors, settings, hosts, addresses."""

from collections.abc import Iterator

from dpactors.topology.case import Case
from dpactors.topology.errors import Problem, nearest
from dpactors.topology.named import Named
from dpactors.topology.settings import check_settings


def actors_are_known(case: Case) -> Iterator[Problem]:
    """Every actor is one of the catalogue, or a class that can be imported."""
    for role in case.document.roles:
        for actor in role.actors:
            if actor not in case.catalogue:
                known = case.catalogue if isinstance(case.catalogue, Named) else Named(case.catalogue)
                yield case.problem((*role.path, "actor"), *known.why_not(actor))


def settings_fit(case: Case) -> Iterator[Problem]:
    """Every setting belongs to an actor of its role, has its type and passes its validator."""
    for role in case.document.roles:
        if role.actors and all(actor in case.catalogue for actor in role.actors):
            yield from check_settings(case.document, role, [case.catalogue[actor] for actor in role.actors])


def hosts_are_known(case: Case) -> Iterator[Problem]:
    """Every host of a place is one of ``hosts``."""
    for role in case.document.roles:
        for host in role.place:
            if host not in case.document.hosts:
                mend = nearest(host, case.document.hosts)
                yield case.problem((*role.path, "place", host), f"{host} is no host", mend)


def addresses_are_unique(case: Case) -> Iterator[Problem]:
    """No two actors get one address, which would be one rank twice."""
    for seat in case.document.seats:
        first = case.seats[seat.name]
        if first.role.name != seat.role.name:
            wrong = (
                f"actor {seat.actor} gets the address {seat.name}.0, which roles.{first.role.name} has: duplicate rank"
            )
            mend = f"Rename the role {seat.name}, or place all instances of {seat.name} by one role"
            yield case.problem((*seat.role.path, "actor"), wrong, mend)
    for role in case.document.roles:
        for actor in dict.fromkeys(actor for actor in role.actors if role.actors.count(actor) > 1):
            wrong = f"lists {actor} more than once, so {actor}.0 would exist twice: duplicate rank"
            yield case.problem((*role.path, "actor"), wrong, "List each actor once and set the count in place")


def process_settings_make_sense(case: Case) -> Iterator[Problem]:
    """A start limit is a time and cores are numbers of cores."""
    for role in case.document.roles:
        if role.start_limit_s <= 0:
            wrong = f"is {role.start_limit_s:g} s, and no process starts in that"
            yield case.problem((*role.path, "start_limit_s"), wrong, "Give seconds above 0")
        if any(core < 0 for core in role.cores) or len(set(role.cores)) != len(role.cores):
            mend = "Give each core once, counted from 0"
            yield case.problem((*role.path, "cores"), f"{list(role.cores)} names no set of cores", mend)
