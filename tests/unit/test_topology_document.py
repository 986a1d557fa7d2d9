"""Reading: values, lines, overrides, environment, origins, round trips."""

import json
import tomllib
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dpactors.topology.document import Document, parse_topology, read_topology
from dpactors.topology.errors import TopologyError
from dpactors.topology.lines import dotted, find_spots
from dpactors.topology.settings import explain
from dpactors.topology.source import BYTES_MAX, toml_value
from tests.unit.topology_standins import FILE, SMALL, STANDINS, changed


def read(text: str = SMALL, *overrides: str, env: dict[str, str] | None = None) -> Document:
    return parse_topology(text, FILE, overrides, env or {})


def said(document: Document) -> list[str]:
    return [str(problem) for problem in document.problems]


def origins(document: Document) -> dict[str, tuple[str, str]]:
    return {f"{row.path}@{row.actor}": (row.value, row.origin) for row in explain(document, STANDINS)}


def test_roles_groups_and_wires_are_read_in_order() -> None:
    document = read()

    assert [] == said(document)
    assert ["coordinator", "engine", "frontend"] == [role.name for role in document.roles]
    assert ["coordinator", "engine", "ingress", "client"] == [seat.name for seat in document.seats]
    assert {"node0": 2, "node1": 2} == document.roles[1].place
    assert ("node0", "node0", "node1", "node1") == document.roles[1].hosts
    assert ("engine", "expert-parallel") == (document.groups[0].role, document.groups[0].kind)
    assert ("client.requests", "engine.requests", "same-host") == (
        document.wires[2].source,
        document.wires[2].target,
        document.wires[2].reach,
    )
    assert "all" == document.wires[4].reach
    assert (29550, None, False) == (document.rendezvous_port, document.keys, document.insecure)
    assert 120.0 == document.roles[0].start_limit_s


def test_a_document_survives_json() -> None:
    text = changed(("listen = ", 'model2 = 1.5, flags = [1, "a"], listen = '), ('"127.0.0.2"', '"${NODE1:-127.0.0.3}"'))

    document = read(text, "roles.engine.place.node0=3", env={"NODE1": "::1"})

    assert document == Document.from_dict(json.loads(json.dumps(document.to_dict())))
    assert "::1" == document.hosts["node1"]


def test_a_document_with_problems_does_not_travel() -> None:
    with pytest.raises(TopologyError, match="has no NODE7"):
        read(changed(("127.0.0.2", "${NODE7}"))).to_dict()


def test_variables_come_from_the_environment_else_from_their_default() -> None:
    text = changed(('"127.0.0.1"', '"${A:-10.0.0.1}"'), ('"127.0.0.2"', '"${B}"'), ('":8000"', '"${A:-x}:80${P:-00}"'))

    document = read(text, env={"B": "10.0.0.2", "P": "01"})

    assert {"node0": "10.0.0.1", "node1": "10.0.0.2"} == document.hosts
    assert "x:8001" == document.roles[2].settings["listen"]
    assert "environment B" == document.source.origin(("hosts", "node1"))
    assert f"{FILE}:2" == document.source.origin(("hosts", "node0"))
    assert "environment P" == document.source.origin(("roles", "frontend", "settings", "listen"))


def test_an_empty_variable_takes_its_default_as_in_a_shell() -> None:
    text = changed(("127.0.0.2", "${B:-10.0.0.2}"))

    assert "10.0.0.2" == read(text, env={"B": ""}).hosts["node1"]


def test_a_missing_variable_names_file_line_and_variable() -> None:
    wrong = "small.toml: line 2, hosts.node1: the environment has no NODE1"
    mend = "Set NODE1 in the environment, or write ${NODE1:-default}"

    assert [f"{wrong}. {mend}."] == said(read(changed(("127.0.0.2", "${NODE1}"))))


@pytest.mark.parametrize("broken", ["${", "${1A}", "${A", "${A:default}"])
def test_a_broken_variable_is_a_problem(broken: str) -> None:
    (problem,) = read(changed(("127.0.0.2", broken)), env={"A": "b"}).problems

    assert "line 2, hosts.node1" == problem.place
    assert "Write ${NAME} or ${NAME:-default}" == problem.mend


