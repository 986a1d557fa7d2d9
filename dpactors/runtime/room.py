"""Whether this machine has room for every process of a plan, found out before any of them is started."""

import resource
from collections.abc import Sequence

from dpactors.net.zeromq import LINKS_MAX
from dpactors.topology.descriptors import Need


class NoRoom(ValueError):
    """A limit of this machine that some process would meet; names both figures and the mend."""


def make_room(needs: Sequence[Need]) -> None:
    """Raise this process's soft limit on descriptors where some process needs that; those it starts inherit it.

    Raises NoRoom where the hard limit is too low, or where a process has more links than ZeroMQ has sockets.
    """
    crowded = max(needs, key=lambda one: one.links)
    if crowded.links > LINKS_MAX:
        raise NoRoom(
            f"{crowded.process} would have {crowded.links} links, and one process has at most {LINKS_MAX}. "
            "Join fewer instances, for example by reach = same-host"
        )
    largest = max(needs, key=lambda one: one.descriptors)
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY or soft >= largest.descriptors:
        return
    if hard != resource.RLIM_INFINITY and hard < largest.descriptors:
        raise NoRoom(
            f"{largest.process} needs up to {largest.descriptors} file descriptors, {largest.links} links among them, "
            f"and the limit is {hard}. Raise it where this is started from: ulimit -n {largest.descriptors}"
        )
    resource.setrlimit(resource.RLIMIT_NOFILE, (largest.descriptors if hard == resource.RLIM_INFINITY else hard, hard))
