"""The file as written: roles, groups and wires as frozen records, with a place for every message about them."""

import re
from collections.abc import Iterable, Mapping
from pathlib import Path as FilePath
from typing import Any, cast

from attrs import frozen

from dpactors.topology.errors import Problem, nearest, shown
from dpactors.topology.keys import COUNT_MAX, GROUP, RENDEZVOUS, ROLE, SECURITY, TOP, WIRE, Key, known_keys
from dpactors.topology.lines import Path
from dpactors.topology.source import Source, read_source, read_text
from dpactors.topology.values import Misfit, fit, wanted_text

NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_-]{0,39}")
"""Names of roles, hosts and deployments: they become parts of addresses and of socket paths (107 bytes at most)."""


@frozen
class Role:
    """One ``[roles.X]``: which actors share a process, how many processes, where."""

    name: str
    actors: tuple[str, ...]
    """Names of the catalogue; several share one process per index."""
    place: Mapping[str, int]
    """Host to count of instances, in the file's order."""
    settings: Mapping[str, Any]
    """As written; each value is checked against the actors' ``Settings``."""
    start_limit_s: float
    cores: tuple[int, ...]
    env: Mapping[str, str]

    @property
    def path(self) -> Path:
        """Where it stands in the file."""
        return ("roles", self.name)

    @property
    def hosts(self) -> tuple[str, ...]:
        """The host of each instance, in order of index."""
        return tuple(host for host, count in self.place.items() for _ in range(count))


@frozen
class Seat:
    """One actor of a role under the name that wires and addresses use."""

    name: str
    """The role's name where it has one actor, else the actor's; of a class by its own name that name in lower case."""
    actor: str
    role: Role


@frozen
class GroupEntry:
    """One ``[[groups]]``."""

    index: int
    role: str
    kind: str


@frozen
class Wire:
    """One ``[[wires]]``."""

    index: int
    source: str
    """The outlet: ``client.requests``."""
    target: str
    """The inlet: ``engine.requests``."""
    reach: str
    reach_given: bool
    transport: str | None

    @property
    def path(self) -> Path:
        """Where it stands in the file."""
        return ("wires", self.index)


@frozen
class Document:
    """One topology file, read but not yet checked against a catalogue."""

    source: Source
    name: str
    hosts: Mapping[str, str]
    roles: tuple[Role, ...]
    groups: tuple[GroupEntry, ...]
    wires: tuple[Wire, ...]
    keys: str | None
    insecure: bool
    rendezvous_port: int
    problems: tuple[Problem, ...]
    """What was wrong with its shape; ``check`` reports them with all others."""

    @property
    def file(self) -> str:
        """The file as it was named."""
        return self.source.file

    @property
    def seats(self) -> tuple[Seat, ...]:
        """Every actor of every role, in the file's order."""
        return tuple(
            Seat(role.name if len(role.actors) == 1 else actor.rpartition(":")[2].lower(), actor, role)
            for role in self.roles
            for actor in role.actors
        )

    def to_dict(self) -> dict[str, Any]:
        """Plain data for JSON, all values resolved; raises TopologyError where the file has problems."""
        return self.source.to_dict()

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> "Document":
        """The exact document that ``to_dict`` wrote."""
        return document_of(Source.from_dict(data))


def read_topology(
    path: str | FilePath, overrides: Iterable[str] = (), env: Mapping[str, str] | None = None
) -> Document:
    """The topology in a file, with ``PATH=VALUE`` overrides and the environment (None: this process's) worked in.

    Raises TopologyError where there is no readable TOML; all else that is wrong waits for ``check``.
    """
    return parse_topology(read_text(path), str(path), overrides, env)


def parse_topology(
    text: str, file: str, overrides: Iterable[str] = (), env: Mapping[str, str] | None = None
) -> Document:
    """As ``read_topology``, from text; `file` is only named in messages."""
    return document_of(read_source(text, file, overrides, env))


def document_of(source: Source) -> Document:
    """The records in a source's tree, whatever does not fit left out and told in ``problems``."""
    return _Reader(source).document()


