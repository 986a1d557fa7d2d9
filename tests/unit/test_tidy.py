"""A rule without a check is no rule."""

import ast
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from dpactors.cli import make_app
from dpactors.serving.catalogue import CATALOGUE
from dpactors.topology.check import checked_topology
from dpactors.topology.draw import draw
from dpactors.topology.graph import build
from dpactors.topology.keys import GROUP, RENDEZVOUS, ROLE, SECURITY, TOP, WIRE

REPOSITORY = Path(__file__).parents[2]
PACKAGE = REPOSITORY / "dpactors"
FILES = sorted(PACKAGE.rglob("*.py"))
FILE_LINES_MAX = 400
FUNCTION_LINES_MAX = 70
TOPOLOGIES = sorted((REPOSITORY / "topologies").glob("*.toml"))
DRAWERS = {"utils", "helpers", "common", "misc", "base", "util", "helper"}
MODES = {"internal", "hybrid", "external"}
PURE = ("message", "actor", "serving", "topology")
ADR_PARTS = ["Context", "Decision", "Given up", "Would change our mind"]
IMPURE = {"zmq", "anyio", "asyncio", "socket", "time", "random", "torch"}
DOCS = [REPOSITORY / "README.md", REPOSITORY / "CONTRIBUTING.md", REPOSITORY / "CHANGELOG.md"]
TEST = re.compile(r"^(?:async )?def (test_\w+)\(", re.MULTILINE)
DOCS += sorted((REPOSITORY / "docs").rglob("*.md"))


def name_of(path: Path) -> str:
    return str(path.relative_to(REPOSITORY))


