"""The main job: one file brings up a real deployment, and it answers. Real processes, sockets, torch and gloo."""

import json
import os
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import httpx
import openai
import psutil
import pytest

from tests.live.deployment import DPACTORS, REPOSITORY, TOPOLOGIES, Deployment, cli, gone, until, up


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Deployment]:
    """Two ranks on one host, shared by the tests that leave it as they found it."""
    with up("internal_1node", tmp_path_factory.mktemp("pair")) as deployment:
        yield deployment


def mapped(pid: int) -> str:
    return Path(f"/proc/{pid}/maps").read_text()


def pss_mib(pid: int) -> float:
    match = re.search(r"^Pss:\s+(\d+) kB", Path(f"/proc/{pid}/smaps_rollup").read_text(), re.MULTILINE)
    assert match
    return int(match[1]) / 1024


def test_it_knows_what_a_wave_is(pair: Deployment) -> None:
    answer = pair.ask().json()

    text = answer["choices"][0]["message"]["content"]
    assert "engines" in text
    assert "together" in text
    assert answer["choices"][0]["finish_reason"] == "stop"


def test_the_official_client_streams(pair: Deployment) -> None:
    client = openai.OpenAI(base_url=f"{pair.url}/v1", api_key="none")
    question = [{"role": "user", "content": "What is a wave?"}]
    whole = client.chat.completions.create(model="tiny-moe", messages=question, temperature=0)
    chunks = list(client.chat.completions.create(model="tiny-moe", messages=question, temperature=0, stream=True))

    assert "".join(c.choices[0].delta.content or "" for c in chunks) == whole.choices[0].message.content
    assert chunks[-1].choices[0].finish_reason == "stop"
    assert len(chunks) > 3


def test_a_short_request_costs_both_ranks_the_same_steps(pair: Deployment) -> None:
    before = pair.asleep()
    answer = pair.complete([1, 200, 300], max_tokens=5, ignore_eos=True, data_parallel_rank=0)
    assert answer.json()["usage"]["completion_tokens"] == 5
    until(lambda: all(e["wave"] > b["wave"] for e, b in zip(pair.asleep(), before, strict=True)), "a new wave's end")
    after = pair.asleep()

    took = [
        (a["real_steps"] - b["real_steps"], a["dummy_steps"] - b["dummy_steps"])
        for a, b in zip(after, before, strict=True)
    ]
    assert took == [(5, 11), (0, 16)]
    assert [a["wave"] - b["wave"] for a, b in zip(after, before, strict=True)] == [1, 1]
    assert [a["kv_used"] for a in after] == [0.0, 0.0]


def test_dummies_leave_no_mark_in_the_metrics(pair: Deployment) -> None:
    def series() -> dict[str, str]:
        lines = httpx.get(f"{pair.url}/metrics").text.splitlines()
        return {k: v for k, _, v in (line.rpartition(" ") for line in lines if 'engine="1"' in line)}

    pair.asleep()
    before = series()
    pair.complete([1, 200, 300], max_tokens=5, ignore_eos=True, data_parallel_rank=0)
    pair.asleep()

    assert series() == before
    assert any("vllm:num_requests_running" in name for name in before)


def test_a_client_that_leaves_aborts_its_request(pair: Deployment) -> None:
    body = {"model": "tiny-moe", "prompt": [5, 6, 7], "max_tokens": 1500, "ignore_eos": True, "stream": True}
    before = sum(row["real_steps"] for row in pair.asleep())
    with httpx.stream("POST", f"{pair.url}/v1/completions", json=body, timeout=60) as stream:
        lines = stream.iter_lines()  # held on to: httpx hangs up when it is collected
        next(lines)
        until(lambda: any(row["running"] for row in pair.actors("engine")), "the request in a rank's own word")

    rows = pair.asleep()
    assert [row["kv_used"] for row in rows] == [0.0, 0.0]
    assert 0 < sum(row["real_steps"] for row in rows) - before < 1500


