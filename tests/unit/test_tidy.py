"""A rule without a check is no rule."""

import ast
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).parents[2]
PACKAGE = REPOSITORY / "dpactors"
FILES = sorted(PACKAGE.rglob("*.py"))
FILE_LINES_MAX = 400
FUNCTION_LINES_MAX = 70
DRAWERS = {"utils", "helpers", "common", "misc", "base", "util", "helper"}
MODES = {"internal", "hybrid", "external"}
PURE = ("message", "actor", "serving", "topology")
IMPURE = {"zmq", "anyio", "asyncio", "socket", "time", "random", "torch"}
DOCS = [REPOSITORY / "README.md", REPOSITORY / "CONTRIBUTING.md", REPOSITORY / "CHANGELOG.md"]
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


@pytest.mark.parametrize("path", FILES, ids=name_of)
def test_nothing_runs_what_it_is_sent(path: Path) -> None:
    tree = ast.parse(path.read_text())

    assert not set(imports(tree)) & {"pickle", "marshal", "shelve", "dill"}
    for node in ast.walk(tree):
        if isinstance(node, ast.Call):
            assert not (isinstance(node.func, ast.Name) and node.func.id in {"eval", "exec"})
            assert not [k for k in node.keywords if k.arg == "shell"]


@pytest.mark.parametrize("path", FILES, ids=name_of)
def test_pure_rooms_stay_pure_and_one_file_knows_zeromq(path: Path) -> None:
    found = set(imports(ast.parse(path.read_text())))
    room = path.relative_to(PACKAGE).parts[0]

    assert room not in PURE or not found & IMPURE
    assert "zmq" not in found or path == PACKAGE / "net" / "zeromq.py"


def test_the_reference_is_what_the_code_says() -> None:
    script = REPOSITORY / "scripts" / "make_reference.py"
    found = subprocess.run([sys.executable, script, "--check"], capture_output=True, text=True, check=False)

    assert found.returncode == 0, found.stderr


def test_the_changelog_keeps_its_form() -> None:
    text = (REPOSITORY / "CHANGELOG.md").read_text()

    assert text.startswith("# Changelog\n")
    assert "## [Unreleased]" in text
    kinds = re.findall(r"^### (.+)$", text, re.MULTILINE)
    assert set(kinds) <= {"Added", "Changed", "Deprecated", "Removed", "Fixed", "Security", "Message tags"}


def test_the_architecture_page_lists_exactly_the_rooms_that_exist() -> None:
    text = (REPOSITORY / "docs" / "explanation" / "architecture.md").read_text()
    rooms = {path.name for path in PACKAGE.iterdir() if path.is_dir() and path.name != "__pycache__"}

    assert set(re.findall(r"^\| \d* ?\| `(\w+)/` \|", text, re.MULTILINE)) == rooms


@pytest.mark.parametrize("path", DOCS, ids=name_of)
def test_local_links_lead_somewhere(path: Path) -> None:
    for target in re.findall(r"\]\(([^)#]+)(?:#[^)]*)?\)", path.read_text()):
        if "://" not in target:
            assert (path.parent / target).exists(), target


def test_the_readme_shows_the_true_difference_of_two_topologies() -> None:
    names = ("topologies/internal_2node.toml", "topologies/hybrid_2node.toml")
    found = subprocess.run(["diff", *names], capture_output=True, text=True, check=False, cwd=REPOSITORY)

    assert found.stdout.strip() in (REPOSITORY / "README.md").read_text()
