"""Graph, plan, sockets and drawings of the small file over stand-in actors."""

import xml.dom.minidom
from collections.abc import Iterable

import pytest

from dpactors.actor.address import Address, Group, parse_address
from dpactors.topology.document import Document, parse_topology
from dpactors.topology.draw import FORMATS, draw
from dpactors.topology.errors import TopologyError
from dpactors.topology.graph import Graph, build
from dpactors.topology.listen import listen_address, split_address
from dpactors.topology.plan import LinkPlan, Plan, ProcessPlan, make_plan
from dpactors.topology.sockets import sockets
from tests.unit.topology_standins import FILE, SMALL, STANDINS, Change, WorkerSettings, changed

RANKS = tuple(Address("engine", i) for i in range(4))


def planned(*changes: Change, overrides: Iterable[str] = ()) -> tuple[Document, Graph, Plan]:
    document = parse_topology(changed(*changes), FILE, overrides, {})
    graph = build(document, STANDINS)
    return document, graph, make_plan(document, graph)


def process(plan: Plan, name: str) -> ProcessPlan:
    return next(one for one in plan.processes if one.name == name)


def link(plan: Plan, binder: str, connector: str) -> LinkPlan:
    return next(one for one in plan.links if (one.binder, one.connector) == (binder, connector))


def test_indices_count_over_hosts_in_the_order_of_place() -> None:
    _, graph, _ = planned(("node0 = 2, node1 = 2", "node1 = 3, node0 = 1"))

    hosts = {str(node.address): node.host for node in graph.nodes if node.role == "engine"}
    assert {"engine.0": "node1", "engine.1": "node1", "engine.2": "node1", "engine.3": "node0"} == hosts


def test_nodes_are_in_start_order() -> None:
    _, graph, plan = planned()

    assert [
        "coordinator.0", "engine.0", "engine.1", "engine.2", "engine.3", "ingress.0", "client.0", "ingress.1", "client.1",
    ] == [str(node.address) for node in graph.nodes]  # fmt: skip
    assert [
        "coordinator.0", "engine.0", "engine.1", "engine.2", "engine.3", "frontend.0", "frontend.1",
    ] == [one.name for one in plan.processes]  # fmt: skip
    assert Group("expert-parallel", RANKS) == graph.nodes[1].group
    assert graph.nodes[0].group is None
    assert WorkerSettings(threads=2) == graph.nodes[1].settings


@pytest.mark.parametrize(
    ("reach", "pairs"),
    [
        ("all", [(i, j) for i in range(2) for j in range(4)]),
        ("same-host", [(0, 0), (0, 1), (1, 2), (1, 3)]),
    ],
)
def test_a_reach_decides_who_is_joined(reach: str, pairs: list[tuple[int, int]]) -> None:
    _, graph, _ = planned(overrides=[f"wires[2].reach={reach}"])

    assert pairs == [(one.source.index, one.target.index) for one in graph.links if one.outlet == "requests" and one.inlet == "requests"]  # fmt: skip


def test_same_index_joins_equals() -> None:
    _, graph, _ = planned(
        overrides=["roles.frontend.place={ node0 = 2, node1 = 2 }", "wires[2].reach=same-index"],
    )

    pairs = [(one.source.index, one.target.index) for one in graph.links if one.inlet == "requests"]
    assert [(0, 0), (1, 1), (2, 2), (3, 3)] == pairs


def test_actors_of_one_process_are_joined_within_it() -> None:
    _, _, plan = planned()

    assert {"ingress.0 client.0", "client.0 ingress.0", "ingress.1 client.1", "client.1 ingress.1"} == {
        f"{route.source} {route.target}" for route in plan.local_routes
    }
    assert ["ingress.1", "client.1"] == [str(one.setup.address) for one in process(plan, "frontend.1").actors]


def test_a_client_knows_its_peers_sources_sharers_and_group() -> None:
    _, _, plan = planned()

    setup = process(plan, "frontend.1").actors[1].setup

    assert (parse_address("engine.2"), parse_address("engine.3")) == setup.peers["requests"] == setup.sources["outputs"]
    assert (parse_address("coordinator.0"),) == setup.peers["waves"]
    assert {"replies": 1, "requests": 1, "waves": 2} == setup.sharers
    assert Group("expert-parallel", RANKS) == setup.group
    assert ("node1", "127.0.0.2") == (setup.host, setup.host_address)