def test_the_story_of_a_request_spans_its_processes(pair: Deployment) -> None:
    pair.asleep()
    headers = {"X-Request-ID": "story-1"}
    body = {"model": "tiny-moe", "prompt": [5, 6, 7], "max_tokens": 4, "ignore_eos": True}
    answer = httpx.post(f"{pair.url}/v1/completions", json=body, headers=headers, timeout=60)
    assert answer.headers["x-request-id"] == "story-1"
    assert int(answer.headers["x-dpactors-rank"]) in (0, 1)
    pair.asleep()

    story = until(lambda: _story(pair), "a story with its end")
    order = ["Submitted", "Generate", "Dispatch", "FirstRequest", "StartWave", "RunStep", "StepOutputs", "Reply"]
    places = [next(i for i, event in enumerate(story) if event["what"] == name) for name in order]
    assert places[:4] == sorted(places[:4])
    assert places[4:] == sorted(places[4:])
    assert {e["process"] for e in story} == {"frontend.0", "coordinator.0", "engine.0", "engine.1"}
    text = pair.cli("trace", "story-1")
    assert text.returncode == 0
    assert "StartWave" in text.stdout


def _story(pair: Deployment) -> list[dict[str, object]] | None:
    found = pair.cli("trace", "story-1", "--format", "json")
    if found.returncode:
        return None
    story = json.loads(found.stdout)
    return story if any(e["what"] == "Reply" and e.get("finish") == "length" for e in story) else None


def test_control_processes_are_small_and_know_no_torch(pair: Deployment) -> None:
    pair.ask()
    rows = {row["address"]: row["pid"] for row in pair.actors()}
    supervisor = json.loads((pair.run_dir / "state.json").read_text())["pid"]
    control = {rows["coordinator.0"]: 60.0, supervisor: 60.0, rows["ingress.0"]: 120.0}

    for pid, limit_mib in control.items():
        assert "torch" not in mapped(pid)
        assert pss_mib(pid) < limit_mib, psutil.Process(pid).cmdline()
    assert "torch" in mapped(rows["engine.0"])


def test_no_process_holds_more_descriptors_than_the_plan_says(pair: Deployment) -> None:
    plan = json.loads(cli("plan", str(TOPOLOGIES / "internal_1node.toml"), "--json").stdout)
    pids = {actor["process"]: actor["pid"] for actor in pair.actors()}
    supervisor = json.loads((pair.run_dir / "state.json").read_text())["pid"]
    said = {pids[one["name"]]: one["descriptors"] for one in plan["processes"]}
    said[supervisor] = plan["supervisor"]["descriptors"]

    for pid, most in said.items():
        assert 10 < len(os.listdir(f"/proc/{pid}/fd")) <= most


def test_a_coordinator_killed_while_idle_is_no_event(tmp_path: Path) -> None:
    with up("internal_1node", tmp_path) as deployment:
        assert deployment.ask().status_code == 200
        deployment.asleep()
        (old,) = deployment.actors("coordinator")
        sockets = len(list(deployment.links_dir.iterdir()))

        assert deployment.cli("fault", "kill", "coordinator.0").returncode == 0
        answer = deployment.ask()

        assert answer.status_code == 200, answer.text
        assert "together" in answer.text
        (new,) = until(
            lambda: [row for row in deployment.actors("coordinator") if row["state"] == "ready"], "a new coordinator"
        )
        assert new["pid"] != old["pid"]
        assert new["restarts"] == 1
        assert len(list(deployment.links_dir.iterdir())) == sockets  # what the killed one listened on is gone


def test_a_killed_rank_comes_back_and_serves(tmp_path: Path) -> None:
    with up("internal_1node", tmp_path) as deployment:
        assert deployment.cli("fault", "kill", "engine.1").returncode == 0
        until(
            lambda: [r for r in deployment.actors("engine.1") if r["state"] == "ready" and r["restarts"] == 1],
            "engine.1 ready again",
        )
        until(lambda: httpx.get(f"{deployment.url}/ready").status_code == 200, "/ready")
        for rank in (0, 1):
            answer = deployment.ask(data_parallel_rank=rank)
            assert answer.status_code == 200, answer.text
            assert answer.headers["x-dpactors-rank"] == str(rank)


@pytest.mark.parametrize("topology", ["internal_2node", "hybrid_2node"])
def test_two_hosts_on_one_machine(topology: str, tmp_path: Path) -> None:
    with up(topology, tmp_path) as deployment:
        urls = deployment.ps()["urls"]
        for url in urls:
            for _ in range(3):
                assert "together" in deployment.ask(url=url).text
        hosts = {row["host"] for row in deployment.actors("engine")}
        assert hosts == {"node0", "node1"}


def free_ports(count: int) -> str:
    """All but the last digit of `count` neighbouring ports that nobody has on either loopback host."""
    for start in range(4000, 6000):
        try:
            for port in range(start * 10, start * 10 + count):
                for host in ("127.0.0.1", "127.0.0.2"):
                    with socket.socket() as probe:
                        probe.bind((host, port))
        except OSError:
            continue
        return str(start)
    raise AssertionError("no free ports")


