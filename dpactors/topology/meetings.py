"""Where the supervisors of a topology's hosts meet: computed from the file alone, so that no port is guessed."""

from collections.abc import Iterable, Mapping
from itertools import combinations

from attrs import frozen


@frozen
class Meeting:
    """One link between the supervisors of two hosts."""

    binder: str
    """The host whose name sorts first."""
    connector: str
    address: str
    """Of the binder."""
    port: int


def meetings(hosts: Mapping[str, str], used: Iterable[str], port: int) -> list[Meeting]:
    """A meeting for each pair of `used` hosts: at `port` plus the connector's place among `hosts`."""
    places = list(hosts)
    return [
        Meeting(binder, connector, hosts[binder], port + places.index(connector))
        for binder, connector in combinations(sorted(set(used)), 2)
    ]