def test_clients_that_share_ranks_know_how_many_they_are() -> None:
    _, _, plan = planned(overrides=["wires[2].reach=all"])

    assert 2 == process(plan, "frontend.1").actors[1].setup.sharers["requests"]


def test_who_is_beside_a_group_is_told_of_it_and_others_are_not() -> None:
    _, _, plan = planned()

    assert Group("expert-parallel", RANKS) == process(plan, "coordinator.0").actors[0].setup.group
    assert process(plan, "frontend.0").actors[0].setup.group is None


def test_every_port_of_a_setup_is_there_even_without_a_wire() -> None:
    _, _, plan = planned(('[[wires]]\nfrom = "engine.loads"\nto = "coordinator.loads"\n', ""))

    assert () == process(plan, "engine.0").actors[0].setup.peers["loads"]
    assert () == process(plan, "coordinator.0").actors[0].setup.sources["loads"]
    assert "loads" not in process(plan, "engine.0").actors[0].setup.sharers


def test_two_processes_share_one_link_with_both_directions() -> None:
    _, _, plan = planned()

    near, far = link(plan, "engine.0", "frontend.0"), link(plan, "coordinator.0", "engine.3")

    assert ("ipc", "tcp") == (near.transport, far.transport)
    assert [("client.0", "requests", "engine.0"), ("engine.0", "outputs", "client.0")] == [
        (str(route.source), route.outlet, str(route.target)) for route in near.routes
    ]
    assert {"loads": "latest", "starts": "reliable", "waves": "reliable"} == {
        route.outlet: route.delivery for route in far.routes
    }
    assert all(one.binder < one.connector for one in plan.links)
    assert len({(one.binder, one.connector) for one in plan.links}) == len(plan.links)
    assert not [one for one in plan.links if {one.binder, one.connector} == {"engine.0", "frontend.1"}]


def test_a_wire_may_state_tcp_on_one_host() -> None:
    _, _, plan = planned(overrides=["wires[2].transport=tcp"])

    assert "tcp" == link(plan, "engine.0", "frontend.0").transport


def test_routes_do_not_depend_on_the_order_of_wires() -> None:
    head, *wires = SMALL.split("[[wires]]")
    turned = parse_topology("\n[[wires]]".join([head, *reversed(wires)]), FILE, (), {})

    plan, other = planned()[2], make_plan(turned, build(turned, STANDINS))

    assert (plan.links, plan.digest) == (other.links, other.digest)


@pytest.mark.parametrize(
    "override",
    [
        "name=other",
        "roles.engine.place.node0=3",
        "roles.engine.settings.threads=3",
        "roles.engine.settings.retry_s=0.2",
        "wires[2].reach=all",
        "wires[2].transport=tcp",
    ],
)
def test_the_digest_covers_what_both_ends_must_agree_on(override: str) -> None:
    assert planned()[2].digest != planned(overrides=[override])[2].digest


@pytest.mark.parametrize(
    "override", ["hosts.node1=localhost", "roles.frontend.settings.listen=:1", "rendezvous.port=9"]
)
def test_the_digest_leaves_out_what_each_host_may_have_of_its_own(override: str) -> None:
    assert planned()[2].digest == planned(overrides=[override])[2].digest


def test_process_keys_reach_the_process() -> None:
    document, _, plan = planned(
        ("threads = 2 }", 'threads = 2 }\nstart_limit_s = 7\ncores = [2, 3]\nenv = { OMP_NUM_THREADS = "1" }'),
        ("[[groups]]", '[security]\nkeys = "secrets"\n[rendezvous]\nport = 4000\n[[groups]]'),
    )

    engine = process(plan, "engine.3")
    assert (7.0, (2, 3), {"OMP_NUM_THREADS": "1"}) == (engine.start_limit_s, engine.cores, engine.env)
    assert (120.0, (), {}) == (plan.processes[0].start_limit_s, plan.processes[0].cores, plan.processes[0].env)
    assert ("secrets", 4000) == (plan.keys, plan.rendezvous_port)
    assert [] == list(document.problems)


