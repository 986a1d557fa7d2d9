"""Every rule of check: the file, the place, what is wrong and the mend."""

import pytest

from dpactors.topology.check import RULES, check, checked_topology
from dpactors.topology.document import parse_topology
from dpactors.topology.errors import Problem, TopologyError
from tests.unit.topology_standins import FILE, SMALL, STANDINS, Change, changed

LOAD_WIRE = '[[wires]]\nfrom = "engine.loads"\nto = "coordinator.loads"\n'
STARTS_WIRE = '[[wires]]\nfrom = "coordinator.starts"\nto = "engine.starts"\n'
ENGINE = 'actor = "engine"\nplace = { node0 = 2, node1 = 2 }\nsettings = { model = "tiny", threads = 2 }\n'
FRONT = '[roles.frontend]\nactor = ["ingress", "client"]\nplace = { node0 = 1, node1 = 1 }\n'
SPLIT = "[roles.ingress]\nactor = 'ingress'\nplace = { node0 = 1, node1 = 1 }\n[roles.client]\nactor = 'client'\nplace = { node0 = 1, node1 = 1 }\n"  # fmt: skip
FRONT_SETTINGS = 'settings = { model = "tiny", policy = "vllm", listen = ":8000" }\n'
SECURE = '[security]\nkeys = "keys"\n'


def problems_of(*changes: Change, text: str = SMALL) -> list[Problem]:
    return check(parse_topology(changed(*changes, text=text), FILE, env={}), STANDINS)


def test_the_small_file_is_clean() -> None:
    assert [] == problems_of()


