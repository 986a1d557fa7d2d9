import json

import pytest

from dpactors.runtime.boot import Boot, load_catalogue, planned, process_of, read_boot
from dpactors.serving.catalogue import CATALOGUE
from dpactors.topology.document import Document, read_topology


def boot() -> Boot:
    document = read_topology("topologies/hybrid_2node.toml", ("roles.engine.place.node0=1",), {"NODE1": "127.0.0.9"})
    return Boot(
        document.to_dict(), "engine.1", 7, "/run", "/tmp/x", "ipc:///tmp/x/s", 6, 1234, {"a:1": 5}, True, "info"
    )


def test_a_boot_record_comes_through_as_it_was() -> None:
    assert read_boot(boot().to_json()) == boot()


def test_a_child_plans_what_its_supervisor_planned() -> None:
    """Overrides and environment are in the document: the child's own do not matter."""
    document = Document.from_dict(read_boot(boot().to_json()).document)
    plan = planned(document, CATALOGUE)

    assert plan.hosts["node1"] == "127.0.0.9"
    assert process_of(plan, "engine.1").host == "node1"
    assert plan == planned(Document.from_dict(boot().document), CATALOGUE)


def test_a_process_of_another_topology_is_refused() -> None:
    plan = planned(Document.from_dict(boot().document), CATALOGUE)
    with pytest.raises(ValueError, match=r"hybrid_2node has no process engine\.9"):
        process_of(plan, "engine.9")


@pytest.mark.parametrize("data", [b"", b"[]", b"{", b"\xff", b"null"])
def test_what_is_no_record_is_refused(data: bytes) -> None:
    with pytest.raises(ValueError, match="no boot record"):
        read_boot(data)


def test_a_record_of_another_version_names_what_differs() -> None:
    tree = json.loads(boot().to_json())
    del tree["trace"]
    with pytest.raises(ValueError, match=r"another version: colour, trace$"):
        read_boot(json.dumps({**tree, "colour": 1}).encode())


def test_a_catalogue_is_named_by_module_and_name() -> None:
    assert load_catalogue("dpactors.serving.catalogue:CATALOGUE") == CATALOGUE


@pytest.mark.parametrize("name", ["dpactors", "no.such:THING", "dpactors.serving.catalogue:NOTHING", "sys:version"])
def test_what_is_no_catalogue_is_refused(name: str) -> None:
    with pytest.raises(ValueError, match=name.partition(":")[0]):
        load_catalogue(name)
