"""What an operator got wrong in a topology: every problem at once, each with its place and its mend."""

import difflib
from collections.abc import Iterable, Sequence
from typing import Any

from attrs import field, frozen


def _one_line(text: str) -> str:
    """Names come from a file that anyone wrote: no line break, control character or lone surrogate is printed."""
    if text.isprintable():
        return text
    return "".join(letter if letter.isprintable() else letter.encode("unicode_escape").decode() for letter in text)


@frozen
class Problem:
    """One thing to mend, printed as FILE, PLACE, what is wrong, and the mend."""

    file: str = field(converter=_one_line)
    line: int | None
    place: str = field(converter=_one_line)
    """Where in the file, its line included: ``line 14, wires[3]``."""
    wrong: str = field(converter=_one_line)
    mend: str = field(converter=_one_line)

    def __str__(self) -> str:
        return f"{self.file}: {self.place}: {self.wrong}. {self.mend}" + ("" if self.mend.endswith("?") else ".")


class TopologyError(ValueError):
    """A topology that was refused; nothing was started."""

    def __init__(self, problems: Sequence[Problem]) -> None:
        assert problems, "a refusal without a reason"
        self.problems = tuple(problems)
        lines: list[str] = []
        for file in dict.fromkeys(problem.file for problem in problems):
            own = [problem for problem in problems if problem.file == file]
            lines.append(f"{file}: {len(own)} problem{'s' if len(own) > 1 else ''}")
            lines.extend(f"  {problem}" for problem in own)
        super().__init__("\n".join(lines))


def nearest(word: str, known: Iterable[str], what: str = "Known") -> str:
    """The mend for a mistyped word: the nearest known one, then all of them."""
    words = list(dict.fromkeys(known))
    every = f"{what}: {', '.join(words) or 'none'}"
    close = difflib.get_close_matches(word, words, n=1, cutoff=0.5)
    return f"Did you mean {close[0]}? {every}" if close else every


def shown(value: Any, limit: int = 60) -> str:
    """A value as TOML would write it, on one line and cut to `limit` characters."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        text = '"' + value.encode("unicode_escape").decode().replace('"', '\\"') + '"'
    else:
        text = " ".join(repr(value).split())
    return text if len(text) <= limit else text[: limit - 3] + "..."