@pytest.mark.parametrize(
    ("change", "place", "wrong", "mend"),
    [
        # actors, settings
        (('actor = "coordinator"', 'actor = "coordinater"'), "line 5, roles.coordinator.actor",
         "there is no actor coordinater", "Did you mean coordinator? Known: ingress, client, engine, coordinator"),
        (("threads = 2", "treads = 2"), "line 11, roles.engine.settings.treads",
         "engine has no setting treads", "Did you mean threads? Known: model, threads, retry_s, eager, extra_models"),
        (("policy", "polcy"), "line 16, roles.frontend.settings.polcy",
         "ingress, client has no setting polcy", "Did you mean policy?"),
        (("threads = 2", 'threads = "2"'), "line 11, roles.engine.settings.threads",
         'is "2", not a whole number', "Give a whole number of threads: intra-op threads; the default is 1 threads"),
        (("threads = 2", "threads = true"), "line 11, roles.engine.settings.threads", "is true, not a whole number", ""),
        (("threads = 2", "threads = 0"), "line 11, roles.engine.settings.threads",
         "is 0 threads, but must be >= 1", "Give another value: intra-op threads; the default is 1 threads"),
        (("threads = 2", "retry_s = 0"), "line 11, roles.engine.settings.retry_s", "is 0.0 s, but must be > 0", "0.1 s"),
        (("threads = 2", "eager = 1"), "line 11, roles.engine.settings.eager", "is 1, not true or false", "Give true"),
        (("threads = 2", "extra_models = ['a', 1]"), "line 11, roles.engine.settings.extra_models",
         "is 1, not text in quotes", "Give a list of text in quotes: further checkpoints"),
        (('policy = "vllm"', 'policy = "vlm"'), "line 16, roles.frontend.settings.policy",
         'is "vlm", but must be one of its known values', "Did you mean vllm? Known: vllm, round_robin"),
        (('model = "tiny", policy', "model = 1, policy"), "line 16, roles.frontend.settings.model", "is 1, not text", ""),
        # places
        (("place = { node0 = 1 }", "place = { nod0 = 1 }"), "line 6, roles.coordinator.place.nod0",
         "nod0 is no host", "Did you mean node0? Known: node0, node1"),
        (("{ node0 = 1 }\n", "{ node0 = 1 }\nstart_limit_s = 0\n"), "line 7, roles.coordinator.start_limit_s",
         "is 0 s, and no process starts in that", "Give seconds above 0"),
        (("{ node0 = 1 }\n", "{ node0 = 1 }\ncores = [1, 1]\n"), "line 7, roles.coordinator.cores",
         "[1, 1] names no set of cores", "Give each core once, counted from 0"),
        (('"ingress", "client"]', '"ingress", "client", "client"]'), "line 14, roles.frontend.actor",
         "lists client more than once, so client.0 would exist twice: duplicate rank", "List each actor once"),
        # addresses
        (('"127.0.0.2"', '"127.0.0.2:80"'), "line 2, hosts.node1", '"127.0.0.2:80" is no address', "without a port"),
        (('"127.0.0.2"', '"0.0.0.0"'), "line 2, hosts.node1", "0.0.0.0 stands for any address", "Give the address by"),
        (('":8000"', '"8000"'), "line 16, roles.frontend.settings.listen",
         '"8000" for instance 0: 8000 is no address and port', "Write for example :8000, or :800{index}"),
        (('":8000"', '":6553{index}6"'), "line 16, roles.frontend.settings.listen", "for instance 0: :655306", ""),
        (('":8000"', '"!:80"'), "line 16, roles.frontend.settings.listen", "! is neither an IP address nor a host", ""),
        (("[[groups]]", "[rendezvous]\nport = 70000\n[[groups]]"), "line 19, rendezvous.port",
         "70000 is no port", "Give 1 to 65535"),
        # wires
        (('"client.requests"', '"clent.requests"'), "line 31, wires[2].from",
         "nothing is placed under the name clent", "Did you mean client? Known: coordinator, engine, ingress, client"),
        (('"client.requests"', '"frontend.requests"'), "line 31, wires[2].from",
         "frontend has 2 actors", "Name the actor: ingress or client"),
        (('"client.requests"', '"client"'), "line 31, wires[2].from", '"client" names no port', "Write NAME.OUTLET"),
        (('"engine.requests"', '"engine.request"'), "line 32, wires[2].to",
         "engine has no inlet request", "Did you mean requests? Inlets of engine: requests, starts"),
        (('"coordinator.loads"', '"coordinator.lods"'), "line 58, wires[8].to",
         "coordinator has no inlet lods", "Did you mean loads? Inlets of coordinator: loads, waves"),
        (('from = "engine.loads"', 'from = "engine.requests"'), "line 57, wires[8].from",
         'engine.requests is an inlet, and "from" wants an outlet', "Outlets of engine: outputs, loads, waves"),
        (('to = "coordinator.loads"', 'to = "coordinator.starts"'), "line 58, wires[8].to",
         'coordinator.starts is an outlet, and "to" wants an inlet', "Inlets of coordinator: loads, waves"),
        (('to = "coordinator.loads"', 'to = "coordinator.waves"'), "line 56, wires[8]",
         "engine.loads carries LoadReport, which coordinator.waves does not take",
         'Did you mean to = "coordinator.loads"?'),
        (('reach = "same-host"', 'reach = "same-hots"'), "line 33, wires[2].reach",
         "same-hots is no reach", "Did you mean same-host? Known: all, same-host, same-index"),
        (('reach = "same-host"', 'reach = "same-index"'), "line 33, wires[2].reach",
         "same-index joins 2 client to 4 engine", "Place as many of one as of the other, or widen the reach"),
        (('to = "client.intake"', 'to = "client.intake"\nreach = "all"'), "line 25, wires[0].reach",
         "both ends live in one process of frontend, so only equal indices are joined", "Leave reach out"),
        (('to = "client.intake"', 'to = "client.intake"\ntransport = "ipc"'), "line 25, wires[0].transport",
         "both ends live in one process", "Leave transport out"),
        (('to = "coordinator.loads"', 'to = "coordinator.loads"\ntransport = "udp"'), "line 59, wires[8].transport",
         "udp is no transport", "Known: ipc, tcp"),
        (('to = "coordinator.loads"', 'to = "coordinator.loads"\ntransport = "ipc"'), "line 59, wires[8].transport",
         "ipc stays on one host, and this wire joins engine.loads and coordinator.loads across hosts",
         'Leave transport out, or write "tcp", or reach = "same-host"'),
        ((LOAD_WIRE, LOAD_WIRE + LOAD_WIRE), "line 59, wires[9]",
         "engine.loads to coordinator.loads is wires[8] again", "Remove one of the two"),
        # needed ports
        (('[[wires]]\nfrom = "ingress.requests"\nto = "client.intake"\n', ""), "line 13, roles.frontend",
         "ingress.requests has no wire, and ingress needs one",
         'Add [[wires]] with from = "ingress.requests" and to = "client.intake"'),
        (('[[wires]]\nfrom = "engine.waves"\nto = "coordinator.waves"\n', ""), "line 8, roles.engine",
         "engine.waves has no wire, and engine is in the group groups[0]",
         'Add [[wires]] with from = "engine.waves" and to = "coordinator.waves"'),
        ((STARTS_WIRE, ""), "line 8, roles.engine",
         "engine.starts has no wire, and engine is in the group groups[0]",
         'Add [[wires]] with from = "coordinator.starts" and to = "engine.starts"'),
        (('[[wires]]\nfrom = "client.waves"\nto = "coordinator.waves"\n', ""), "line 13, roles.frontend",
         "client.waves has no wire, and client is wired to engine of the group groups[0]",
         'Add [[wires]] with from = "client.waves" and to = "coordinator.waves"'),
        # groups
        (('role = "engine"', 'role = "engin"'), "line 19, groups[0].role",
         "there is no role engin", "Did you mean engine? Known: engine, client"),
        (('role = "engine"', 'role = "coordinator"'), "line 19, groups[0].role",
         "coordinator cannot be a group: coordinator has no ports for groups", "Roles that can: engine, client"),
        (('"expert-parallel"', '"tensor-parallel"'), "line 20, groups[0].kind",
         "tensor-parallel is no kind of group", "Did you mean expert-parallel? Known: expert-parallel"),
        (("[[groups]]", '[[groups]]\nrole = "engine"\nkind = "expert-parallel"\n[[groups]]'), "line 22, groups[1].role",
         "engine is in a group already: groups[0]", "Remove one of the two"),
    ],
)  # fmt: skip
def test_one_mistake_gives_its_problem(change: Change, place: str, wrong: str, mend: str) -> None:
    problems = problems_of(change)

    own = [problem for problem in problems if problem.place == place and wrong in problem.wrong]
    assert 1 == len(own), "\n".join(str(problem) for problem in problems)
    assert FILE == own[0].file
    assert int(place.removeprefix("line ").partition(",")[0]) == own[0].line
    assert mend in own[0].mend
    assert str(own[0]).startswith(f"{FILE}: {place}: {own[0].wrong}. {own[0].mend}")


