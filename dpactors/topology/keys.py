"""Every key that a topology file may hold outside ``settings``, with what it means."""

from typing import Any, cast

from attrs import frozen

from dpactors.topology.lines import Path

REACHES = ("all", "same-host", "same-index")
TRANSPORTS = ("ipc", "tcp")
GROUP_KINDS = ("expert-parallel",)
COUNT_MAX = 1024
"""Instances of a role on one host, and members of a group: beyond it a mistyped count would start a storm."""
START_LIMIT_S = 120.0
RENDEZVOUS_PORT = 29550
"""Above the ports that Linux registers, below those it hands out (32768), clear of torch's 29500."""


@frozen
class Key:
    """One key: its type, and the texts of ``check --explain``."""

    type: Any
    meaning: str
    unit: str = ""
    default: Any = None


TOP: dict[str, Key] = {
    "name": Key(str, "what this deployment is called; its run directory is named after it"),
    "hosts": Key(dict, "host names and their addresses"),
    "roles": Key(dict, "which actors run, how many of them, where"),
    "groups": Key(list, "roles whose actors act as one"),
    "wires": Key(list, "which outlet sends to which inlet"),
    "security": Key(dict, "keys of links between hosts"),
    "rendezvous": Key(dict, "where hosts find each other"),
}
ROLE: dict[str, Key] = {
    "actor": Key(tuple[str, ...], "the actor, or the actors that share one process per index"),
    "place": Key(dict, "instances on each host; indices count over hosts in this order"),
    "settings": Key(dict, "settings of the role's actors"),
    "start_limit_s": Key(float, "a process not ready by then counts as failed", "s", START_LIMIT_S),
    "cores": Key(tuple[int, ...], "CPU cores that processes of the role may run on; empty is all", "", ()),
    "env": Key(dict, "environment variables added to processes of the role"),
}
GROUP: dict[str, Key] = {
    "role": Key(str, "the role whose actors are the members, in order of index"),
    "kind": Key(str, "how they act as one: expert-parallel"),
}
WIRE: dict[str, Key] = {
    "from": Key(str, "the outlet: NAME.OUTLET"),
    "to": Key(str, "the inlet: NAME.INLET"),
    "reach": Key(str, "which instances it joins: all, same-host or same-index", "", "all"),
    "transport": Key(str, "ipc or tcp; by default ipc on one host and tcp between hosts"),
}
SECURITY: dict[str, Key] = {
    "keys": Key(str, "directory of the keys that encrypt and authenticate links between hosts; empty is none", "", ""),
    "insecure": Key(bool, "allow addresses that other machines reach, without keys", default=False),
}
RENDEZVOUS: dict[str, Key] = {
    "port": Key(int, "TCP port on each host where supervisors of other hosts ask for addresses", "", RENDEZVOUS_PORT),
}


def known_keys(tree: dict[str, Any], path: Path) -> tuple[str, ...] | None:
    """The keys that may stand in the table or array at `path`; None where any may, empty where it is a value."""
    match path:
        case ():
            return tuple(TOP)
        case ("hosts" | "roles" as top,):
            return tuple(_table(tree.get(top)))
        case ("roles", _):
            return tuple(ROLE)
        case ("roles", _, "place"):
            return tuple(_table(tree.get("hosts")))
        case ("roles", _, "settings" | "env"):
            return None
        case ("groups" | "wires" as top,):
            entries = tree.get(top)
            return tuple(str(i) for i in range(len(cast("list[Any]", entries)))) if isinstance(entries, list) else ()
        case ("groups", _):
            return tuple(GROUP)
        case ("wires", _):
            return tuple(WIRE)
        case ("security",):
            return tuple(SECURITY)
        case ("rendezvous",):
            return tuple(RENDEZVOUS)
        case _:
            return ()


def _table(value: Any) -> dict[str, Any]:
    return cast("dict[str, Any]", value) if isinstance(value, dict) else {}