def test_numbers_and_flags_may_come_from_the_environment() -> None:
    text = changed(("node0 = 1 }", 'node0 = "${N:-1}" }'), ("threads = 2", 'threads = "${T:-3}", eager = "${E:-true}"'))
    text += '[security]\ninsecure = "${I:-false}"\n'

    document = read(text, env={"N": "4", "I": "true"})

    assert [] == said(document)
    assert {"node0": 4} == document.roles[0].place
    assert document.insecure
    rows = origins(document)
    assert ("3", f"{FILE}:11") == rows["roles.engine.settings.threads@engine"]
    assert ("true", f"{FILE}:11") == rows["roles.engine.settings.eager@engine"]


def test_overrides_are_toml_values_else_text() -> None:
    document = read(
        SMALL,
        "roles.engine.place.node0=4",
        "hosts.node1=127.0.0.9",
        "wires[2].reach=all",
        "wires.3.reach='all'",
        "roles.frontend.settings.listen=:9000",
        "roles.frontend.settings.model=7",
        "security.insecure=true",
        'roles.engine.env.OMP="1"',
    )

    assert [] == said(document)
    assert {"node0": 4, "node1": 2} == document.roles[1].place
    assert "127.0.0.9" == document.hosts["node1"]
    assert ["all", "all"] == [document.wires[2].reach, document.wires[3].reach]
    assert document.insecure
    assert {"OMP": "1"} == document.roles[1].env
    assert ('"7"', "--set") == origins(document)["roles.frontend.settings.model@ingress"]


def test_a_whole_table_may_be_set() -> None:
    document = read(SMALL, "roles.engine.place={ node1 = 1 }")

    assert {"node1": 1} == document.roles[1].place
    assert "--set" == document.source.origin(("roles", "engine", "place", "node1"))


@pytest.mark.parametrize(
    ("override", "wrong", "mend"),
    [
        ("roles.engin.place.node0=1", "roles has no engin", "Did you mean engine?"),
        ("roles.engine.plaice.node0=1", "roles.engine has no plaice", "Did you mean place?"),
        ("roles.engine.place.node7=1", "roles.engine.place has no node7", "Known: node0, node1"),
        ("hosts.node7=1.2.3.4", "hosts has no node7", "Known: node0, node1"),
        ("wires[12].reach=all", "wires has no 12", "Known: 0, 1"),
        ("name.first=x", "name takes no further keys", "Set name itself"),
        ("roles.engine.place.node0.x=1", "roles.engine.place.node0 takes no further keys", "itself"),
        ("nonsense", "is no PATH=VALUE", "--set roles.engine.place.node0=4"),
        ("a b=1", "is no PATH=VALUE", "Write for example"),
        ("wires[0][1]=2", "wires[0] has no 1", "Known: from"),
    ],
)
def test_an_unknown_override_names_the_nearest(override: str, wrong: str, mend: str) -> None:
    (problem,) = read(SMALL, override).problems

    assert problem.place.startswith("--set ")
    assert wrong in problem.wrong
    assert mend in problem.mend


def test_where_each_value_came_from_is_told() -> None:
    text = changed(("threads = 2", 'threads = 2, retry_s = "${RETRY:-0.5}"'))

    rows = origins(read(text, "roles.engine.settings.eager=true", env={"RETRY": "2"}))

    assert ("2", f"{FILE}:11") == rows["roles.engine.settings.threads@engine"]
    assert ("2.0", "environment RETRY") == rows["roles.engine.settings.retry_s@engine"]
    assert ("true", "--set") == rows["roles.engine.settings.eager@engine"]
    assert ('":8000"', f"{FILE}:16") == rows["roles.frontend.settings.listen@ingress"]
    assert ("()", "default") == rows["roles.engine.settings.extra_models@engine"]
    assert ("120.0", "default") == rows["roles.engine.start_limit_s@"]
    assert ("29550", "default") == rows["rendezvous.port@"]


def test_every_explained_row_has_a_meaning_and_a_type() -> None:
    rows = explain(read(), STANDINS)

    assert all(row.meaning and row.type and row.origin for row in rows)
    assert ("int", "threads", "1", "2") == next(
        (row.type, row.unit, row.default, row.value) for row in rows if row.path.endswith("threads")
    )