def test_two_roles_with_one_address_are_a_duplicate_rank() -> None:
    (problem,) = [p for p in problems_of((FRONT, "[roles.client]\n" + ENGINE + FRONT)) if "address" in p.wrong]

    assert ("line 18, roles.frontend.actor", "duplicate rank") == (problem.place, problem.wrong[-14:])
    assert "Rename the role client" in problem.mend


def test_two_roles_with_one_rank_at_an_outlet_are_a_duplicate_rank() -> None:
    spare = '[[wires]]\nfrom = "client.requests"\nto = "spare.requests"\n'

    problems = problems_of((FRONT, "[roles.spare]\n" + ENGINE + FRONT), (LOAD_WIRE, LOAD_WIRE + spare))

    (problem,) = [problem for problem in problems if "duplicate rank" in problem.wrong]
    assert "line 63, wires[9]" == problem.place
    assert "spare.0 and engine.0 are both rank 0 for client.requests (wires[2])" in problem.wrong
    assert "Place all engine actors of client.requests by one role" == problem.mend


def test_ingress_and_client_in_two_roles_are_refused_with_the_reason() -> None:
    split = changed((FRONT + FRONT_SETTINGS, SPLIT))

    problems = [problem for problem in problems_of(text=split) if "share a process" in problem.wrong]

    assert ["line 24, wires[0]", "line 28, wires[1]"] == [problem.place for problem in problems]
    assert "moves to another rank" in problems[0].wrong
    assert 'Place both by one role, with actor = ["ingress", "client"]' == problems[0].mend


