"""TOML text, overrides and environment -> one resolved tree that remembers where each value came from."""

import datetime as dt
import itertools
import math
import os
import re
import tomllib
from collections.abc import Iterable, Mapping
from pathlib import Path as FilePath
from typing import Any, cast

from attrs import frozen

from dpactors.topology.errors import Problem, TopologyError, nearest, shown
from dpactors.topology.keys import known_keys
from dpactors.topology.lines import Path, dotted, find_spots

DEPTH_MAX = 8
"""Nested tables and arrays; a topology needs 4."""
BYTES_MAX = 4 << 20

_VARIABLE = re.compile(r"\$\{([A-Za-z_][A-Za-z0-9_]*)(?::-([^}]*))?\}")
_STEP = re.compile(r"\.?([A-Za-z0-9_-]+)|\[([0-9]+)\]")
_SET = "--set"


@frozen
class Source:
    """A topology as written, with overrides and environment worked in; plain data, and it travels as such."""

    file: str
    tree: dict[str, Any]
    lines: dict[Path, int]
    origins: dict[Path, str]
    """Where a value came from that does not stand in the file."""
    raw: dict[Path, str]
    """Text of values that were given as text and may stand for any type: overrides, ``${NAME}``."""
    problems: tuple[Problem, ...] = ()

    def line(self, path: Path) -> int | None:
        """The line of a key, or of the nearest table around it."""
        while path and path not in self.lines:
            path = path[:-1]
        return self.lines.get(path)

    def origin(self, path: Path) -> str:
        """Where the value at `path` came from: default, FILE:LINE, --set or environment NAME."""
        for depth in range(len(path), 0, -1):
            if path[:depth] in self.origins:
                return self.origins[path[:depth]]
        return f"{self.file}:{self.lines[path]}" if path in self.lines else "default"

    def problem(self, path: Path, wrong: str, mend: str) -> Problem:
        """A problem with the value at `path`."""
        if any(self.origins.get(path[:depth]) == _SET for depth in range(1, len(path) + 1)):
            return Problem(self.file, None, f"{_SET} {dotted(path)}", wrong, mend)
        line = self.line(path)
        place = ", ".join(part for part in (f"line {line}" if line else "", dotted(path)) if part)
        return Problem(self.file, line, place or "the file", wrong, mend)

    def to_dict(self) -> dict[str, Any]:
        """Plain data for JSON; raises TopologyError where the source has problems of its own."""
        if self.problems:
            raise TopologyError(self.problems)
        maps = {"lines": self.lines, "origins": self.origins, "raw": self.raw}
        return {
            "file": self.file,
            "tree": self.tree,
            **{key: [[list(path), value] for path, value in values.items()] for key, values in maps.items()},
        }

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> "Source":
        """The exact source that ``to_dict`` wrote."""
        lines, origins, raw = ({tuple(path): value for path, value in data[key]} for key in ("lines", "origins", "raw"))
        return cls(data["file"], data["tree"], lines, origins, raw)


def read_text(path: str | FilePath) -> str:
    """The text of a topology file; raises TopologyError where there is none."""
    mend = "Name a topology file, for example topologies/internal_1node.toml"
    try:
        with FilePath(path).open("rb") as file:
            data = file.read(BYTES_MAX + 1)
        text = data.decode("utf-8")
    except (OSError, ValueError) as error:
        wrong = f"cannot be read: {getattr(error, 'strerror', None) or error}"
        raise TopologyError([Problem(str(path), None, "the file", wrong, mend)]) from error
    if len(data) > BYTES_MAX:
        raise TopologyError([Problem(str(path), None, "the file", f"is larger than {BYTES_MAX} bytes", mend)])
    return text


def read_source(text: str, file: str, overrides: Iterable[str] = (), env: Mapping[str, str] | None = None) -> Source:
    """`text` with ``PATH=VALUE`` overrides and ``${NAME:-default}`` worked in; `env` None is this process's.

    Raises TopologyError only where `text` is not TOML; whatever else is wrong is kept in the source's problems.
    """
    source, twice = _parse(text, file)
    resolver = _Resolver(source, os.environ if env is None else env)
    resolver.problems.extend(twice)
    for override in overrides:
        resolver.override(override)
    tree = resolver.resolve(source.tree, ())
    return Source(file, tree, source.lines, source.origins, source.raw, tuple(resolver.problems))


def toml_value(text: str) -> Any:
    """`text` as a TOML value, or the text itself where it is none."""
    try:
        tree = tomllib.loads(f"value = {text}")
    except (ValueError, RecursionError):
        return text
    return tree["value"] if set(tree) == {"value"} else text


def _parse(text: str, file: str) -> tuple[Source, list[Problem]]:
    text = text.replace("\r\n", "\n")
    try:
        tree = tomllib.loads(text)
    except (ValueError, RecursionError) as error:
        return _parse_without_repeats(text, file, error)
    return Source(file, tree, find_spots(text).lines, {}, {}), []


def _parse_without_repeats(text: str, file: str, error: Exception) -> tuple[Source, list[Problem]]:
    """A key written twice hides all other problems behind a syntax error: set it aside and read on."""
    again = find_spots(text).again
    renamed = text
    for spot in reversed(again):
        renamed = renamed[: spot.start] + spot.name + renamed[spot.end :]
    try:
        tree = tomllib.loads(renamed if again else text)
    except (ValueError, RecursionError) as other:
        raise TopologyError([_syntax(file, other if again else error)]) from other
    source = Source(file, tree, find_spots(renamed).lines, {}, {})
    problems: list[Problem] = []
    for spot in reversed(again):  # the inner ones come after the outer ones
        _drop(tree, (*spot.path[:-1], spot.name))
        names = {other.name: other.path[-1] for other in again}
        place = f"line {spot.line}, {dotted(tuple(names.get(str(part), part) for part in spot.path))}"
        wrong = f"stands here a second time, first in line {source.lines.get(spot.path)}"
        if spot.path[0] == "roles" and (len(spot.path) == 2 or "place" in spot.path):  # noqa: PLR2004 - roles.NAME
            wrong += "; its instances would get duplicate ranks"
        problems.append(Problem(file, spot.line, place, wrong, "Keep one of the two"))
    return source, problems


