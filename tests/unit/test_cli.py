"""What the command line refuses, and how: exit codes and texts are a contract."""

import json
import sys
from pathlib import Path

import pytest

from dpactors.cli import main

FILE = "topologies/internal_1node.toml"


def run(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    """Exit code, stdout, stderr of one verb."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "argv", ["dpactors", *arguments])
        with pytest.raises(SystemExit) as end:
            main()
    said = capsys.readouterr()
    return int(end.value.code or 0), said.out, said.err


@pytest.mark.parametrize(
    ("arguments", "names"),
    [
        (("fly",), "fly"),
        (("up",), "file"),
        (("up", FILE, "--colour", "red"), "--colour"),
        (("up", "no/such.toml"), "no/such.toml: the file: cannot be read"),
        (("up", FILE, "--log-format", "xml"), "xml"),
        (("up", FILE, "--set", "roles.engine.settings.modle=x"), "modle"),
        (("up", FILE, "--set", "nonsense"), "nonsense"),
        (("up", FILE, "--host", "node7"), "the topology has no host node7. Hosts: node0 (127.0.0.1)"),
        (("up", FILE, "--set", "hosts.node0=192.0.2.1", "--set", "security.insecure=true"), "for example --host node0"),
        (("check",), "name at least one topology file"),
        (("plan", FILE, "--host", "node7"), "has no host node7. Hosts: node0"),
        (("draw", FILE, "--format", "png"), "png"),
        (("trace",), "trace"),
        (("fault", "kill"), "name at least one actor"),
        (("explore",), "name a model. Models:\n  wave "),
        (("explore", "waves"), "no model 'waves'. Models:\n  wave "),
        (("explore", "wave", "--max-states", "0"), "Give at least 1"),
        (("fault", "melt", "engine.0"), "melt"),
        (("fault", "kill", "engine.0", "--for", "3"), "--for goes with stop"),
    ],
)
def test_refused_input_exits_2_and_says_what(
    arguments: tuple[str, ...], names: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys
) -> None:
    monkeypatch.setenv("DPACTORS_RUN_DIR", str(tmp_path / "run"))
    code, out, err = run(capsys, *arguments)

    assert code == 2
    assert names in err
    assert "Traceback" not in out + err
    assert not (tmp_path / "run").exists()  # nothing was started


def test_check_tells_all_problems_of_all_files(tmp_path: Path, capsys) -> None:
    bad = tmp_path / "bad.toml"
    bad.write_text(Path(FILE).read_text().replace('to = "engine.requests"', 'to = "engine.request"') + "\n[nonsense]\n")
    code, out, _ = run(capsys, "check", str(bad), FILE)

    assert code == 2
    assert f"{bad}: 2 problems" in out or out.count(f"{bad}: line") >= 2
    assert "internal_1node is sound" in out


@pytest.mark.parametrize("verb", ["ps", "down", "logs", "trace x", "fault kill engine.0", "fault kill supervisor"])
def test_verbs_on_nothing_running_fail_in_one_line(verb: str, tmp_path: Path, capsys) -> None:
    code, out, err = run(capsys, *verb.split(), "--run-dir", str(tmp_path))

    if verb == "down":  # idempotent
        assert (code, err) == (0, "")
    else:
        assert (code, out) == (1, "")
        assert len(err.splitlines()) == 1
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("verb", ["check", "draw", "plan", "up", "ps", "down", "logs", "trace", "fault", "explore"])
def test_every_verb_has_help_with_one_example(verb: str, capsys) -> None:
    code, out, _ = run(capsys, verb, "--help")

    assert code == 0
    assert out.count("Example: dpactors ") == 1


def test_json_is_one_document_and_nothing_else(capsys) -> None:
    code, out, err = run(capsys, "plan", FILE, "--json")

    assert (code, err) == (0, "")
    assert {"name", "processes", "sockets"} <= json.loads(out).keys()


def test_a_dry_run_prints_the_plan_and_starts_nothing(tmp_path: Path, capsys) -> None:
    code, out, _ = run(capsys, "up", FILE, "--dry-run", "--run-dir", str(tmp_path / "run"))

    assert code == 0
    assert "engine.1" in out
    assert not (tmp_path / "run").exists()


def test_explore_ends_with_0_where_all_is_sound(capsys) -> None:
    code, out, err = run(capsys, "explore", "wave-interval")

    assert (code, err) == (0, "")
    assert ", frontier 0\n" in out


def test_explore_tells_the_story_of_a_fault_and_ends_with_1(capsys) -> None:
    code, out, err = run(capsys, "explore", "wave-lossy-without-repeats")

    assert (code, err) == (1, "")
    assert "STUCK: a request waits" in out
    assert "   3. START of wave 0 to rank 1 is lost" in out


def test_explore_tells_what_is_unknown_where_it_was_cut(capsys) -> None:
    code, out, _ = run(capsys, "explore", "wave", "--max-states", "50")

    assert code == 1
    assert "were not looked into. Raise --max-states." in out
