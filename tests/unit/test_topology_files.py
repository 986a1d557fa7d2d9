"""The shipped files: each is clean over the real actors, and the modes differ in a few lines only."""

import difflib
import json
import re
from pathlib import Path

import pytest

from dpactors.actor.address import Address
from dpactors.serving.catalogue import CATALOGUE
from dpactors.serving.policy.registry import POLICIES
from dpactors.topology.check import check, checked_topology
from dpactors.topology.document import Document, read_topology
from dpactors.topology.draw import FORMATS, draw
from dpactors.topology.errors import TopologyError
from dpactors.topology.graph import build
from dpactors.topology.plan import Plan, make_plan
from dpactors.topology.settings import explain
from dpactors.topology.sockets import sockets

FOLDER = Path(__file__).parents[2] / "topologies"
FILES = sorted(FOLDER.glob("*.toml"))
NAMES = {"internal_1node", "internal_2node", "hybrid_2node", "external_4rank", "dense_dp2", "sglang_dp"}


def planned(name: str, *overrides: str, env: dict[str, str] | None = None) -> Plan:
    document = checked_topology(FOLDER / f"{name}.toml", CATALOGUE, overrides, env or {})
    return make_plan(document, build(document, CATALOGUE))


def differing(one: str, other: str) -> list[str]:
    lines = [(FOLDER / f"{name}.toml").read_text().splitlines() for name in (one, other)]
    return [line for line in difflib.ndiff(*lines) if line[:1] in "+-"]


def test_all_promised_files_ship() -> None:
    assert {path.stem for path in FILES} >= NAMES


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_a_shipped_file_checks_builds_plans_and_draws(path: Path) -> None:
    document = read_topology(path, env={})

    assert [] == check(document, CATALOGUE)
    assert path.stem == document.name
    assert document == Document.from_dict(json.loads(json.dumps(document.to_dict())))
    graph = build(document, CATALOGUE)
    plan = make_plan(document, graph)
    assert len(plan.processes) == len({process.name for process in plan.processes})
    assert all(draw(document, graph, style) for style in FORMATS)
    assert len(sockets(plan)) >= 2 * len(plan.links)
    assert all(row.meaning for row in explain(document, CATALOGUE))


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_a_shipped_file_takes_real_addresses_with_keys(path: Path) -> None:
    env = {"NODE0": "10.0.0.1", "NODE1": "10.0.0.2"}

    assert {"hosts.node0", "hosts.node1"} >= {
        problem.place.partition(", ")[2] for problem in check(read_topology(path, env=env), CATALOGUE)
    }
    assert [] == check(read_topology(path, env={**env, "DPACTORS_KEYS": "keys"}), CATALOGUE)


def test_internal_and_hybrid_differ_in_name_place_and_reach() -> None:
    lines = differing("internal_2node", "hybrid_2node")

    assert all(re.match(r"[+-] (name|place|reach) = ", line) for line in lines), lines
    assert 8 == len(lines)


def test_hybrid_and_external_differ_in_name_place_listen_reach_and_the_load_wire() -> None:
    lines = differing("hybrid_2node", "external_4rank")

    load_wire = ["- ", "- [[wires]]", '- from = "engine.loads"', '- to = "coordinator.loads"']
    assert load_wire == lines[-4:]
    settings = [line for line in lines if line[2:].startswith("settings")]
    assert re.sub(r'listen = "[^"]*"', "", settings[0][2:]) == re.sub(r'listen = "[^"]*"', "", settings[1][2:])
    others = [line for line in lines[:-4] if line not in settings]
    assert all(re.match(r"[+-] (name|place|reach) = ", line) for line in others), others


def test_internal_has_one_port_for_all_front_ends() -> None:
    plan = planned("internal_2node")

    fronts = [process for process in plan.processes if process.role == "frontend"]
    assert [("node0", ("127.0.0.1:8000",))] * 4 == [(process.host, process.listen) for process in fronts]
    assert 4 == len(fronts[0].actors[1].setup.peers["requests"])