class _Reader:
    """Reads one tree; mutable, used once."""

    def __init__(self, source: Source) -> None:
        self.source = source
        self.problems = list(source.problems)

    def document(self) -> Document:
        """All records of the tree."""
        tree = self.source.tree
        self._known(tree, ())
        name = self._value(tree, (), "name", TOP)
        if name is None and "name" not in tree:
            self._problem((), "has no name", 'Add name = "..." on top')
        elif name is not None:
            self._name(name, ("name",), "name")
        roles = tuple(self._role(key, value) for key, value in self._table(tree, (), "roles").items())
        if not roles:
            self._problem(("roles",), "there are no roles", "Add at least one [roles.NAME] with actor and place")
        groups = tuple(self._group(i, value) for i, value in enumerate(self._list(tree, "groups")))
        wires = tuple(self._wire(i, value) for i, value in enumerate(self._list(tree, "wires")))
        security = self._known(self._table(tree, (), "security"), ("security",))
        rendezvous = self._known(self._table(tree, (), "rendezvous"), ("rendezvous",))
        return Document(
            source=self.source,
            name=name or "",
            hosts=self._hosts(),
            roles=roles,
            groups=tuple(group for group in groups if group is not None),
            wires=tuple(wire for wire in wires if wire is not None),
            keys=self._value(security, ("security",), "keys", SECURITY) or None,
            insecure=self._value(security, ("security",), "insecure", SECURITY),
            rendezvous_port=self._value(rendezvous, ("rendezvous",), "port", RENDEZVOUS),
            problems=tuple(self.problems),
        )

    def _hosts(self) -> dict[str, str]:
        hosts: dict[str, str] = {}
        table = self._table(self.source.tree, (), "hosts")
        for key in table:
            self._name(key, ("hosts", key), "host name")
            address = self._value(table, ("hosts",), key, {key: Key(str, "")})
            if address is not None:
                hosts[key] = address
        if not table:
            self._problem(("hosts",), "there are no hosts", 'Add hosts = { node0 = "127.0.0.1" }')
        return hosts

    def _role(self, name: str, value: Any) -> Role:
        path = ("roles", name)
        self._name(name, path, "role name")
        role = self._known(self._as_table(value, path), path)
        actors = role.get("actor")
        if isinstance(actors, str):
            actors = (actors,)
        elif "actor" not in role:
            self._problem(path, "has no actor", 'Add actor = "NAME", or a list of actors that share a process')
        else:
            actors = self._value(role, path, "actor", ROLE)
            if actors == ():
                self._problem((*path, "actor"), "is an empty list", 'Write actor = "NAME"')
        return Role(
            name=name,
            actors=actors or (),
            place=self._place(role, path),
            settings=self._table(role, path, "settings"),
            start_limit_s=self._value(role, path, "start_limit_s", ROLE),
            cores=self._value(role, path, "cores", ROLE),
            env=self._env(role, path),
        )

    def _place(self, role: dict[str, Any], path: Path) -> dict[str, int]:
        if "place" not in role:
            self._problem(path, "has no place", "Add place = { HOST = COUNT }")
        table = self._table(role, path, "place")
        place: dict[str, int] = {}
        for host in table:
            count = self._value(table, (*path, "place"), host, {host: Key(int, "")})
            if count is None:
                continue
            if 1 <= count <= COUNT_MAX:
                place[host] = count
            else:
                wrong, mend = f"is {count} instances", f"Give 1 to {COUNT_MAX}, or leave {host} out"
                self._problem((*path, "place", host), wrong, mend)
        if not table and role.get("place") == {}:
            self._problem((*path, "place"), "places no instance", "Add at least one host: { HOST = COUNT }")
        return place

    def _env(self, role: dict[str, Any], path: Path) -> dict[str, str]:
        table = self._table(role, path, "env")
        values = {key: self._value(table, (*path, "env"), key, {key: Key(str, "")}) for key in table}
        for key, value in values.items():
            if not key or "=" in key or "\0" in key or "\0" in (value or ""):
                self._problem((*path, "env", key), "is no environment variable", 'Write env = { NAME = "value" }')
        return {key: value for key, value in values.items() if value is not None}

    def _group(self, index: int, value: Any) -> GroupEntry | None:
        path = ("groups", index)
        group = self._known(self._as_table(value, path), path)
        self._wants(group, path, GROUP, ("role", "kind"))
        role, kind = (self._value(group, path, key, GROUP) for key in ("role", "kind"))
        return None if role is None or kind is None else GroupEntry(index, role, kind)

    def _wire(self, index: int, value: Any) -> Wire | None:
        path = ("wires", index)
        wire = self._known(self._as_table(value, path), path)
        self._wants(wire, path, WIRE, ("from", "to"))
        source, target, reach, transport = (
            self._value(wire, path, key, WIRE) for key in ("from", "to", "reach", "transport")
        )
        if source is None or target is None:
            return None
        return Wire(index, source, target, reach, "reach" in wire, transport)

    # ------------------------------------------------------------ single values

    def _value(self, table: dict[str, Any], path: Path, key: str, keys: Mapping[str, Key]) -> Any:
        """The value of a key; its default where it is absent or does not fit."""
        value, at = table.get(key), (*path, key)
        if value is None:
            return keys[key].default
        try:
            return fit(value, keys[key].type, self.source.raw.get(at))
        except Misfit as misfit:
            self._problem(at, str(misfit), f"Give {wanted_text(keys[key].type)}")
            return keys[key].default

    def _name(self, name: str, path: Path, what: str) -> None:
        if NAME.fullmatch(name) is None:
            wrong = f"{shown(name)} is no {what}"
            self._problem(path, wrong, "Use letters, digits, _ and -, a letter first, 40 characters at most")

    def _wants(self, table: dict[str, Any], path: Path, keys: Mapping[str, Key], wanted: tuple[str, ...]) -> None:
        for key in wanted:
            if key not in table:
                self._problem(path, f"has no {key}", f'Add {key} = "...": {keys[key].meaning}')

    def _known(self, table: dict[str, Any], path: Path) -> dict[str, Any]:
        known = known_keys(self.source.tree, path) or ()
        for key in table:
            if key not in known:
                self._problem((*path, key), f"unknown key {key}", nearest(key, known))
        return table

    def _table(self, table: dict[str, Any], path: Path, key: str) -> dict[str, Any]:
        return self._as_table(table.get(key), (*path, key))

    def _as_table(self, value: Any, path: Path) -> dict[str, Any]:
        if isinstance(value, dict):
            return cast("dict[str, Any]", value)
        if value is not None:
            self._problem(path, f"is {shown(value)}, not a table", "Write it as a table: { KEY = VALUE }")
        return {}

    def _list(self, tree: dict[str, Any], key: str) -> list[Any]:
        value = tree.get(key)
        if isinstance(value, list):
            return cast("list[Any]", value)
        if value is not None:
            self._problem((key,), f"is {shown(value)}, not a list of tables", f"Write each as [[{key}]]")
        return []

    def _problem(self, path: Path, wrong: str, mend: str) -> None:
        self.problems.append(self.source.problem(path, wrong, mend))