@pytest.mark.parametrize("change", [('"127.0.0.1"', '"10.0.0.1"'), ('"127.0.0.1"', '"node0.cluster"'), ('"127.0.0.1"', '"fd00::1"')])  # fmt: skip
def test_a_host_that_others_reach_needs_keys(change: Change) -> None:
    (problem,) = problems_of(change)

    assert "line 2, hosts.node0" == problem.place
    assert "can be reached from other machines" in problem.wrong
    assert "insecure = true" in problem.mend
    assert [] == problems_of(change, ("[[groups]]", "[security]\ninsecure = true\n[[groups]]"))
    assert [] == problems_of(change, ("[[groups]]", SECURE + "[[groups]]"))


@pytest.mark.parametrize("listen", ["0.0.0.0:8000", "[::]:8000", "10.0.0.1:800{index}", "door.example:80"])
def test_a_listen_that_others_reach_needs_keys(listen: str) -> None:
    own = [p for p in problems_of((":8000", listen)) if "other machines" in p.wrong]

    assert ["line 16, roles.frontend.settings.listen"] == [problem.place for problem in own]
    assert "insecure = true" in own[0].mend


@pytest.mark.parametrize("address", ["127.1.2.3", "::1", "localhost"])
def test_loopback_needs_no_keys(address: str) -> None:
    assert [] == problems_of(('"127.0.0.1"', f'"{address}"'), ('":8000"', '":800{index}"'))


def test_an_unused_host_may_have_any_address() -> None:
    assert [] == problems_of(('node1 = "127.0.0.2" }', 'node1 = "127.0.0.2", node2 = "10.0.0.9" }'))


@pytest.mark.parametrize("listen", ["127.0.0.1:8000", "localhost:8000"])
def test_hosts_of_one_machine_cannot_bind_one_port(listen: str) -> None:
    (problem,) = problems_of((":8000", listen))

    assert "line 16, roles.frontend.settings.listen" == problem.place
    assert f"roles.frontend on node1 binds {listen}, which roles.frontend has on node0" == problem.wrong
    assert "Give it another port, or :800{index} for one port an instance" == problem.mend
    assert [] == problems_of((":8000", listen.replace("8000", "800{index}")))
    assert [] == problems_of((":8000", "127.0.0.1:0"))


def test_two_roles_cannot_bind_one_port() -> None:
    twin = {**STANDINS, "door2": STANDINS["ingress"]}
    text = changed((FRONT, f'[roles.extra]\nactor = "door2"\nplace = {{ node1 = 1 }}\n{FRONT}'))

    problems = check(parse_topology(text, FILE, env={}), twin)

    (problem,) = [problem for problem in problems if "binds" in problem.wrong]
    assert "line 19, roles.frontend.settings.listen" == problem.place
    assert "roles.frontend on node1 binds 127.0.0.2:8000, which roles.extra has" == problem.wrong


def test_http_and_rendezvous_cannot_bind_one_port() -> None:
    (problem,) = problems_of((":8000", ":29551"))

    assert "which the rendezvous has" in problem.wrong


def test_an_instance_without_a_partner_on_its_host_is_told() -> None:
    problems = problems_of(("{ node0 = 1, node1 = 1 }", "{ node0 = 1 }"))

    assert ["line 33, wires[2].reach", "line 38, wires[3].reach"] == [problem.place for problem in problems]
    assert "engine.2, engine.3 would have no client on their host for requests" == problems[0].wrong
    assert "Place client on each host of engine, or widen the reach" == problems[0].mend


def test_two_processes_have_one_transport() -> None:
    tcp, ipc = ('to = "engine.requests"', 'to = "engine.requests"\ntransport = "tcp"'), (
        'to = "client.outputs"', 'to = "client.outputs"\ntransport = "ipc"')  # fmt: skip

    assert [] == problems_of(tcp)
    (problem,) = problems_of(tcp, ipc)
    assert "line 39, wires[3].transport" == problem.place
    assert "ipc differs from tcp of wires[2] between these processes" == problem.wrong