def test_in_hybrid_no_request_crosses_hosts() -> None:
    plan = planned("hybrid_2node")

    hosts = {actor.setup.address: process.host for process in plan.processes for actor in process.actors}
    crossing = {
        (route.outlet, hosts[route.source] != hosts[route.target]) for link in plan.links for route in link.routes
    }
    assert ("requests", True) not in crossing
    assert ("outputs", True) not in crossing
    assert ("waves", True) in crossing


def test_in_external_each_rank_has_its_own_port_and_no_load_reaches_the_coordinator() -> None:
    plan = planned("external_4rank")

    fronts = [process for process in plan.processes if process.role == "frontend"]
    assert ["127.0.0.1:8000", "127.0.0.1:8001", "127.0.0.2:8002", "127.0.0.2:8003"] == [p.listen[0] for p in fronts]
    assert [(Address("engine", i),) for i in range(4)] == [p.actors[1].setup.peers["requests"] for p in fronts]
    routes = [route for link in plan.links for route in link.routes]
    assert not [route for route in routes if route.outlet == "loads"]
    assert [route for route in routes if route.outlet == "starts"]


def test_dense_has_no_group_and_no_waves_but_loads() -> None:
    plan = planned("dense_dp2", env={"DENSE_MODEL": "/models/dense"})

    actors = [actor.setup for process in plan.processes for actor in process.actors]
    assert {None} == {setup.group for setup in actors}
    assert {"/models/dense"} == {setup.settings.model for setup in actors if hasattr(setup.settings, "model")}
    outlets = {route.outlet for link in plan.links for route in link.routes}
    assert {"requests", "outputs", "snapshots", "loads"} == outlets


@pytest.mark.parametrize("policy", POLICIES)
def test_the_controller_takes_every_method_by_name(policy: str) -> None:
    plan = planned("sglang_dp", env={"LOAD_BALANCE_METHOD": policy})

    actors = [actor.setup for process in plan.processes for actor in process.actors]
    assert {None} == {setup.group for setup in actors}
    assert {policy} == {setup.settings.policy for setup in actors if hasattr(setup.settings, "policy")}


def test_an_unknown_method_is_refused_with_the_nearest_known_one() -> None:
    with pytest.raises(TopologyError) as refused:
        planned("sglang_dp", env={"LOAD_BALANCE_METHOD": "total_token"})

    (problem,) = refused.value.problems
    assert "roles.frontend.settings.policy" in problem.place
    assert "Did you mean total_tokens?" in problem.mend


def test_a_single_rank_can_be_asked_for() -> None:
    plan = planned("internal_1node", "roles.engine.place.node0=1", "roles.frontend.settings.listen=127.0.0.1:0")

    assert ["coordinator.0", "engine.0", "frontend.0"] == [process.name for process in plan.processes]


def test_each_wrong_line_of_a_real_file_is_refused_at_once() -> None:
    """A mistyped inlet, an unknown setting, a duplicate rank, a missing wave wire, an open address."""
    text = (FOLDER / "hybrid_2node.toml").read_text()
    for old, new in [
        ('to = "coordinator.loads"', 'to = "coordinator.lodes"'),
        ('policy = "vllm"', 'polcy = "vllm"'),
        ("place = { node0 = 2, node1 = 2 }", "place = { node0 = 2, node0 = 2 }"),
        ('[[wires]]\nfrom = "coordinator.starts"\nto = "engine.starts"\n', ""),
        ("${NODE1:-127.0.0.2}", "10.1.2.3"),
    ]:
        assert old in text
        text = text.replace(old, new)
    from dpactors.topology.document import parse_topology

    problems = check(parse_topology(text, "broken.toml", env={}), CATALOGUE)

    wrongs = [f"{problem.place.partition(', ')[2]}: {problem.wrong}" for problem in problems]
    for start in (
        "wires[9].to: coordinator has no inlet lodes",
        "roles.frontend.settings.polcy: ingress, client has no setting polcy",
        "roles.engine.place.node0: stands here a second time",
        "roles.engine: engine.starts has no wire",
        "hosts.node1: 10.1.2.3 can be reached from other machines",
    ):
        assert 1 == sum(wrong.startswith(start) for wrong in wrongs), wrongs