def _syntax(file: str, error: Exception) -> Problem:
    if isinstance(error, RecursionError):
        return Problem(file, None, "the file", "is nested too deeply", f"Nest at most {DEPTH_MAX} tables or arrays")
    text = " ".join(str(error).split())
    match = re.search(r" ?\(at (?:line (\d+), column (\d+)|end of document)\)", text)
    if match is None or match[1] is None:
        return Problem(file, None, "end of the file", f"no TOML: {shown(text, 120)}", "Complete the last line")
    place = f"line {match[1]}, column {match[2]}"
    return Problem(
        file, int(match[1]), place, f"no TOML: {text[: match.start()]}", "See https://toml.io for the syntax"
    )


def _drop(tree: dict[str, Any], path: Path) -> None:
    """Remove the value at `path`, which the scanner found in the text of `tree`."""
    table: Any = tree
    for part in path[:-1]:
        table = table[part]
    del table[path[-1]]


class _Resolver:
    """Works overrides and environment into a source's tree; mutable, used once."""

    def __init__(self, source: Source, env: Mapping[str, str]) -> None:
        self.source = source
        self.env = env
        self.problems: list[Problem] = []

    def override(self, text: str) -> None:
        """Set one ``PATH=VALUE``."""
        name, equals, value = text.partition("=")
        path = _override_path(name.strip())
        if not equals or not path:
            self._refuse(text, "is no PATH=VALUE", "Write for example --set roles.engine.place.node0=4")
            return
        for depth, part in enumerate(path):
            known = known_keys(self.source.tree, path[:depth])
            if known is not None and str(part) not in known:
                table = dotted(path[:depth]) or "the file"
                wrong = f"{table} takes no further keys" if not known else f"{table} has no {part}"
                self._refuse(name, wrong, nearest(str(part), known) if known else f"Set {table} itself")
                return
        table: Any = self.source.tree
        for part, after in itertools.pairwise(path):
            table = table[part] if isinstance(part, int) else table.setdefault(part, {})
            if not _holds(table, after):
                self._refuse(name, "leads through a value that is no table", "Mend the table in the file first")
                return
        table[path[-1]] = toml_value(value.strip())
        for known in (self.source.origins, self.source.raw):
            for below in [other for other in known if other[: len(path)] == path]:
                del known[below]
        self.source.origins[path] = _SET
        self.source.raw[path] = value.strip()

    def resolve(self, value: Any, path: Path) -> Any:
        """`value` with its variables expanded, and with nothing in it that JSON does not hold."""
        if len(path) > DEPTH_MAX:
            self._problem(path[:4], "is nested too deeply", f"Nest at most {DEPTH_MAX} tables or arrays")
            return None
        if isinstance(value, dict):
            return {key: self.resolve(item, (*path, key)) for key, item in cast("dict[str, Any]", value).items()}
        if isinstance(value, list):
            return [self.resolve(item, (*path, i)) for i, item in enumerate(cast("list[Any]", value))]
        if isinstance(value, str):
            return self._expand(value, path)
        if isinstance(value, dt.date | dt.time) or (isinstance(value, float) and not math.isfinite(value)):
            self._problem(path, f"{value} is a value that no setting takes", "Write a number, text, true or false")
            return None
        return value

    def _expand(self, text: str, path: Path) -> str:
        if "${" not in text:
            return text
        taken: list[str] = []

        def value(match: re.Match[str]) -> str:
            name, default = match.groups()
            given = self.env.get(name)
            if given is None and default is None:
                mend = f"Set {name} in the environment, or write ${{{name}:-default}}"
                self._problem(path, f"the environment has no {name}", mend)
            if given is None or (not given and default is not None):  # as in a shell, :- replaces an empty value too
                return default or ""
            taken.append(name)
            return given

        if "${" in _VARIABLE.sub("", text):
            self._problem(path, f"{shown(text)} holds a broken variable", "Write ${NAME} or ${NAME:-default}")
        expanded = _VARIABLE.sub(value, text)
        if taken and path not in self.source.origins:
            self.source.origins[path] = "environment " + ", ".join(taken)
        self.source.raw[path] = expanded
        return expanded

    def _problem(self, path: Path, wrong: str, mend: str) -> None:
        self.problems.append(self.source.problem(path, wrong, mend))

    def _refuse(self, override: str, wrong: str, mend: str) -> None:
        self.problems.append(Problem(self.source.file, None, f"{_SET} {override}", wrong, mend))


def _holds(value: object, part: str | int) -> bool:
    """Whether `value` is a list for an index, a table for a key."""
    return isinstance(value, list if isinstance(part, int) else dict)


def _override_path(text: str) -> Path:
    """``wires[3].reach`` or ``wires.3.reach`` as a path; empty where it is none."""
    parts: list[str | int] = []
    at = 0
    while at < len(text):
        match = _STEP.match(text, at)
        if match is None:
            return ()
        parts.append(int(match[2]) if match[2] else match[1])
        at = match.end()
    if len(parts) > 1 and parts[0] in ("wires", "groups") and str(parts[1]).isdecimal():
        parts[1] = int(parts[1])
    return tuple(parts)