@pytest.mark.parametrize(
    ("old", "new", "place", "wrong"),
    [
        ('name = "small"\n', "", "the file", "has no name"),
        ('name = "small"', "name = 3", "line 1, name", "is 3, not text in quotes"),
        ('name = "small"', 'name = "a/b"', "line 1, name", '"a/b" is no name'),
        ("node0 = 2,", "node0 = 0,", "line 10, roles.engine.place.node0", "is 0 instances"),
        ("node0 = 2,", "node0 = -1,", "line 10, roles.engine.place.node0", "is -1 instances"),
        ("node0 = 2,", "node0 = 1000000000,", "line 10, roles.engine.place.node0", "is 1000000000 instances"),
        ("node0 = 2,", "node0 = true,", "line 10, roles.engine.place.node0", "is true, not a whole number"),
        ("node0 = 2,", "node0 = 1.5,", "line 10, roles.engine.place.node0", "is 1.5, not a whole number"),
        ("node0 = 2,", 'node0 = "2",', "line 10, roles.engine.place.node0", 'is "2", not a whole number'),
        ("{ node0 = 1 }", "{ }", "line 6, roles.coordinator.place", "places no instance"),
        ("{ node0 = 1 }", "[]", "line 6, roles.coordinator.place", "is [], not a table"),
        ('actor = "coordinator"\n', "", "line 4, roles.coordinator", "has no actor"),
        ('actor = "coordinator"', "actor = []", "line 5, roles.coordinator.actor", "is an empty list"),
        ('actor = "coordinator"', "actor = [1]", "line 5, roles.coordinator.actor", "is 1, not text in quotes"),
        ("place = { node0 = 1 }\n", "", "line 4, roles.coordinator", "has no place"),
        ("[roles.coordinator]", '[roles."co.ord"]', 'line 4, roles."co.ord"', '"co.ord" is no role name'),
        ('role = "engine"\n', "", "line 18, groups[0]", "has no role"),
        ('from = "ingress.requests"\n', "", "line 22, wires[0]", "has no from"),
        ('to = "client.intake"', "to = 7", "line 24, wires[0].to", "is 7, not text in quotes"),
        ("threads = 2", "threads = 1979-05-27", "line 11, roles.engine.settings.threads", "is a value that no setting"),
        ("threads = 2", "threads = nan", "line 11, roles.engine.settings.threads", "is a value that no setting takes"),
    ],
)
def test_a_wrong_shape_is_told_with_its_place(old: str, new: str, place: str, wrong: str) -> None:
    problems = read(changed((old, new))).problems

    assert [(FILE, place)] == [(problem.file, problem.place) for problem in problems]
    assert wrong in problems[0].wrong
    assert problems[0].mend


@pytest.mark.parametrize(
    ("old", "new", "place", "mend"),
    [
        ("[[groups]]", "[[group]]", "line 18, group", "Did you mean groups?"),
        ("place = { node0 = 1 }\n", "plaice = { node0 = 1 }\nplace = { node0 = 1 }\n", "line 6, roles.coordinator.plaice", "Did you mean place?"),
        ('kind = "expert-parallel"', 'kind = "expert-parallel"\nsize = 4', "line 21, groups[0].size", "Known: role, kind"),
        ('reach = "same-host"', 'reech = "same-host"', "line 33, wires[2].reech", "Did you mean reach?"),
        ("[[groups]]", "[security]\nkey = 'x'\n[[groups]]", "line 19, security.key", "Did you mean keys?"),
        ("[[groups]]", "[rendezvous]\nprt = 1\n[[groups]]", "line 19, rendezvous.prt", "Did you mean port?"),
    ],
)  # fmt: skip
def test_an_unknown_key_names_the_nearest(old: str, new: str, place: str, mend: str) -> None:
    (problem,) = read(changed((old, new))).problems

    assert place == problem.place
    assert problem.wrong.startswith("unknown key ")
    assert mend in problem.mend


def test_a_syntax_error_names_line_and_column() -> None:
    with pytest.raises(TopologyError) as caught:
        read(changed(("node0 = 2,", "node0 = ,")))

    (problem,) = caught.value.problems
    assert "line 10, column 19" == problem.place
    assert f"{FILE}: 1 problem\n  {problem}" == str(caught.value)


@pytest.mark.parametrize("text", ["", "x = ", "[" * 5000, "a = " + "[" * 5000, "a" + ".a" * 3000 + " = 1", "\x00"])
def test_a_text_that_is_no_topology_is_refused_with_problems(text: str) -> None:
    try:
        problems = read(text).problems
    except TopologyError as error:
        problems = error.problems
    assert problems