@pytest.mark.parametrize(
    ("listen", "first", "second"),
    [
        (":8000", "127.0.0.1:8000", "127.0.0.2:8000"),
        (":800{index}", "127.0.0.1:8000", "127.0.0.2:8001"),
        ("127.0.0.1:0", "127.0.0.1:0", "127.0.0.1:0"),
        ("[::1]:90{index}1", "[::1]:9001", "[::1]:9011"),
    ],
)
def test_listen_is_resolved_per_process(listen: str, first: str, second: str) -> None:
    _, _, plan = planned(overrides=[f"roles.frontend.settings.listen={listen}"])

    assert [(), (first,), (second,)] == [process(plan, f"{name}").listen for name in ("engine.0", "frontend.0", "frontend.1")]  # fmt: skip


def test_listen_on_an_ipv6_host() -> None:
    assert "[fd00::1]:8001" == listen_address(":800{index}", "fd00::1", 1)
    assert ("fd00::1", 80) == split_address("[fd00::1]:80")


@pytest.mark.parametrize(
    "bad", ["", "8000", ":", ":x", ":65536", "a b:1", "1.2.3:1", "fd00::1:80", "[x]:1", "[1.2.3.4]:1", "[a"]
)
def test_a_bad_address_is_refused(bad: str) -> None:
    with pytest.raises(ValueError, match="address"):
        split_address(bad)


def test_an_actor_wired_to_its_own_kind_is_not_its_own_peer() -> None:
    wire = '[[wires]]\nfrom = "coordinator.starts"\nto = "engine.starts"\n'
    _, graph, _ = planned((wire, wire + '[[wires]]\nfrom = "engine.outputs"\nto = "engine.outputs"\n'))

    own = [one for one in graph.links if one.source.role == one.target.role == "engine"]
    assert 12 == len(own)
    assert all(one.source != one.target for one in own)


def test_a_document_with_problems_is_not_built() -> None:
    with pytest.raises(TopologyError, match="unknown key sizes"):
        planned(("[[groups]]", "[[groups]]\nsizes = 1"))


def test_sockets_of_a_host_are_listed_with_both_sides() -> None:
    _, _, plan = planned()

    rows = sockets(plan, "node1")

    assert {"node1"} == {row.host for row in rows}
    assert ("rendezvous", "DEALER", "connect", "tcp://127.0.0.1:29551") == (
        rows[0].process, rows[0].socket, rows[0].side, rows[0].endpoint)  # fmt: skip
    engine = {(row.side, row.endpoint, row.peer) for row in rows if row.process == "engine.2"}
    assert {
        ("connect", "tcp://127.0.0.1:0 (announced)", "coordinator.0"),
        ("bind", "ipc://RUN/engine.2+frontend.1.N", "frontend.1"),
    } == engine
    loads = next(row for row in rows if row.peer == "coordinator.0" and row.process == "engine.2")
    assert ("reliable", "latest") == loads.delivery
    assert ("load.report/2", "wave.complete/1", "wave.start/1", "wave.wanted/1") == loads.tags
    assert 2 * len(plan.links) + 2 == len(sockets(plan))


def test_one_host_needs_no_rendezvous() -> None:
    _, _, plan = planned(overrides=["roles.engine.place={ node0 = 1 }", "roles.frontend.place={ node0 = 1 }"])

    assert {"DEALER"} == {row.socket for row in sockets(plan)}


@pytest.mark.parametrize("style", FORMATS)
def test_a_drawing_names_hosts_processes_actors_outlets_and_reach(style: str) -> None:
    document, graph, _ = planned()

    text = draw(document, graph, style)

    for word in ("node0 127.0.0.1", "frontend.1", "client.1", "engine.3", "requests (same-host)", "same process"):
        assert word in text


def test_a_mermaid_drawing_has_one_arrow_for_each_ordered_pair() -> None:
    document, graph, _ = planned()

    text = draw(document, graph, "mermaid")

    assert len({(one.source, one.target) for one in graph.links}) == text.count("-->")
    assert 'a1 -->|"waves (all)<br/>loads (all)"| a0' in text


def test_an_svg_drawing_is_well_formed_with_one_curve_a_link() -> None:
    document, graph, _ = planned(overrides=["roles.engine.place.node0=20"])

    tree = xml.dom.minidom.parseString(draw(document, graph, "svg"))

    curves = [path for path in tree.getElementsByTagName("path") if path.hasAttribute("marker-end")]
    assert len(graph.links) == len(curves)


def test_an_unknown_format_is_refused() -> None:
    document, graph, _ = planned()

    with pytest.raises(ValueError, match="Known: mermaid, svg, dot"):
        draw(document, graph, "png")
