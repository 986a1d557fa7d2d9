"""The code of the tutorial is what runs here."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.live.deployment import REPOSITORY, Deployment, cli, gone, until

PAGE = REPOSITORY / "docs" / "tutorial" / "two-actors.md"
BLOCK = re.compile(r"^```\w+ (\S+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """The files of the page."""
    for name, text in BLOCK.findall(PAGE.read_text()):
        (tmp_path / name).write_text(text)
    assert {one.name for one in tmp_path.iterdir()} == {"actors.py", "echo.toml", "world.py"}
    return tmp_path


def test_the_actors_are_short(folder: Path) -> None:
    lines = [one for one in (folder / "actors.py").read_text().splitlines() if one.strip()]

    assert len(lines) <= 35


def test_two_actors_speak_over_zeromq(folder: Path) -> None:
    file, run_dir = str(folder / "echo.toml"), folder / "run"
    checked = cli("check", file)
    assert (checked.returncode, checked.stdout) == (0, f"{file}: echo is sound\n"), checked.stdout

    began = cli("up", file, "--detach", "--run-dir", str(run_dir))
    assert began.returncode == 0, began.stderr
    deployment = Deployment(run_dir)
    try:
        assert [one["address"] for one in deployment.actors()] == ["asker.0", "echo.0"]
        until(lambda: "answered" in deployment.cli("logs", "asker.0").stdout, "an answer")
        (echo,) = deployment.actors("echo")
        assert deployment.cli("fault", "kill", "echo.0").returncode == 0
        until(lambda: deployment.actors("echo")[0]["pid"] not in {echo["pid"], None}, "echo.0 back")
        seen = deployment.cli("logs", "asker.0").stdout.count("answered")
        until(lambda: deployment.cli("logs", "asker.0").stdout.count("answered") > seen + 1, "answers go on")
        pids = deployment.pids()
    finally:
        assert deployment.cli("down").returncode == 0
    gone(pids)


def test_the_same_actors_live_in_a_world(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(folder)
    done = subprocess.run(
        [sys.executable, "world.py"], capture_output=True, text=True, check=False, timeout=60, cwd=folder
    )

    assert done.returncode == 0, done.stderr
    assert done.stdout == "100 answers, 200 messages\n"


@pytest.mark.parametrize(
    ("actor", "said"),
    [
        ("actors:Ekko", "actors has no Ekko. Did you mean Echo?"),
        ("actors:Question", "actors.Question is type, not a class of actors. Derive it from dpactors.Actor"),
        ("nowhere:Echo", "there is no module nowhere in the folder of this file or among installed packages"),
        ("broken:Echo", "broken cannot be imported: ZeroDivisionError: division by zero. Mend broken"),
        ("loose:Loose", "loose cannot be imported: ContractError: Loose has inlet questions but no on_questions"),
    ],
)
def test_what_is_wrong_with_a_named_actor_is_said(folder: Path, actor: str, said: str) -> None:
    (folder / "broken.py").write_text("1 / 0\n")
    (folder / "loose.py").write_text(
        "from actors import Question\nfrom dpactors import Actor, inlet\n\n\nclass Loose(Actor):\n"
        "    questions = inlet(Question)\n"
    )
    file = folder / "echo.toml"
    file.write_text(file.read_text().replace("actors:Echo", actor))

    found = cli("check", str(file))

    assert found.returncode == 2
    assert said in found.stdout, found.stdout
    assert f"{file}: line 9, roles.echo.actor: " in found.stdout


def test_the_face_of_the_package_is_light() -> None:
    code = "import sys, dpactors; heavy = {'torch', 'zmq', 'cbor2', 'numpy', 'uvicorn'} & set(sys.modules); assert not heavy, heavy"

    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)