def test_a_missing_partner_is_named_from_the_catalogue() -> None:
    hub = '[roles.coordinator]\nactor = "coordinator"\nplace = { node0 = 1 }\n\n'
    wires = [part for part in SMALL.split("[[wires]]") if "coordinator." in part]

    problems = problems_of((hub, ""), *((f"[[wires]]{wire}", "") for wire in wires))

    assert {
        'Place a coordinator and add [[wires]] with from = "engine.waves" and to = "coordinator.waves"',
        'Place a coordinator and add [[wires]] with from = "coordinator.starts" and to = "engine.starts"',
        'Place a coordinator and add [[wires]] with from = "client.waves" and to = "coordinator.waves"',
        'Place a coordinator and add [[wires]] with from = "coordinator.snapshots" and to = "client.snapshots"',
    } == {problem.mend for problem in problems}


def test_without_a_group_no_wave_wires_are_needed() -> None:
    group = '[[groups]]\nrole = "engine"\nkind = "expert-parallel"\n'
    waves = [part for part in SMALL.split("[[wires]]") if "waves" in part or "starts" in part]

    assert [] == problems_of((group, ""), *((f"[[wires]]{wire}", "") for wire in waves))


def test_an_actor_between_two_groups_is_refused() -> None:
    more = '[[groups]]\nrole = "spare"\nkind = "expert-parallel"\n' + LOAD_WIRE.replace("engine", "spare")

    problems = problems_of((FRONT, "[roles.spare]\n" + ENGINE + FRONT), (LOAD_WIRE, LOAD_WIRE + more))

    (problem,) = [problem for problem in problems if "groups: engine, spare" in problem.wrong]
    assert "line 4, roles.coordinator" == problem.place
    assert "Give each group a coordinator of its own, by another role" == problem.mend


def test_all_problems_come_at_once_in_order_of_line() -> None:
    problems = problems_of(
        ('"127.0.0.2"', '"10.0.0.2"'),
        ("node1 = 2 }", "node1 = 2, node1 = 3 }"),
        ("threads = 2", "threds = 2"),
        ("[[groups]]", "[[groups]]\nsize = 4"),
        ('"coordinator.loads"', '"coordinator.loadz"'),
        (STARTS_WIRE, ""),
        ('"small"', '"${MISSING}"'),
    )

    assert [
        "line 1, name",
        "line 2, hosts.node1",
        "line 8, roles.engine",
        "line 10, roles.engine.place.node1",
        "line 11, roles.engine.settings.threds",
        "line 19, groups[0].size",
        "line 56, wires[7].to",
    ] == [problem.place for problem in problems if "is no name" not in problem.wrong]
    text = str(TopologyError(problems))
    assert text.startswith(f"{FILE}: {len(problems)} problems\n  {FILE}: line 1, name: ")
    assert len(problems) + 1 == len(text.splitlines())


def test_an_override_is_the_place_of_its_own_problem() -> None:
    document = parse_topology(SMALL, FILE, ["roles.engine.settings.threads=0", "roles.engine.settings.treads=1"], {})

    problems = check(document, STANDINS)

    assert ["--set roles.engine.settings.threads", "--set roles.engine.settings.treads"] == [p.place for p in problems]
    assert [None, None] == [problem.line for problem in problems]


def test_checked_topology_raises_with_all(tmp_path: object) -> None:
    path = f"{tmp_path}/{FILE}"
    with open(path, "w") as file:  # noqa: PTH123 - shortest
        file.write(changed(("threads", "treads"), ('"coordinator.loads"', '"coordinator.load"')))

    with pytest.raises(TopologyError) as caught:
        checked_topology(path, STANDINS, env={})

    assert 2 == len(caught.value.problems)


def test_every_rule_has_one_sentence() -> None:
    assert all((rule.__doc__ or "").count(".") >= 1 for rule in RULES)
