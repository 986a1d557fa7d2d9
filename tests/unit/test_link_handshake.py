"""One end of a link: how two incarnations meet, what a dead one leaves behind, who is fenced."""

import cbor2
import pytest

from dpactors.net import frames
from dpactors.net.link import LinkMachine, LinkState
from dpactors.net.notices import Delivered, LinkDown, LinkUp, Refused, Undelivered
from tests.unit.link_pair import Count, meet, numbers, pair, put, talk, undelivered, up

# ------------------------------------------------------------- handshake


def test_both_ends_learn_the_others_incarnation() -> None:
    a, b = LinkMachine("a", "b", 4, "d"), LinkMachine("b", "a", 9, "d")

    notices = meet(a, b)

    assert sorted(notices, key=lambda one: one.peer) == [LinkUp("a", 4), LinkUp("b", 9)]


def test_one_greeting_that_arrives_is_enough() -> None:
    a, b = pair()
    a.join(0.0)

    assert {type(one) for one in talk(a, b)} == {LinkUp}
    assert a.state is b.state is LinkState.UP


def test_messages_wait_for_the_handshake_and_then_go_in_order() -> None:
    a, b = pair()
    put(a, 1, 2, 3)
    assert a.frames_to_send(0.0) == []

    notices = meet(a, b)

    assert numbers(notices) == [1, 2, 3]
    assert notices.index(LinkUp("a", 1)) < notices.index(Delivered("a", 0, "t1", Count(1)))


def test_a_lost_greeting_is_repeated() -> None:
    a, b = pair()
    a.join(0.0)
    a.frames_to_send(0.0)  # lost

    assert a.tick(0.4) == []
    assert a.frames_to_send(0.4) == []
    a.tick(0.5)
    assert {type(one) for one in talk(a, b, 0.5)} == {LinkUp}


def test_a_message_stands_for_a_lost_welcome() -> None:
    a, b = pair()
    a.join(0.0)
    b.join(0.0)
    (hello,) = b.frames_to_send(0.0)
    a.receive(hello, 0.0)
    hello, _lost = a.frames_to_send(0.0)
    b.receive(hello, 0.0)
    (welcome,) = b.frames_to_send(0.0)
    assert a.receive(welcome, 0.0) == [LinkUp("b", 1)]
    put(a, 7)
    _lost, *data = a.frames_to_send(0.0)

    notices = [one for frame in data for one in b.receive(frame, 0.0)]

    assert notices == [LinkUp("a", 1), Delivered("a", 0, "t7", Count(7))]


def test_a_welcome_to_an_earlier_incarnation_is_not_for_this_one() -> None:
    a, b = pair()
    a.join(0.0)
    for frame in a.frames_to_send(0.0):
        b.receive(frame, 0.0)
    again = LinkMachine("a", "b", 2, "d")

    assert [one for frame in b.frames_to_send(0.0) for one in again.receive(frame, 0.0)] == []
    assert again.state is LinkState.JOINING
    assert again.counters.fenced == 1


def test_a_refusal_is_said_once() -> None:
    a, b = pair(digest="e")
    meet(a, b)
    for second in range(1, 9):
        a.tick(second)
        b.tick(second)
        assert talk(a, b, second) == []


def test_another_link_protocol_is_refused_and_both_versions_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    a, b = pair()
    a.join(0.0)
    (hello,) = a.frames_to_send(0.0)
    item = cbor2.loads(hello)
    later = cbor2.dumps([frames.HELLO, 2, "a", "everything after the version may differ"])

    assert b.receive(later, 0.0) == [Refused("a", "link protocol 1 here, 2 at a")]
    assert item[1] == frames.LINK_VERSION
    assert b.frames_to_send(0.0) == []


def test_a_greeting_under_another_name_is_refused() -> None:
    a, _ = pair()
    stranger = LinkMachine("c", "a", 1, "d")
    stranger.join(0.0)
    (hello,) = stranger.frames_to_send(0.0)

    assert a.receive(hello, 0.0) == [Refused("b", "b was expected, c greets")]


