"""Cases in which plain ZeroMQ patterns lose messages without a word: here each is impossible or reported."""

import asyncio

from dpactors.net.notices import Delivered, LinkNotice, LinkUp, Silent
from tests.live.networks import FAST, Network, everywhere, over, zmq_of
from tests.live.owner import accounted

KEPT = FAST.window_messages + FAST.outbox_messages


@everywhere
async def test_a_flood_beyond_every_bound_comes_back_message_by_message(network: Network) -> None:
    """A PUB over its high-water mark drops; a ROUTER drops for a full peer."""
    near = network.owner("near")
    far = await network.far(near)
    count = 10_000
    near.say("far", *range(count))
    back = near.back()
    kept = [number for number in range(count) if number not in back]
    await near.until(lambda: len(near.numbers()) == len(kept))

    assert len(kept) <= KEPT
    assert near.numbers() == far.got() == kept
    accounted(list(range(count)), near.back(), far.got())


@everywhere
async def test_what_is_said_to_nobody_comes_back(network: Network) -> None:
    """A ROUTER drops for an identity that it does not know."""
    a, _ = network.joined("a", "b")
    await a.until_seen(LinkUp)
    a.say("nobody", 1, 2)
    await a.links.close()
    a.say("nobody", 3)

    assert a.back() == {1: False, 2: False, 3: False}


@everywhere
async def test_what_a_stopped_and_then_killed_peer_was_sent_comes_back(network: Network) -> None:
    """A ROUTER, even with MANDATORY, accepts what is sent to a stopped peer, and all of it vanishes with it."""
    near = network.owner("near")
    far = await network.far(near)
    near.say("far", 0)
    await near.until_got(0)
    far.stop()
    near.say("far", *range(1, 501))
    await near.until_seen(Silent)
    await far.kill()
    near.links.drop("far", "killed by signal 9", 1)

    back = near.back()
    assert sorted(back) == list(range(1, 501))
    assert [number for number in back if back[number]] == list(range(1, FAST.window_messages + 1))
    assert far.got() == [0]


@everywhere
async def test_a_stream_over_a_kill_and_a_restart_is_accounted_for(network: Network) -> None:
    """A PUSH loses what its killed PULL had in its queues."""
    near = network.owner("near")
    first = await network.far(near)
    for start in range(0, 500, 50):
        near.say("far", *range(start, start + 50))
        await near.until_got(start)
    near.say("far", *range(500, 550))
    await first.kill()
    near.links.drop("far", "killed by signal 9", 1)
    second = await network.far(near, incarnation=2)
    await near.until_seen(LinkUp, 2)
    near.say("far", *range(600, 650))
    await near.until_got(*range(600, 650))

    accounted([*range(550), *range(600, 650)], near.back(), first.got(), second.got())
    assert second.got() == list(range(600, 650))


@everywhere
async def test_a_hung_peer_holds_nothing_that_is_meant_for_another(network: Network) -> None:
    """A PUSH to two peers leaves half of its messages with the one that hangs."""
    near, other = network.joined("near", "other")
    far = await network.far(near)
    near.say("far", 0)
    await near.until_got(0)
    await far.hang()
    for number in range(1, 101):
        near.say("far" if number % 2 else "other", number)
    await other.until_got(*range(2, 101, 2))
    assert other.numbers() == list(range(2, 101, 2))
    near.links.drop("far", "hung")

    assert sorted(near.back()) == list(range(1, 101, 2))


@everywhere
async def test_what_waits_for_a_killed_binder_never_reaches_its_next_incarnation(network: Network) -> None:
    """A DEALER hands what it queued for a dead server to the restarted one."""
    a, b = network.joined("a", "b")
    await b.until_seen(LinkUp)
    a.crash()
    b.say("a", *range(5))
    again = network.owner("a", incarnation=2)
    network.join(again, b)
    await again.until_seen(LinkUp)
    b.say("a", 10)
    await again.until_got(10)

    assert again.numbers() == [10]
    assert sorted(b.back()) == list(range(5))


@everywhere
async def test_answers_find_a_peer_whose_connection_broke(network: Network) -> None:
    """A ROUTER drops the answer to a client that came back without its identity."""
    a, b = network.joined("a", "b")
    b.echo_to = "a"
    await a.until_seen(LinkUp)
    for number in range(4):
        a.say("b", number)
        network.disturb(a, b)
        await a.until_got(number)

    assert a.numbers() == b.numbers() == list(range(4))


@everywhere
async def test_closing_without_time_hands_back_what_did_not_leave(network: Network) -> None:
    """A socket closed without linger forgets what it had not sent."""
    near = network.owner("near")
    far = await network.far(near)
    near.say("far", 0)
    await near.until_got(0)
    await far.hang()
    near.say("far", *range(1, 101))
    await near.links.close(0.0)

    back = near.back()
    assert sorted(back) == list(range(1, 101))
    ran = [number for number in back if back[number]]
    assert ran == list(range(1, len(ran) + 1))
    assert 0 < len(ran) <= FAST.window_messages


@everywhere
async def test_waits_that_are_given_up_lose_nothing(network: Network) -> None:
    """A receive that is cancelled may take a message with it."""
    a, b = network.joined("a", "b")
    await a.until_seen(LinkUp)
    queue: asyncio.Queue[int] = asyncio.Queue()
    hear = b.hear

    def heard(notice: LinkNotice) -> None:
        hear(notice)
        if type(notice) is Delivered:
            queue.put_nowait(notice.message.number)

    b.links._on_event = heard
    read: list[int] = []
    said = given_up = 0
    while len(read) < 1000:
        wait = asyncio.ensure_future(queue.get())
        await asyncio.wait([wait], timeout=0.001)
        if wait.done():
            read.append(wait.result())
        elif wait.cancel():
            given_up += 1
            if said < 1000 and said == len(read):
                a.say("b", *range(said, said + 50))
                said += 50

    assert read == b.numbers() == list(range(1000))
    assert given_up >= 20


@over("ipc", "tcp")
async def test_a_message_is_read_although_a_send_swallowed_its_edge(network: Network) -> None:
    """After a send the descriptor of a ZeroMQ socket is silent although a message waits."""
    near = network.owner("near")
    await network.far(near)
    near.say("far", 0)
    await near.until_got(0)
    near.links._timer.cancel()  # type: ignore[union-attr] - nothing but the edge may find the message
    dealer = zmq_of(near)._bound["far"]

    def say(number: int) -> None:
        near.links.hold()
        near.say("far", number)
        near.links.release()  # at once, with no turn of the loop

    for number in range(1, 301):
        say(2 * number)
        assert dealer.socket.poll(60_000)  # something waits, and the loop has not looked yet: this took its edge
        say(2 * number + 1)
        await near.until_got(2 * number, 2 * number + 1)

    assert near.numbers() == [0, *range(2, 602)]
