"""What every network must hold: ZeroMQ over ipc, tcp and tcp with keys, memory, and air that loses, doubles and reorders frames."""

import asyncio
from typing import Any

import attrs
import pytest

from dpactors.net import frames
from dpactors.net.link import LinkState
from dpactors.net.notices import BadFrame, Delivered, Heard, LinkDown, LinkNotice, LinkUp, Refused, Silent, Undelivered
from tests.live.networks import FAST, Network, Number, everywhere
from tests.live.owner import accounted

BROAD = attrs.evolve(FAST, window_messages=512, outbox_messages=1 << 16, ack_messages=64)
KEPT = FAST.window_messages + FAST.outbox_messages
"""The most that an end keeps for a peer that acknowledges nothing."""


# ------------------------------------------------------------- order, once each


@everywhere
async def test_messages_arrive_once_and_in_order(network: Network) -> None:
    count = 5000
    a, b = (network.owner(name, limits=BROAD) for name in "ab")
    a.say("b", *range(count // 2))  # before they ever met
    network.join(a, b)
    b.say("a", *range(count))
    for start in range(count // 2, count, 100):
        a.say("b", *range(start, start + 100))
        await asyncio.sleep(0)
    await a.until(lambda: len(a.numbers()) == count)
    await b.until(lambda: len(b.numbers()) == count)

    assert a.numbers() == b.numbers() == list(range(count))
    # On a busy machine an end may hear nothing for longer than its lease; no message minds.
    assert {type(one) for one in (*a.seen, *b.seen)} - {Silent, Heard} == {LinkUp, Delivered}


@everywhere
async def test_routes_and_traces_travel_and_pairs_do_not_mix(network: Network) -> None:
    a, b, c = network.joined(*"abc")
    a.say("b", 1, route=3)
    a.say("c", 2)
    b.say("c", 3)
    c.say("a", 4)
    await a.until_got(4)
    await b.until_got(1)
    await c.until_got(2, 3)

    assert Delivered("a", 3, "t1", Number(1, b"")) in b.seen
    assert {(one["peer"], one["state"]) for one in a.links.status()} == {("b", "up"), ("c", "up")}


@everywhere
async def test_a_connection_that_breaks_loses_and_doubles_nothing(network: Network) -> None:
    a, b = network.joined("a", "b")
    await b.until_seen(LinkUp)
    for turn in range(5):
        b.say("a", *range(turn * 20, turn * 20 + 20), weight=10_000)
        a.say("b", *range(turn * 20, turn * 20 + 20), weight=10_000)
        network.disturb(a, b)
        await asyncio.sleep(0)
    await a.until(lambda: len(a.numbers()) == 100)
    await b.until(lambda: len(b.numbers()) == 100)

    assert a.numbers() == b.numbers() == list(range(100))
    assert not [one for one in (*a.seen, *b.seen) if type(one) in (LinkDown, Undelivered)]


@everywhere
async def test_an_owner_that_fails_on_one_notice_gets_the_next(network: Network) -> None:
    failures: list[dict[str, Any]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: failures.append(context))
    a, b = network.owner("a"), network.owner("b")
    hear = b.hear

    def fails_on_five(notice: LinkNotice) -> None:
        hear(notice)
        if type(notice) is Delivered and notice.message.number == 5:
            raise RuntimeError("five")

    b.links._on_event = fails_on_five
    network.join(a, b)
    a.say("b", *range(10))
    await b.until_got(9)

    assert b.numbers() == list(range(10))
    assert [str(one["exception"]) for one in failures] == ["five"]


# ------------------------------------------------------------- loss is reported, bounds hold


@everywhere
async def test_what_a_killed_peer_did_not_acknowledge_comes_back(network: Network) -> None:
    near = network.owner("near")
    far = await network.far(near)
    near.say("far", *range(40))
    await near.until(lambda: len(near.numbers()) >= 20)
    near.say("far", *range(40, 60))
    await far.kill()
    near.say("far", *range(60, 130))
    near.links.drop("far", "killed by signal 9", 1)
    near.say("far", 130)

    accounted(list(range(131)), near.back(), far.got())
    assert near.back()[130] is False
    assert near.links.machine("far").counters.undelivered == len(near.back())
    assert [one.incarnation for one in near.of(LinkDown)] == [1]


@everywhere
async def test_a_peer_that_dies_within_a_frame_has_acknowledged_nothing_of_the_rest(network: Network) -> None:
    a, b = network.owner("a"), network.owner("b")
    took: list[int] = []
    died = asyncio.get_running_loop().create_future()

    def dies_on_35(notice: LinkNotice) -> None:
        if type(notice) is not Delivered or died.done():
            return
        took.append(notice.message.number)
        b.say("a", notice.message.number)
        if notice.message.number == 35:
            b.crash()
            died.set_result(None)

    b.links._on_event = dies_on_35
    a.say("b", *range(40))
    network.join(a, b)
    await died
    await a.until_seen(Silent)
    a.links.drop("b", "killed by signal 9", 1)

    assert took == list(range(36))
    accounted(list(range(40)), a.back(), took)


@everywhere
async def test_a_peer_that_never_comes_costs_a_full_outbox_and_no_message(network: Network) -> None:
    a = network.owner("a")
    a.say("nobody", *range(1000))

    assert a.numbers(Undelivered) == list(range(FAST.outbox_messages, 1000))
    assert a.links.machine("nobody").backlog == FAST.outbox_messages
    assert all("outbox is full" in one.reason for one in a.of(Undelivered))
    a.links.drop("nobody", "given up")
    assert a.back() == dict.fromkeys(range(1000), False)


@everywhere
async def test_a_slow_reader_loses_nothing_and_what_waits_for_it_is_bounded(network: Network) -> None:
    near = network.owner("near")
    far = await network.far(near)
    near.say("far", 0)
    await near.until_got(0)
    await far.hang()
    near.say("far", *range(1, 2001))
    await near.until_seen(Silent)
    machine = near.links.machine("far")
    assert machine.unacknowledged <= FAST.window_messages
    assert machine.backlog <= FAST.outbox_messages

    back = near.back()
    kept = [number for number in range(1, 2001) if number not in back]
    assert FAST.outbox_messages <= len(kept) <= KEPT
    far.wake()
    await near.until_got(*kept)
    assert near.numbers() == far.got() == [0, *kept]
    assert set(back.values()) == {False}


@everywhere
async def test_a_stopped_peer_is_silent_then_heard_and_nothing_is_lost_or_doubled(network: Network) -> None:
    near = network.owner("near")
    far = await network.far(near)
    near.say("far", 0)
    await near.until_got(0)
    far.stop()
    await near.until_seen(Silent)
    near.say("far", *range(1, 1001))
    back = near.back()
    kept = [number for number in range(1, 1001) if number not in back]
    assert len(kept) <= KEPT
    far.go_on()
    await near.until_seen(Heard)
    await near.until_got(*kept)

    assert near.numbers() == far.got() == [0, *kept]
    assert [type(one) for one in near.seen if type(one) in (Silent, Heard, LinkDown)][:2] == [Silent, Heard]
    assert near.of(LinkDown) == []


# ------------------------------------------------------------- incarnations


@everywhere
async def test_a_restarted_connector_gets_nothing_of_its_predecessor(network: Network) -> None:
    a, b = network.joined("a", "b")
    await a.until_seen(LinkUp)
    b.crash()
    a.say("b", *range(100))
    again = network.owner("b", incarnation=2)
    network.join(a, again)
    again.say("a", 7)
    await a.until_got(7)
    a.say("b", 1000)
    await again.until_got(1000)

    assert again.numbers() == [1000]
    accounted(list(range(100)), a.back(), b.numbers())
    assert [one for one in a.of(Undelivered) if "restarted as incarnation 2" not in one.reason] == []
    assert [type(one) for one in a.seen if type(one) in (LinkUp, LinkDown)] == [LinkUp, LinkDown, LinkUp]


@everywhere
async def test_a_restarted_binder_gets_nothing_of_its_predecessor(network: Network) -> None:
    a, b = network.joined("a", "b")
    await b.until_seen(LinkUp)
    a.crash()
    b.say("a", *range(100))
    b.links.drop("a", "exit code -9", 1)
    accounted(list(range(100)), b.back(), a.numbers())
    again = network.owner("a", incarnation=2)
    network.join(again, b)
    b.say("a", 1000)
    await again.until_got(1000)
    assert again.numbers() == [1000]

    b.links.drop("a", "late word of the first", 1)
    again.say("b", 1)
    await b.until_got(1)
    assert len(b.of(LinkDown)) == 1


@everywhere
async def test_of_two_processes_with_one_name_the_later_is_served_and_the_stale_one_told(network: Network) -> None:
    a, b = network.joined("a", "b")
    await b.until_seen(LinkUp)
    await a.until_seen(LinkUp)
    twin = network.owner("b", incarnation=2)
    network.join(a, twin)
    await twin.until_seen(LinkUp)
    b.say("a", 1)
    twin.say("a", 2)
    await b.until_seen(Refused)
    a.say("b", *range(10, 50))
    await twin.until_got(*range(10, 50))
    await a.until_got(2)

    assert a.numbers() == [2]
    assert twin.numbers() == list(range(10, 50))
    assert b.numbers() == []
    assert b.numbers(Undelivered) == [1]
    assert b.of(Refused)[0].reason == "a serves incarnation 2 or later of b, this is 1"
    assert b.links.machine("a").state is LinkState.FENCED


# ------------------------------------------------------------- who does not fit


@everywhere
async def test_another_settings_digest_is_refused_at_both_ends(network: Network) -> None:
    a, b = network.owner("a"), network.owner("b", digest="e")
    network.join(a, b)
    a.say("b", 1)
    await a.until_seen(Refused)
    await b.until_seen(Refused)
    a.links.drop("b", "refused")

    assert "topology d here, e at b" in a.of(Refused)[0].reason
    assert "topology e here, d at a" in b.of(Refused)[0].reason
    assert {type(one) for one in b.seen} == {Refused}
    assert a.back() == {1: False}


@everywhere
async def test_another_link_version_is_refused_and_both_are_named(network: Network) -> None:
    write = frames.write_greeting
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(
            frames,
            "write_greeting",
            lambda one: write(attrs.evolve(one, version=frames.LINK_VERSION + 1) if one.name == "b" else one),
        )
        a, b = network.owner("a"), network.owner("b")
        network.join(a, b)
        b.say("a", 1)
        a.say("b", 2)
        await a.until_seen(Refused)
        a.links.drop("b", "refused")

    assert [one.reason for one in a.of(Refused)] == ["link protocol 1 here, 2 at b"]
    assert a.back() == {2: False}
    assert a.numbers() == b.numbers() == []


@everywhere
async def test_bytes_that_are_no_frame_are_reported_and_the_link_goes_on(network: Network) -> None:
    network.calm()
    a, b = network.joined("a", "b")
    await a.until_seen(LinkUp)
    line = a.links._links["b"].line
    assert line is not None
    assert line.write(b"\xff" * 40)
    a.say("b", 1)
    await b.until_seen(BadFrame)
    await b.until_got(1)

    assert b.links.machine("a").counters.malformed == 1


# ------------------------------------------------------------- taking leave


@everywhere
async def test_closing_waits_for_what_was_sent_and_takes_leave(network: Network) -> None:
    a, b = (network.owner(name, limits=BROAD) for name in "ab")
    network.join(a, b)
    await a.until_seen(LinkUp)
    await b.until_seen(LinkUp)
    network.calm()  # a leave that is lost ends as silence, which its own case has
    a.say("b", *range(3000), weight=50)
    await a.links.close(network.patience_s)
    await b.until_seen(LinkDown)

    assert b.numbers() == list(range(3000))
    assert a.of(Undelivered) == []
    assert [one.reason for one in b.of(LinkDown)] == ["it took its leave"]
    b.say("a", 1)
    await b.links.close()
    b.say("a", 2)
    b.say("nobody", 3)
    assert b.back() == {1: False, 2: False, 3: False}


# ------------------------------------------------------------- latest


@everywhere
async def test_of_latest_values_the_newest_wins_and_the_last_arrives(network: Network) -> None:
    a, b = network.joined("a", "b")
    await a.until_seen(LinkUp)
    for start in range(0, 1000, 50):
        a.say("b", *range(start, start + 50), latest=True)
        await asyncio.sleep(0)
    await b.until_got(999)

    assert b.numbers() == sorted(set(b.numbers()))
    assert a.links.machine("b").counters.coalesced >= 900
    assert a.of(Undelivered) == []


@everywhere
async def test_the_last_value_of_each_route_survives_a_connection_that_breaks(network: Network) -> None:
    a, b = network.joined("a", "b")
    await a.until_seen(LinkUp)
    for route in range(8):
        a.say("b", route, latest=True, route=route)
        await asyncio.sleep(0)
        network.disturb(a, b)
    await b.until_got(*range(8))

    assert sorted(b.numbers()) == list(range(8))


@everywhere
async def test_a_stopped_reader_finds_the_newest_value_and_no_pile(network: Network) -> None:
    near = network.owner("near")
    far = await network.far(near)
    near.say("far", 0)
    await near.until_got(0)
    far.stop()
    for number in range(1, 1000):
        near.say("far", number, latest=True)
        await asyncio.sleep(0)
    await near.until_seen(Silent)
    far.go_on()
    await near.until_got(999)

    assert len(far.got()) <= FAST.latest_frames + 4
