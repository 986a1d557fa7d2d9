"""What only sockets have: files, addresses, descriptors. What every network must hold is in test_networks.py."""

import os
from pathlib import Path

import pytest

from dpactors.net.errors import EndpointError
from dpactors.net.limits import LinkLimits
from dpactors.net.notices import LinkUp
from dpactors.topology.descriptors import CONTEXT, LINK
from tests.live.networks import Network, over, zmq_of


def files(folder: Path) -> list[str]:
    return [one.name for one in folder.iterdir()]


@over("ipc")
async def test_a_connector_may_come_first(network: Network) -> None:
    b = network.owner("b")
    zmq_of(b).connect("a", f"ipc://{network.folder}/a+b.1", 1)
    b.say("a", 1)
    a = network.owner("a")
    a.say("b", 2)
    assert zmq_of(a).bind("b", "ipc", "127.0.0.1") == f"ipc://{network.folder}/a+b.1"
    await a.until_got(1)
    await b.until_got(2)


@over("ipc")
async def test_sockets_leave_no_file(network: Network) -> None:
    a, b = network.joined("a", "b")
    await a.until_seen(LinkUp)
    assert files(network.folder) == ["a+b.1"]
    await a.links.close()
    assert files(network.folder) == []
    await b.links.close()


@over("ipc", "tcp")
async def test_closed_links_leave_no_descriptor(network: Network) -> None:
    before = len(os.listdir("/proc/self/fd"))
    a, b = network.joined("a", "b")
    await a.until_seen(LinkUp)
    assert len(os.listdir("/proc/self/fd")) > before
    await a.links.close()
    await b.links.close()

    assert len(os.listdir("/proc/self/fd")) == before


@over("ipc", "tcp")
async def test_links_hold_no_more_descriptors_than_are_planned_for_them(network: Network) -> None:
    before = len(os.listdir("/proc/self/fd"))
    hub = network.owner("hub")
    for incarnation in (1, 2):  # the second comes while the first is still there
        for number in range(20):
            network.join(hub, network.owner(f"p{number}", incarnation))
        await hub.until_seen(LinkUp, 20 * incarnation)
    others = 40 * (CONTEXT + LINK)

    assert len(os.listdir("/proc/self/fd")) - before <= CONTEXT + 20 * LINK + others
    assert hub.links._links.keys() == {f"p{number}" for number in range(20)}


@over("ipc")
async def test_an_endpoint_that_cannot_be_is_refused(network: Network) -> None:
    a = network.owner("a")
    with pytest.raises(EndpointError, match="at most 107"):
        zmq_of(a).bind("b" * 100, "ipc", "")
    with pytest.raises(EndpointError, match=r"cannot listen for b on 203\.0\.113\.7"):
        zmq_of(a).bind("b", "tcp", "203.0.113.7")
    with pytest.raises(EndpointError, match="cannot reach b at nowhere"):
        zmq_of(a).connect("b", "nowhere", 1)
    zmq_of(a).bind("c", "ipc", "")
    twin = network.owner("a")
    with pytest.raises(EndpointError, match="runs twice"):
        zmq_of(twin).bind("c", "ipc", "")


@over("ipc")
async def test_every_frame_passes_the_trace(network: Network) -> None:
    traced: list[tuple[str, bool, bytes]] = []
    a = network.owner("a", on_frame=lambda *one: traced.append(one))
    b = network.owner("b")
    network.join(a, b)
    a.say("b", *range(10))
    b.say("a", 1)
    await a.until_got(1)
    await b.until_got(9)
    counters = a.links.machine("b").counters

    assert sum(sent for _, sent, _ in traced) == counters.frames_sent
    assert sum(not sent for _, sent, _ in traced) == counters.frames_received


def test_defaults_are_those_of_the_reference() -> None:
    limits = LinkLimits()
    assert (limits.window_messages, limits.window_bytes, limits.outbox_messages) == (4096, 64 << 20, 65_536)
    assert (limits.heartbeat_s, limits.lease_s) == (0.5, 3.0)
