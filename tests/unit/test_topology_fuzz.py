"""Whatever is done to a file, reading and checking only ever answer with problems; a clean one can be planned."""

import json
import tomllib
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from dpactors.topology.check import check
from dpactors.topology.document import Document, parse_topology
from dpactors.topology.draw import FORMATS, draw
from dpactors.topology.errors import TopologyError
from dpactors.topology.graph import build
from dpactors.topology.plan import make_plan
from dpactors.topology.settings import explain
from dpactors.topology.sockets import sockets
from tests.unit.topology_standins import FILE, SMALL, STANDINS

TOKENS = sorted(
    {token for line in SMALL.splitlines() for token in line.split()}
    | {'"', "'", "{", "}", "[", "]", "=", "#", '"""', "${A}", "${A:-1}", "0", "-1", "3", "1e400", "nan", "true"}
    | {"1979-05-27", '""', "[[wires]]", "{}", "[]", "a.b", '"all"', '"same-index"', '"ipc"', '":{index}"', "\n"}
)
SCALARS: st.SearchStrategy[Any] = st.sampled_from(
    [
        0,
        1,
        2,
        3,
        -1,
        1.5,
        True,
        "",
        "x",
        "engine",
        "client",
        "ingress",
        "all",
        "same-index",
        "ipc",
        "tcp",
        "${A}",
        ":1",
        "\n",
    ]
)
VALUES = st.recursive(
    SCALARS, lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.text("ab\n", max_size=1), inner, max_size=2)
)


def survives(text: str, overrides: tuple[str, ...] = ()) -> None:
    try:
        document = parse_topology(text, FILE, overrides, {"A": "engine"})
    except TopologyError:
        return
    problems = check(document, STANDINS)
    explain(document, STANDINS)
    for problem in problems:
        assert problem.file == FILE
        assert problem.place
        assert problem.wrong
        assert problem.mend
        assert "\n" not in str(problem)
    if problems:
        return
    assert document == Document.from_dict(json.loads(json.dumps(document.to_dict())))
    graph = build(document, STANDINS)
    plan = make_plan(document, graph)
    assert len(sockets(plan)) >= 2 * len(plan.links)
    for style in FORMATS:
        draw(document, graph, style)


@given(st.data())
@settings(max_examples=300, deadline=None)
def test_lines_and_words_changed_at_random(data: st.DataObject) -> None:
    lines = SMALL.splitlines()
    for _ in range(data.draw(st.integers(1, 4))):
        i = data.draw(st.integers(0, len(lines) - 1))
        words = lines[i].split(" ")
        match data.draw(st.sampled_from(["drop", "twice", "swap", "word", "insert"])):
            case "drop":
                lines[i] = ""
            case "twice":
                lines.insert(i, lines[i])
            case "swap":
                j = data.draw(st.integers(0, len(lines) - 1))
                lines[i], lines[j] = lines[j], lines[i]
            case "word":
                words[data.draw(st.integers(0, len(words) - 1))] = data.draw(st.sampled_from(TOKENS))
                lines[i] = " ".join(words)
            case _:
                words.insert(data.draw(st.integers(0, len(words))), data.draw(st.sampled_from(TOKENS)))
                lines[i] = " ".join(words)
    survives("\n".join(lines) + "\n")


@given(st.data())
@settings(max_examples=300, deadline=None)
def test_values_changed_at_random(data: st.DataObject) -> None:
    """The text stays TOML, its shape does not."""
    tree: Any = tomllib.loads(SMALL)
    for _ in range(data.draw(st.integers(1, 3))):
        table: Any = tree
        while True:
            keys: list[Any] = sorted(table) if isinstance(table, dict) else list(range(len(table)))
            if not keys:
                break
            key = data.draw(st.sampled_from(keys))
            if isinstance(table[key], dict | list) and table[key] and data.draw(st.booleans()):
                table = table[key]
                continue
            table[key] = data.draw(VALUES)
            break
    survives("".join(f"{key} = {toml(value)}\n" for key, value in tree.items()))


@given(st.text(max_size=40), st.lists(st.sampled_from(["roles", "engine", "place", "wires", "[1]", "x", ".", "=", "4"]), max_size=8))  # fmt: skip
@settings(max_examples=200, deadline=None)
def test_any_text_and_any_override(text: str, override: list[str]) -> None:
    survives(text, ("".join(override),))
    survives(SMALL, (".".join(override), "".join(override), text))


def toml(value: Any) -> str:
    match value:
        case bool():
            return "true" if value else "false"
        case dict():
            return "{" + ", ".join(f"{json.dumps(key)} = {toml(item)}" for key, item in value.items()) + "}"
        case list():
            return "[" + ", ".join(toml(item) for item in value) + "]"
        case _:
            return json.dumps(value)
