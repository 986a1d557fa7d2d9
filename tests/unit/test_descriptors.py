"""How many descriptors a plan needs, and a machine that has too few: told before anything starts."""

import resource
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path

import pytest

from dpactors.net.zeromq import LINKS_MAX
from dpactors.runtime.room import NoRoom, make_room
from dpactors.topology.descriptors import CHILD, CONNECTIONS, CONTEXT, LINK, MEMBER, PROCESS, WATCH, Need, needs
from tests.unit.test_topology_plan import planned

REPOSITORY = Path(__file__).parents[2]
FILE = "topologies/internal_1node.toml"


def needed(hosts: Iterable[str], *overrides: str) -> dict[str, Need]:
    _, _, plan = planned(overrides=overrides)
    return {one.process: one for one in needs(plan, list(hosts))}


def test_every_process_has_its_links_and_one_with_its_supervisor() -> None:
    found = needed(["node0", "node1"])

    assert {name: one.links for name, one in found.items()} == {
        "supervisor": 7,
        "coordinator.0": 7,
        "engine.0": 3,
        "engine.1": 3,
        "engine.2": 3,
        "engine.3": 3,
        "frontend.0": 4,
        "frontend.1": 4,
    }


def test_links_ranks_and_doors_cost_what_they_hold() -> None:
    found = needed(["node0", "node1"])

    assert found["coordinator.0"].descriptors == PROCESS + CONTEXT + 7 * LINK
    assert found["engine.3"].descriptors == PROCESS + CONTEXT + 3 * LINK + 3 * MEMBER
    assert found["frontend.1"].descriptors == PROCESS + CONTEXT + 4 * LINK + 1 + CONNECTIONS
    assert found["supervisor"].descriptors == PROCESS + CONTEXT + 7 * (LINK + CHILD) + 2


def test_a_supervisor_has_its_own_hosts_processes_and_meets_the_other_hosts() -> None:
    found = needed(["node1"])

    assert list(found) == ["supervisor", "engine.2", "engine.3", "frontend.1"]
    assert found["supervisor"] == Need("supervisor", "node1", 4, PROCESS + 2 * CONTEXT + 4 * LINK + 3 * CHILD + 1)


def test_links_that_take_keys_are_watched() -> None:
    _, _, plan = planned(("[roles.coordinator]", '[security]\nkeys = "keys"\n\n[roles.coordinator]'))

    assert needs(plan, plan.hosts)[1].descriptors == PROCESS + CONTEXT + 7 * (LINK + WATCH)


def test_more_links_than_zeromq_has_sockets_are_refused() -> None:
    make_room([Need("engine.0", "node0", LINKS_MAX, 10)])
    with pytest.raises(NoRoom, match=rf"engine\.0 would have {LINKS_MAX + 1} links"):
        make_room([Need("coordinator.0", "node0", 3, 10), Need("engine.0", "node0", LINKS_MAX + 1, 10)])


@pytest.mark.parametrize(
    ("limits", "needed", "then"),
    [
        ((1024, 4096), 1000, None),
        ((1024, 4096), 1024, None),
        ((1024, 4096), 1025, (4096, 4096)),
        ((1024, resource.RLIM_INFINITY), 1025, (1025, resource.RLIM_INFINITY)),
        ((resource.RLIM_INFINITY, resource.RLIM_INFINITY), 1025, None),
    ],
)
def test_the_soft_limit_is_raised_only_where_needed(
    limits: tuple[int, int], needed: int, then: tuple[int, int] | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    set_to: list[tuple[int, int]] = []
    monkeypatch.setattr(resource, "getrlimit", lambda which: limits)
    monkeypatch.setattr(resource, "setrlimit", lambda which, limit: set_to.append(limit))

    make_room([Need("engine.0", "node0", 3, needed), Need("engine.1", "node0", 3, 7)])

    assert set_to == ([] if then is None else [then])


@pytest.mark.parametrize("detach", [(), ("--detach",)])
def test_up_refuses_a_plan_that_this_machine_has_no_descriptors_for(detach: tuple[str, ...], tmp_path: Path) -> None:
    limited = "import resource, sys; from dpactors.cli import main; resource.setrlimit(resource.RLIMIT_NOFILE, (256, 512)); main()"
    run_dir = tmp_path / "run"
    command = [sys.executable, "-c", limited, "up", FILE, "--run-dir", str(run_dir), *detach]
    found = subprocess.run(command, capture_output=True, text=True, check=False, cwd=REPOSITORY)

    assert found.returncode == 2
    assert found.stderr == (
        f"{FILE}: frontend.0 needs up to 1113 file descriptors, 4 links among them, and the limit is 512. "
        "Raise it where this is started from: ulimit -n 1113\n"
    )
    assert not run_dir.exists()