def imports(tree: ast.AST) -> Iterator[str]:
    """Top names of all imports, inside functions too."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name.partition(".")[0] for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield node.module.partition(".")[0]


def links(text: str) -> list[tuple[str, str]]:
    """File and anchor of every local link."""
    found = re.findall(r"\]\(([^)#\s]*)(?:#([^)\s]*))?\)", text)
    return [(target, anchor) for target, anchor in found if "://" not in target]


def anchors(text: str) -> set[str]:
    """What the headings of a page are called in links to them."""
    headings = re.findall(r"^#+ (.+)$", text, re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("path", FILES, ids=name_of)
def test_a_file_is_short_and_says_what_it_is(path: Path) -> None:
    text = path.read_text()
    tree = ast.parse(text)

    assert path.stem not in DRAWERS
    assert len(text.splitlines()) <= FILE_LINES_MAX
    assert ast.get_docstring(tree)
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            length = (node.end_lineno or node.lineno) - node.lineno + 1
            assert length <= FUNCTION_LINES_MAX, f"{node.name} has {length} lines"
    assert not re.search(r"\b(TODO|FIXME|XXX)\b", text)


@pytest.mark.parametrize("path", FILES, ids=name_of)
def test_no_condition_knows_a_mode(path: Path) -> None:
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Compare | ast.MatchValue):
            words = {c.value for c in ast.walk(node) if isinstance(c, ast.Constant) and isinstance(c.value, str)}
            assert not words & MODES


GENERATOR = "dpactors/message/generate.py"
"""Compiles source that it wrote itself from the annotations of message classes."""


@pytest.mark.parametrize("path", FILES, ids=name_of)
def test_nothing_runs_what_it_is_sent(path: Path) -> None:
    tree = ast.parse(path.read_text())

    assert not set(imports(tree)) & {"pickle", "marshal", "shelve", "dill"}
    for node in ast.walk(tree):
        if isinstance(node, ast.Call):
            called = ast.unparse(node.func)
            if called == "exec" and name_of(path) == GENERATOR:
                continue
            assert called not in {"eval", "exec", "builtins.eval", "builtins.exec", "os.system", "os.popen"}, called
            assert not [k for k in node.keywords if k.arg == "shell"], f"line {node.lineno}"


@pytest.mark.parametrize("path", FILES, ids=name_of)
def test_pure_rooms_stay_pure_and_only_links_know_zeromq(path: Path) -> None:
    found = set(imports(ast.parse(path.read_text())))
    room = path.relative_to(PACKAGE).parts[0]

    assert room not in PURE or not found & IMPURE
    assert "zmq" not in found or path in {PACKAGE / "net" / "zeromq.py", PACKAGE / "net" / "curve.py"}


def test_the_reference_is_what_the_code_says() -> None:
    script = REPOSITORY / "scripts" / "make_reference.py"
    found = subprocess.run([sys.executable, script, "--check"], capture_output=True, text=True, check=False)

    assert found.returncode == 0, found.stderr


@pytest.mark.parametrize("path", TOPOLOGIES, ids=name_of)
def test_a_shipped_topology_checks_and_draws(path: Path) -> None:
    document = checked_topology(path, CATALOGUE, env={})

    assert document.name == path.stem
    assert "flowchart" in draw(document, build(document, CATALOGUE), "mermaid")


def test_the_changelog_keeps_its_form() -> None:
    text = (REPOSITORY / "CHANGELOG.md").read_text()
    versions = re.findall(r"^## (.+)$", text, re.MULTILINE)
    kinds = re.findall(r"^### (.+)$", text, re.MULTILINE)

    assert text.startswith("# Changelog\n")
    assert versions[0] == "[Unreleased]"
    assert all(re.fullmatch(r"\[\d+\.\d+\.\d+\] - \d{4}-\d{2}-\d{2}", version) for version in versions[1:])
    assert set(kinds) <= {"Added", "Changed", "Deprecated", "Removed", "Fixed", "Security", "Message tags"}
    for section in re.split(r"^### .+$", text, flags=re.MULTILINE)[1:]:
        lines = section.partition("\n## ")[0].strip().splitlines()
        assert lines
        assert all(line.startswith(("- ", "  ")) for line in lines)


def test_the_changelog_and_the_reference_have_every_message_tag() -> None:
    tags = {tag for path in FILES for tag in re.findall(r'^@message\("(.+)"\)', path.read_text(), re.MULTILINE)}
    changes = (REPOSITORY / "CHANGELOG.md").read_text().partition("### Message tags")[2]
    reference = (REPOSITORY / "docs" / "reference" / "messages.md").read_text()

    assert tags <= set(re.findall(r"`([^`]+)`", changes))
    assert tags == set(re.findall(r"^## `([^`]+)`", reference, re.MULTILINE))


def test_the_command_line_page_has_every_verb() -> None:
    verbs = {name for name in make_app() if not name.startswith("-")}
    page = (REPOSITORY / "docs" / "reference" / "cli.md").read_text()

    assert verbs <= set(re.findall(r"`dpactors (\w+)", page))


def test_the_topology_page_has_every_key() -> None:
    page = (REPOSITORY / "docs" / "reference" / "topology.md").read_text()
    tables = {"": TOP, "[roles.X] ": ROLE, "[[groups]] ": GROUP, "[[wires]] ": WIRE}
    tables |= {"[security] ": SECURITY, "[rendezvous] ": RENDEZVOUS}

    for table, keys in tables.items():
        for key in keys:
            assert f"| `{table}{key}` |" in page, f"{table}{key}"


@pytest.mark.parametrize("path", sorted((REPOSITORY / "docs" / "adr").glob("*.md")), ids=name_of)
def test_a_decision_has_four_parts_in_order(path: Path) -> None:
    text = path.read_text()

    assert re.match(rf"# {int(path.name[:4])}\. ", text)
    assert re.findall(r"^\*\*(.+?)\.\*\*", text, re.MULTILINE) == ADR_PARTS


def test_the_architecture_page_lists_exactly_the_rooms_that_exist() -> None:
    text = (REPOSITORY / "docs" / "explanation" / "architecture.md").read_text()
    rooms = {path.name for path in PACKAGE.iterdir() if path.is_dir() and path.name != "__pycache__"}

    assert set(re.findall(r"^\| \d* ?\| `(\w+)/` \|", text, re.MULTILINE)) == rooms


@pytest.mark.parametrize("path", DOCS, ids=name_of)
def test_local_links_lead_somewhere(path: Path) -> None:
    for target, anchor in links(path.read_text()):
        page = path.parent / target if target else path

        assert page.exists(), target
        assert not anchor or anchor in anchors(page.read_text()), f"{target}#{anchor}"


def test_the_index_leads_to_every_page() -> None:
    docs = REPOSITORY / "docs"
    listed = {docs / target for target, _ in links((docs / "index.md").read_text())}

    assert listed == set(docs.rglob("*.md")) - {docs / "index.md"}


@pytest.mark.parametrize("path", DOCS, ids=name_of)
def test_files_that_a_page_names_exist(path: Path) -> None:
    for name in re.findall(r"(?<![\w./])(?:topologies|scripts|tests|docs|dpactors)/[\w./*-]+", path.read_text()):
        assert list(REPOSITORY.glob(name.rstrip("."))), name


@pytest.mark.parametrize("path", DOCS, ids=name_of)
def test_tests_that_a_page_names_exist(path: Path) -> None:
    named = set(re.findall(r"`(test_\w+)`", path.read_text()))
    written = {name for file in (REPOSITORY / "tests").rglob("test_*.py") for name in TEST.findall(file.read_text())}

    assert named <= written


def test_every_silent_loss_names_its_test() -> None:
    page = (REPOSITORY / "docs" / "explanation" / "silent-loss.md").read_text()
    rows = [line for line in page.splitlines() if line.startswith("| ")][1:]
    named = set(re.findall(r"`(test_\w+)`", page))

    assert len(rows) >= 12
    assert all("`test_" in row for row in rows)
    assert set(TEST.findall((REPOSITORY / "tests" / "live" / "test_silent_loss.py").read_text())) <= named


def test_a_commit_is_held_to_what_main_is_held_to() -> None:
    hooks = (REPOSITORY / ".pre-commit-config.yaml").read_text()
    wanted = re.findall(r"^\.venv/bin/.+$", (REPOSITORY / ".ci" / "run").read_text(), re.MULTILINE)

    assert wanted
    assert [command for command in wanted if command not in hooks] == []


def test_the_readme_shows_the_true_difference_of_two_topologies() -> None:
    names = ("topologies/internal_2node.toml", "topologies/hybrid_2node.toml")
    found = subprocess.run(["diff", *names], capture_output=True, text=True, check=False, cwd=REPOSITORY)

    assert found.stdout.strip() in (REPOSITORY / "README.md").read_text()