def test_external_ranks_have_a_door_each(tmp_path: Path) -> None:
    listen = f'roles.frontend.settings.listen=":{free_ports(4)}{{index}}"'
    with up("external_4rank", tmp_path, "--set", listen, free_port=False) as deployment:
        urls = deployment.ps()["urls"]
        assert len(urls) == 4
        ranks = [deployment.ask(url=url).headers["x-dpactors-rank"] for url in urls]
        assert sorted(ranks) == ["0", "1", "2", "3"]


def test_each_host_may_be_brought_up_by_itself_in_any_order_and_come_back(tmp_path: Path) -> None:
    """NODE1 first, then NODE0, as on two machines; then NODE1 dies as a whole and is brought up again."""
    rendezvous = f"rendezvous.port={free_ports(2)}0"
    waiting = Deployment(tmp_path / "node1")
    listen = 'roles.frontend.settings.listen="127.0.0.1:0"'
    file = str(TOPOLOGIES / "hybrid_2node.toml")
    command = [*DPACTORS, "up", file, "--run-dir", str(waiting.run_dir), "--host", "node1"]
    command += ["--set", rendezvous, "--set", listen]
    alone = subprocess.Popen(command, cwd=REPOSITORY, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        until(lambda: (waiting.run_dir / "state.json").exists() or alone.poll() is not None, "node1's supervisor")
        with up("hybrid_2node", tmp_path / "node0", "--set", rendezvous, "--host", "node0") as first:
            until(lambda: all(row["state"] == "ready" for row in waiting.actors()), "node1 ready")
            assert "together" in first.ask().text
            assert "together" in first.ask(url=waiting.url).text

            pids = waiting.pids()
            alone.kill()
            alone.wait()
            gone(pids)
            alone = subprocess.Popen(command, cwd=REPOSITORY, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
            # Ranks 0 and 1 have lost their group: the request waits until the ranks of node1 are back.
            assert "together" in first.ask().text
            until(lambda: all(row["state"] == "ready" for row in waiting.actors()), "node1 ready again")
            assert "together" in first.ask(url=waiting.url).text

            pids = waiting.pids()
            assert waiting.cli("down").returncode == 0
            gone(pids)
    finally:
        alone.terminate()
        alone.wait(30)


def left_of(run_dir: Path, links_dir: Path) -> list[str]:
    """Sockets and folders of one deployment that are still there."""
    return [str(p) for p in run_dir.rglob("*") if p.is_socket()] + [str(p) for p in [links_dir] if p.exists()]


def shared_memory() -> set[str]:
    return {name for name in os.listdir("/dev/shm") if "dpactors" in name or name.startswith(("psm_", "torch_"))}


@pytest.mark.parametrize("how", ["down", "SIGINT", "SIGTERM"])
def test_an_ordered_stop_leaves_nothing(how: str, tmp_path: Path) -> None:
    before = shared_memory()
    with up("internal_1node", tmp_path) as deployment:
        pids, links_dir = deployment.pids(), deployment.links_dir
        assert links_dir.exists()
        supervisor = json.loads((tmp_path / "state.json").read_text())["pid"]
        if how == "down":
            assert deployment.cli("down").returncode == 0
        else:
            os.kill(supervisor, getattr(signal, how))
        gone(pids)
        assert left_of(tmp_path, links_dir) == []
        assert shared_memory() <= before
        assert deployment.cli("down").returncode == 0  # idempotent


def test_nothing_outlives_a_killed_supervisor(tmp_path: Path) -> None:
    """Neither process nor file, even while a request runs and step threads sit in collectives."""
    before = shared_memory()
    with up("internal_1node", tmp_path) as deployment:
        pids, links_dir = deployment.pids(), deployment.links_dir
        assert links_dir.exists()
        body = {"model": "tiny-moe", "prompt": [5], "max_tokens": 1500, "ignore_eos": True, "stream": True}
        with httpx.stream("POST", f"{deployment.url}/v1/completions", json=body, timeout=60) as stream:
            lines = stream.iter_lines()  # held on to: httpx hangs up when it is collected
            next(lines)
            os.kill(json.loads((tmp_path / "state.json").read_text())["pid"], signal.SIGKILL)
            gone(pids, limit_s=2.0)  # the promise itself
        assert left_of(tmp_path, links_dir) == []
        assert shared_memory() <= before


REFUSED = {
    "unknown inlet": ('to = "engine.requests"', 'to = "engine.request"', "engine.request"),
    "unknown setting": (
        "[[groups]]",
        "[roles.coordinator.settings]\nsnapshot_intervall_s = 0.1\n\n[[groups]]",
        "snapshot_interval_s",
    ),
    "no such host": ("node0 = 1", "node7 = 1", "node7"),
}


@pytest.mark.parametrize(("old", "new", "names"), REFUSED.values(), ids=REFUSED)
def test_check_and_up_refuse_alike_and_start_nothing(old: str, new: str, names: str, tmp_path: Path) -> None:
    text = (TOPOLOGIES / "internal_1node.toml").read_text()
    assert old in text
    bad = tmp_path / "bad.toml"
    bad.write_text(text.replace(old, new, 1))
    run_dir = tmp_path / "run"

    checked = cli("check", str(bad))
    started = cli("up", str(bad), "--detach", "--run-dir", str(run_dir))

    assert checked.returncode == started.returncode == 2
    for output in (checked.stdout + checked.stderr, started.stdout + started.stderr):
        assert str(bad) in output
        assert names in output
    assert not run_dir.exists()


def test_all_that_is_wrong_is_said_at_once(tmp_path: Path) -> None:
    """A mistyped inlet, an unknown setting, a duplicate rank, a missing wave wire and an open address in one file."""
    text = (TOPOLOGIES / "internal_1node.toml").read_text()
    twin = '[roles.spare]\nactor = "engine"\nplace = { node0 = 1 }\n\n[[groups]]'
    wire = '\n[[wires]]\nfrom = "client.requests"\nto = "spare.requests"\n'
    for old, new in (
        ('to = "ingress.replies"', 'to = "ingress.reply"'),
        ("[[groups]]", "[roles.coordinator.settings]\nsnapshot_intervall_s = 0.1\n\n" + twin),
        ('[[wires]]\nfrom = "coordinator.starts"\nto = "engine.starts"\n', wire),
        ("127.0.0.1", "10.9.9.9"),
    ):
        assert old in text, old
        text = text.replace(old, new, 1)
    bad = tmp_path / "bad.toml"
    bad.write_text(text)

    checked = cli("check", str(bad))
    started = cli("up", str(bad), "--detach", "--run-dir", str(tmp_path / "run"))

    assert checked.returncode == started.returncode == 2
    for output in (checked.stdout, started.stderr):
        for words in ("no inlet reply", "snapshot_interval_s", "duplicate rank", "coordinator.starts", "10.9.9.9"):
            assert words in output, output
        assert output.count(f"  {bad}: line ") >= 5
    assert not (tmp_path / "run").exists()


def test_dense_ranks_need_no_group_and_no_waves(tmp_path: Path) -> None:
    """A seeded script makes the checkpoint; both ranks serve it, each by itself."""
    dense = tmp_path / "dense"
    made = subprocess.run(
        [sys.executable, "scripts/make_dense.py", str(dense)],
        cwd=REPOSITORY,
        capture_output=True,
        text=True,
        check=False,
    )
    assert made.returncode == 0, made.stderr
    with up("dense_dp2", tmp_path / "run", DENSE_MODEL=str(dense)) as deployment:
        found = []
        for rank in (0, 1):
            answer = deployment.complete(
                [5, 6, 7], max_tokens=8, ignore_eos=True, model=None, data_parallel_rank=rank, return_token_ids=True
            )
            assert answer.status_code == 200, answer.text
            assert answer.headers["x-dpactors-rank"] == str(rank)
            found.append(answer.json()["choices"][0]["token_ids"])
        assert found[0] == found[1]
        rows = until(
            lambda: (
                [r for r in deployment.actors("engine") if r["real_steps"] == 8][1:] and deployment.actors("engine")
            ),
            "the ranks' own word of their steps",
        )
        assert [(row["real_steps"], row["dummy_steps"], row["wave"]) for row in rows] == [(8, 0, 0), (8, 0, 0)]


def test_addresses_of_others_are_refused_without_a_word_of_trust(tmp_path: Path) -> None:
    path = str(TOPOLOGIES / "internal_1node.toml")
    refused = cli("up", path, "--run-dir", str(tmp_path / "run"), NODE0="10.9.9.9")
    trusted = cli("up", path, "--set", "security.insecure=true", "--run-dir", str(tmp_path / "run"), NODE0="10.9.9.9")

    assert refused.returncode == trusted.returncode == 2
    assert "insecure = true" in refused.stderr
    assert "--host node0" in trusted.stderr
    assert not (tmp_path / "run").exists()