def test_a_host_listed_twice_is_told_with_all_other_problems() -> None:
    text = changed(
        ("{ node0 = 2, node1 = 2 }", "{ node0 = 2, node0 = 1 }"), ('kind = "expert-parallel"\n', "knd = 1\n")
    )

    problems = read(text).problems

    assert ["line 10, roles.engine.place.node0", "line 20, groups[0].knd", "line 18, groups[0]"] == [
        problem.place for problem in problems
    ]
    assert "duplicate ranks" in problems[0].wrong


def test_a_role_written_twice_is_told() -> None:
    again = '[roles.engine]\nactor = "x"\nplace = { node0 = 1, node0 = 2 }\n'

    problems = read(changed(("[roles.frontend]", f"{again}[roles.frontend]"))).problems

    assert ["line 15, roles.engine.place.node0", "line 13, roles.engine"] == [p.place for p in problems]
    assert "first in line 8" in problems[1].wrong


def test_a_file_that_cannot_be_read_is_refused(tmp_path: Path) -> None:
    (tmp_path / "latin.toml").write_bytes(b"\xff\xfe")
    (tmp_path / "big.toml").write_bytes(b"#" * (BYTES_MAX + 1))

    for name, wrong in [("none.toml", "No such file"), (".", "directory"), ("latin.toml", "utf-8"), ("big.toml", "larger")]:  # fmt: skip
        with pytest.raises(TopologyError, match=wrong):
            read_topology(tmp_path / name)


def test_a_file_is_read_by_path(tmp_path: Path) -> None:
    path = tmp_path / "windows.toml"
    path.write_bytes(SMALL.replace("\n", "\r\n").encode())

    document = read_topology(path, env={})

    assert [] == said(document)
    assert str(path) == document.file
    assert 11 == document.source.line(("roles", "engine", "settings", "threads"))


# ------------------------------------------------------------ lines

TRICKY = '''\
"a b".c = 1 # [not.a.table]
text = """
[fake]
key = 1 \\"""
"""""
'lit.eral' = \'\'\'
x = 2\'\'\'
list = [ # comment ]
  1, { inner = "}" },
  [2, "],"],
]
inline = { a.b = 1, "q\\u0041" = [ ] }
[table."sub table"]
x = 1
[[many]]
n = 1
[many.below]
y = 1
[[many]]
[[many.deep]]
z = 1979-05-27 07:32:00
'''


def leaves(value: Any, path: tuple[str | int, ...] = ()) -> set[tuple[str | int, ...]]:
    """Every path of a parsed tree."""
    items: Any = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return {path, *(leaf for key, item in items for leaf in leaves(item, (*path, key)))}


def test_every_key_of_a_tricky_text_has_its_line() -> None:
    spots = find_spots(TRICKY)

    assert leaves(tomllib.loads(TRICKY)) - {(), ("table",)} == set(spots.lines)
    assert [] == spots.again
    lines = {dotted(path): line for path, line in spots.lines.items()}
    assert (1, 2, 6, 8, 9, 10) == tuple(
        lines[key] for key in ('"a b".c', "text", '"lit.eral"', "list", "list[1].inner", "list[2][1]")
    )
    assert (12, 13, 16, 18, 20, 21) == tuple(
        lines[key]
        for key in (
            "inline.qA",
            'table."sub table"',
            "many[0].n",
            "many[0].below.y",
            "many[1].deep",
            "many[1].deep[0].z",
        )
    )


@given(st.text(alphabet="ab.=[]{}\"'#\n,\\ 1", max_size=60))
def test_the_line_finder_agrees_with_tomllib_on_whatever_is_toml(text: str) -> None:
    spots = find_spots(text)
    try:
        tree = tomllib.loads(text)
    except tomllib.TOMLDecodeError:
        return
    assert leaves(tree) - {()} >= set(spots.lines)
    assert all(path in spots.lines or leaf_of(tree, path) for path in leaves(tree) - {()})
    assert [] == spots.again


def leaf_of(tree: Any, path: tuple[str | int, ...]) -> bool:
    """Whether `path` is a table that is only named on the way to others, which have lines."""
    for part in path:
        tree = tree[part]
    return isinstance(tree, dict)


@pytest.mark.parametrize(
    ("text", "value"),
    [("4", 4), ("true", True), ('"a"', "a"), ("a", "a"), (":8000", ":8000"), ("1\nx = 2", "1\nx = 2"), ("", ""), ("[1]", [1])],
)  # fmt: skip
def test_a_bare_word_is_text(text: str, value: object) -> None:
    assert value == toml_value(text)
