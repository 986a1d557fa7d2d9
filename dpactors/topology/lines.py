"""On which line each key of a TOML text stands: tomllib tells values, messages need places.

The scanner trusts tomllib with the syntax. On text that is not TOML it stops where it no longer understands,
and never raises.
"""

import re
import tomllib
from bisect import bisect_right
from contextlib import suppress
from typing import TypeAlias

from attrs import frozen

Path: TypeAlias = tuple[str | int, ...]
"""Keys, and indices of arrays, from the top: ``("wires", 3, "reach")``."""

_SPACE = re.compile(r"(?:[ \t\r\n]|#[^\n]*)*")
_KEY = re.compile(r"""[ \t]*(?:([A-Za-z0-9_-]+)|"((?:[^"\\\n]|\\.)*)"|'([^'\n]*)')[ \t]*""")
_STRING = re.compile(
    r'"""(?:[^\\]|\\.)*?"""(?:"{0,2})' + r"|'''.*?'''(?:'{0,2})" + r'|"(?:[^"\\\n]|\\.)*"' + r"|'[^'\n]*'", re.DOTALL
)
_BARE = re.compile(r"[^,\]}#\n]+")
_BARE_KEY = re.compile(r"[A-Za-z0-9_-]+")


def dotted(path: Path) -> str:
    """A path as people write it: ``wires[3].reach``, ``roles.engine.settings``."""
    text = ""
    for part in path:
        if isinstance(part, int):
            text += f"[{part}]"
        else:
            text += ("." if text else "") + (part if _BARE_KEY.fullmatch(part) else f'"{part}"')
    return text


@frozen
class Spot:
    """Where a key is written again: its line from 1, and where its last part begins and ends in the text."""

    path: Path
    name: str
    """A name that no other key has; all within this key is found below it."""
    line: int
    start: int
    end: int


@frozen
class Spots:
    """Every key of a text; `again` holds those written a second time."""

    lines: dict[Path, int]
    again: list[Spot]


class _Lost(Exception):
    """The text is not TOML from here on."""


def find_spots(text: str) -> Spots:
    """The lines of all keys, tables and array items of `text`."""
    scanner = _Scanner(text)
    with suppress(_Lost, RecursionError):
        scanner.scan()
    return scanner.spots


@frozen
class _Part:
    text: str
    start: int
    end: int


class _Scanner:
    """One pass over one text; mutable, used once."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.at = 0
        self.spots = Spots({}, [])
        self._starts = [0, *(match.end() for match in re.finditer("\n", text))]
        self._counts: dict[Path, int] = {}
        self._known: set[Path] = set()

    def scan(self) -> None:
        """Walk the whole text."""
        table: Path = ()
        while self._skip():
            if self._take("[["):
                table = self._header(array=True)
                self._want("]]")
            elif self._take("["):
                table = self._header(array=False)
                self._want("]")
            else:
                self._pair(table)

    def _header(self, *, array: bool) -> Path:
        parts = self._keys()
        path: Path = ()
        for part in parts[:-1]:
            path = self._inside((*path, part.text))
        path = (*path, parts[-1].text)
        if not array:
            return self._noted(path, parts[-1])
        index = self._counts.get(path, 0)
        self._counts[path] = index + 1
        self.spots.lines.setdefault(path, self._line(parts[-1].start))
        self.spots.lines[(*path, index)] = self._line(parts[-1].start)
        return (*path, index)

    def _inside(self, path: Path) -> Path:
        return (*path, self._counts[path] - 1) if path in self._counts else path

    def _pair(self, table: Path) -> None:
        parts = self._keys()
        self._want("=")
        path = self._noted((*table, *(part.text for part in parts)), parts[-1])
        for depth in range(len(table) + 1, len(path)):
            self.spots.lines.setdefault(path[:depth], self._line(parts[0].start))
        self._value(path)

    def _value(self, path: Path) -> None:
        self._skip()
        if self._take("{"):
            while self._skip() and not self._take("}"):
                self._pair(path)
                self._skip()
                self._take(",")
        elif self._take("["):
            index = 0
            while self._skip() and not self._take("]"):
                self.spots.lines[(*path, index)] = self._line(self.at)
                self._value((*path, index))
                self._skip()
                self._take(",")
                index += 1
        else:
            match = _STRING.match(self.text, self.at) or _BARE.match(self.text, self.at)
            if match is None:
                raise _Lost
            self.at = match.end()

    def _keys(self) -> list[_Part]:
        parts: list[_Part] = []
        while True:
            match = _KEY.match(self.text, self.at)
            if match is None:
                raise _Lost
            bare, basic, literal = match.groups()
            start = match.start() + len(match.group()) - len(match.group().lstrip(" \t"))
            end = match.start() + len(match.group().rstrip(" \t"))
            name = bare if bare is not None else literal if literal is not None else _unescaped(basic)
            parts.append(_Part(name, start, end))
            self.at = match.end()
            if not self._take("."):
                return parts

    def _noted(self, path: Path, part: _Part) -> Path:
        """Note where a key is written; a second time it goes by another name."""
        line = self._line(part.start)
        if path in self._known:
            again = Spot(path, f"__again{len(self.spots.again)}__", line, part.start, part.end)
            self.spots.again.append(again)
            path = (*path[:-1], again.name)
        self._known.add(path)
        self.spots.lines[path] = line
        return path

    def _line(self, offset: int) -> int:
        return bisect_right(self._starts, offset)

    def _skip(self) -> bool:
        match = _SPACE.match(self.text, self.at)
        self.at = match.end() if match else self.at
        return self.at < len(self.text)

    def _take(self, token: str) -> bool:
        found = self.text.startswith(token, self.at)
        self.at += len(token) if found else 0
        return found

    def _want(self, token: str) -> None:
        if not self._take(token):
            raise _Lost


def _unescaped(basic: str) -> str:
    try:
        return str(tomllib.loads(f'key = "{basic}"')["key"])
    except ValueError as error:
        raise _Lost from error