# ------------------------------------------------------------- incarnations


def test_what_a_dead_incarnation_was_sent_never_reaches_the_next() -> None:
    a, _ = up()
    put(a, 1)
    lost = a.frames_to_send(0.0)
    put(a, 2)
    again = LinkMachine("b", "a", 2, "d")
    again.join(1.0)

    notices = [one for frame in again.frames_to_send(1.0) for one in a.receive(frame, 1.0)]
    talk(again, a, 1.0)
    put(a, 3)

    assert notices == [
        LinkDown("b", 1, "restarted as incarnation 2"),
        Undelivered("b", 0, "t1", Count(1), True, "restarted as incarnation 2"),
        Undelivered("b", 0, "t2", Count(2), False, "restarted as incarnation 2"),
    ]
    assert [one for frame in lost for one in again.receive(frame, 1.0)] == []
    assert again.counters.fenced == 1
    assert numbers(talk(a, again, 1.0)) == [3]


def test_a_lost_peer_gives_everything_back_and_later_messages_at_once() -> None:
    a, b = up()
    put(a, 1)
    a.frames_to_send(0.0)
    put(a, 2)

    notices = a.lost("exit code -9")

    assert notices[0] == LinkDown("b", 1, "exit code -9")
    assert undelivered(notices) == [(1, True), (2, False)]
    assert undelivered(put(a, 3)) == [(3, False)]
    assert a.lost("again") == []
    assert b.state is LinkState.UP


def test_late_word_of_a_dead_incarnation_spares_the_next() -> None:
    a, _ = up()
    again = LinkMachine("b", "a", 2, "d")
    again.join(1.0)
    talk(again, a, 1.0)

    assert a.lost("exit code -9", 1) == []
    assert a.state is LinkState.UP
    assert type(a.lost("exit code -9", 2)[0]) is LinkDown


def test_a_peer_given_up_by_mistake_is_told_and_falls_silent() -> None:
    a, b = up()
    a.lost("silent for 3 s")
    put(b, 1)

    notices = talk(b, a)

    assert undelivered(notices) == [(1, True)]
    assert notices[-1] == Refused("a", "a serves incarnation 2 or later of b, this is 1")
    assert b.state is LinkState.FENCED
    b.join(1.0)
    assert b.frames_to_send(9.0) == []
    assert undelivered(put(b, 2)) == [(2, False)]


def test_two_processes_of_one_name_the_later_one_is_served() -> None:
    a, b = up()
    twin = LinkMachine("b", "a", 2, "d")
    twin.join(0.0)
    talk(twin, a)

    put(b, 1)
    refused = [one for frame in b.frames_to_send(0.0) for one in a.receive(frame, 0.0)]
    told = [one for frame in a.frames_to_send(0.0) for one in b.receive(frame, 0.0)]

    assert refused == []
    assert a.counters.fenced == 1
    assert [type(one) for one in told] == [LinkDown, Undelivered, Refused]


def test_an_earlier_incarnation_that_greets_late_is_refused() -> None:
    a = LinkMachine("a", "b", 1, "d")
    a.join(0.0, peer_incarnation=5)
    stale = LinkMachine("b", "a", 4, "d")
    stale.join(0.0)

    notices = talk(stale, a)

    assert Refused("b", "incarnation 4 is stale, 5 or later is served") in notices
    assert stale.state is LinkState.FENCED


def test_leaving_is_told() -> None:
    a, b = up()
    put(a, 1)
    put(b, 2)
    b.frames_to_send(0.0)  # lost

    assert undelivered(a.leave()) == [(1, False)]
    notices = talk(a, b)

    assert notices == [
        LinkDown("a", 1, "it took its leave"),
        Undelivered("a", 0, "t2", Count(2), True, "it took its leave"),
    ]
    assert undelivered(put(a, 3)) == [(3, False)]
    assert a.settled
