"""One end of a link: transcripts of its handshake, order, fencing and credit, and every kind of weather at random."""

from collections.abc import Callable
from typing import Any

import attrs
import cbor2
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from dpactors.message.codec import encode
from dpactors.message.errors import FrameTooLarge, MessageError
from dpactors.message.message import message
from dpactors.net import frames
from dpactors.net.limits import LinkLimits
from dpactors.net.link import LinkMachine, LinkState
from dpactors.net.notices import BadFrame, Delivered, Heard, LinkDown, LinkUp, Refused, Silent, Undelivered


@message("test.link.count/1")
class Count:
    """One numbered message."""

    number: int


@message("test.link.blob/1")
class Blob:
    data: bytes


def pair(digest: str = "d", **limits: int) -> tuple[LinkMachine, LinkMachine]:
    made = LinkLimits(**limits)
    return LinkMachine("a", "b", 1, "d", made), LinkMachine("b", "a", 1, digest, made)


def talk(one: LinkMachine, other: LinkMachine, now_s: float = 0.0) -> list[Any]:
    """Carry frames both ways until both are quiet; the notices of both, in order."""
    notices: list[Any] = []
    while True:
        out, back = one.frames_to_send(now_s), other.frames_to_send(now_s)
        if not out and not back:
            return notices
        for frame in out:
            notices += other.receive(frame, now_s)
        for frame in back:
            notices += one.receive(frame, now_s)


def meet(one: LinkMachine, other: LinkMachine, now_s: float = 0.0) -> list[Any]:
    return [*one.join(now_s), *other.join(now_s), *talk(one, other, now_s)]


def up(**limits: int) -> tuple[LinkMachine, LinkMachine]:
    one, other = pair(**limits)
    meet(one, other)
    assert one.state is other.state is LinkState.UP
    return one, other


def put(machine: LinkMachine, *numbers: int, latest: bool = False, route: int = 0) -> list[Any]:
    return [one for n in numbers for one in machine.send(route, f"t{n}", Count(n), latest=latest)]


def numbers(notices: list[Any]) -> list[int]:
    return [one.message.number for one in notices if type(one) is Delivered]


def undelivered(notices: list[Any]) -> list[tuple[int, bool]]:
    return [(one.message.number, one.may_have_run) for one in notices if type(one) is Undelivered]


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


def test_another_digest_is_refused_and_both_values_are_named() -> None:
    a, b = pair(digest="e")
    put(a, 1)

    notices = meet(a, b)

    assert {type(one) for one in notices} == {Refused}
    assert "topology d here, e at b" in next(one.reason for one in notices if one.peer == "b")
    assert LinkState.UP not in (a.state, b.state)


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


# ------------------------------------------------------------- order, loss, acknowledgement


def test_a_batch_is_one_frame() -> None:
    a, b = up()
    put(a, *range(256))

    (frame,) = a.frames_to_send(0.0)

    assert numbers(b.receive(frame, 0.0)) == list(range(256))
    assert b.receive(frame, 0.0) == []
    assert b.counters.duplicates == 256


def test_a_gap_is_asked_for_and_sent_again() -> None:
    a, b = up()
    put(a, 1)
    a.frames_to_send(0.0)  # lost
    put(a, 2)
    (second,) = a.frames_to_send(0.0)

    assert b.receive(second, 0.0) == []
    assert numbers(talk(b, a)) == [1, 2]
    assert (b.counters.gaps, a.counters.resent) == (1, 2)


def test_an_acknowledgement_that_comes_after_a_request_to_send_again_counts() -> None:
    a, b = up()
    put(a, *range(6))
    for frame in a.frames_to_send(0.0):
        b.receive(frame, 0.0)
    a.receive(frames.write_frame(frames.NACK, 1, 1, 2, 2, 0), 0.0)
    assert (a.unacknowledged, a.backlog) == (0, 4)

    (ack,) = b.frames_to_send(0.1)
    a.receive(ack, 0.1)

    assert a.settled
    put(a, 6)
    assert numbers(talk(a, b, 0.1)) == [6]
    assert b.counters.duplicates == 0


def test_a_doubled_message_is_acknowledged_at_once() -> None:
    a, b = up()
    put(a, 1)
    (frame,) = a.frames_to_send(0.0)
    b.receive(frame, 0.0)
    assert b.frames_to_send(0.0) == []

    b.receive(frame, 0.0)

    assert len(b.frames_to_send(0.0)) == 1


def test_a_lost_last_frame_is_found_by_the_heartbeat() -> None:
    a, b = up()
    put(a, 1)
    a.frames_to_send(0.0)  # lost

    assert a.frames_to_send(0.4) == []
    assert numbers(talk(a, b, 0.5)) == [1]


def test_acknowledgements_ride_go_alone_after_many_and_after_a_while() -> None:
    a, b = up(ack_messages=4)
    put(a, 1, 2, 3)
    for frame in a.frames_to_send(0.0):
        b.receive(frame, 0.0)
    assert b.frames_to_send(0.05) == []
    talk(b, a, 0.1)
    assert a.unacknowledged == 0

    put(a, 4, 5, 6, 7)
    assert numbers(talk(a, b, 0.1)) == [4, 5, 6, 7]
    assert a.unacknowledged == 0

    put(a, 8)
    for frame in a.frames_to_send(0.2):
        b.receive(frame, 0.2)
    put(b, 100)
    assert numbers(talk(b, a, 0.2)) == [100]
    assert a.unacknowledged == 0


def test_an_unreadable_message_comes_back_and_the_link_goes_on() -> None:
    a, b = up()
    put(a, 1)
    a._out.queue[0] = (0, "t", Count(1), frames.envelope(0, "t", cbor2.dumps(["test.link.count/1", "one"])))
    put(a, 2)

    notices = talk(a, b)

    assert numbers(notices) == [2]
    assert undelivered(notices) == [(1, False)]
    assert [type(one) for one in notices if type(one) is BadFrame] == [BadFrame]
    assert "Count.number" in next(one.reason for one in notices if type(one) is Undelivered)
    assert undelivered(a.lost("gone")) == [(2, True)]


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


# ------------------------------------------------------------- bounds


def test_credit_in_messages_holds_the_rest_back() -> None:
    a, b = up(window_messages=8, batch_messages=4, ack_messages=2)
    put(a, *range(20))

    out = a.frames_to_send(0.0)

    assert len(out) == 2
    assert (a.unacknowledged, a.backlog) == (8, 12)
    assert numbers([one for frame in out for one in b.receive(frame, 0.0)]) == list(range(8))
    assert numbers(talk(a, b)) == list(range(8, 20))


def test_credit_in_bytes_holds_the_rest_back_and_one_large_message_still_goes() -> None:
    a, b = up(window_bytes=1000, batch_bytes=600, ack_bytes=300)
    for size in (5000, 400, 400, 400):
        a.send(0, "t", Blob(bytes(size)))

    out = a.frames_to_send(0.0)

    assert len(out) == 1
    assert (a.unacknowledged, a.backlog) == (1, 3)
    arrived = [one for frame in out for one in b.receive(frame, 0.0)] + talk(b, a)
    assert [len(one.message.data) for one in arrived] == [5000, 400, 400, 400]


def test_bytes_that_must_go_again_count_against_the_outbox() -> None:
    a, b = up(outbox_bytes=1000)
    for _ in range(2):
        assert a.send(0, "t", Blob(bytes(400))) == ()
    a.frames_to_send(0.0)
    a.receive(frames.write_frame(frames.NACK, 1, 1, 0, 0, 0), 0.0)

    assert len(a.send(0, "t", Blob(bytes(400)))) == 1
    assert len(talk(a, b)) == 2


def test_a_full_outbox_hands_the_message_back() -> None:
    a, _ = pair(outbox_messages=3)

    notices = put(a, 1, 2, 3, 4, 5)

    assert undelivered(notices) == [(4, False), (5, False)]
    assert "outbox is full" in notices[0].reason
    assert a.backlog == 3


def test_an_outbox_full_of_bytes_hands_the_message_back() -> None:
    a, _ = pair(outbox_bytes=1000)

    notices = [one for _ in range(5) for one in a.send(0, "t", Blob(bytes(400)))]

    assert len(notices) == 3


def test_what_cannot_travel_is_the_senders_fault() -> None:
    a, _ = pair()
    with pytest.raises(MessageError):
        a.send(0, "t", object())
    with pytest.raises(FrameTooLarge):
        frames.envelope(0, "t", bytes(frames.MESSAGE_BYTES_MAX + 1))
    with pytest.raises(ValueError, match="route"):
        a.send(1 << 16, "t", Count(1))
    assert a.backlog == 0


# ------------------------------------------------------------- latest


def test_only_the_newest_unsent_value_of_a_route_goes() -> None:
    a, b = up()
    put(a, 1, 2, 3, latest=True, route=5)
    put(a, 9, latest=True, route=6)

    assert sorted(numbers(talk(a, b))) == [3, 9]
    assert a.counters.coalesced == 2


def test_an_older_value_that_arrives_late_is_dropped() -> None:
    a, b = up()
    put(a, 1, latest=True)
    old = a.frames_to_send(0.0)
    put(a, 2, latest=True)
    new = a.frames_to_send(0.0)

    assert numbers([one for frame in (*new, *old, *new) for one in b.receive(frame, 0.0)]) == [2]


def test_latest_values_never_wait_for_reliable_ones_nor_delay_them() -> None:
    a, b = up(window_messages=2)
    put(a, 1, 2, 3)
    a.frames_to_send(0.0)  # lost, and with it all credit
    put(a, 50, latest=True)

    assert numbers([one for frame in a.frames_to_send(0.0) for one in b.receive(frame, 0.0)]) == [50]


def test_a_stopped_reader_gathers_no_latest_frames() -> None:
    a, _ = up(latest_frames=4)
    sent = 0
    for n in range(100):
        put(a, n, latest=True)
        sent += len(a.frames_to_send(n / 1000))
    assert sent == 4
    assert [cbor2.loads(frame)[0] for frame in a.frames_to_send(1.0)] == [frames.DATA]


def test_lost_values_go_again_to_a_peer_that_speaks_and_are_delivered_once() -> None:
    a, b = up()
    for route in range(3):
        put(a, route, latest=True, route=route)
        first, *_ = a.frames_to_send(0.0)  # of routes 0 and 1 lost
    assert numbers(b.receive(first, 0.0)) == [2]
    assert b._in.latest_received == 0

    assert numbers(talk(b, a, 0.4)) == []
    assert numbers(talk(b, a, 1.0) + talk(a, b, 1.0)) == [0, 1]
    talk(b, a, 2.0)
    assert [cbor2.loads(frame)[0] for frame in a.frames_to_send(3.0)] == [frames.DATA]


def test_a_reading_peer_keeps_latest_frames_flowing() -> None:
    a, b = up(latest_frames=4)
    seen = [n for turn in range(50) for n in (put(a, turn, latest=True), numbers(talk(a, b)))[1]]

    assert seen == list(range(50))


# ------------------------------------------------------------- silence


def test_silence_and_speech_are_told_once() -> None:
    a, b = up()

    assert a.tick(2.9) == []
    assert a.tick(3.0) == [Silent("b", 3.0)]
    assert a.tick(4.0) == []
    (beat,) = b.frames_to_send(4.0)
    assert a.receive(beat, 4.0) == [Heard("b")]
    assert a.tick(5.0) == []


def test_a_heartbeat_goes_only_where_nothing_else_did() -> None:
    a, _ = up()
    assert a.frames_to_send(0.49) == []
    put(a, 1)
    assert len(a.frames_to_send(0.5)) == 1
    assert a.frames_to_send(0.9) == []
    assert len(a.frames_to_send(1.0)) == 1


# ------------------------------------------------------------- hostile bytes

HEAD = st.integers(0, 1 << 64) | st.none() | st.text(max_size=3) | st.binary(max_size=3)
ITEM = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8) | st.binary(max_size=8),
    lambda inner: st.lists(inner, max_size=8) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
    max_leaves=12,
)


def quiet_after(feed: Callable[[LinkMachine], list[Any]]) -> None:
    a, _ = up()
    notices = feed(a)
    assert isinstance(notices, list)
    assert a.backlog == a.unacknowledged == 0
    assert len(a.frames_to_send(0.0)) <= 4


@given(st.binary(max_size=200))
def test_random_bytes_never_raise(data: bytes) -> None:
    quiet_after(lambda a: a.receive(data, 0.0))


@given(ITEM | st.lists(HEAD, min_size=6, max_size=8))
def test_random_items_never_raise(item: Any) -> None:
    quiet_after(lambda a: a.receive(cbor2.dumps(item), 0.0))


@given(st.integers(0, 9), st.integers(0, 3), st.integers(0, 3), st.lists(ITEM, max_size=4), st.integers(0, 5))
def test_frames_of_the_right_pair_with_a_random_body_never_raise(
    kind: int, first: int, ack: int, body: list[Any], latest: int
) -> None:
    quiet_after(lambda a: a.receive(cbor2.dumps([kind, 1, 1, first, ack, latest, body]), 0.0))


@given(st.data())
def test_a_flipped_byte_never_raises(data: st.DataObject) -> None:
    a, b = up()
    put(b, *range(5))
    (frame,) = b.frames_to_send(0.0)
    at = data.draw(st.integers(0, len(frame) - 1))
    bent = frame[:at] + bytes((frame[at] ^ data.draw(st.integers(1, 255)),)) + frame[at + 1 :]

    a.receive(bent, 0.0)


def test_an_acknowledgement_of_what_was_never_sent_is_malformed() -> None:
    a, _ = up()
    for kind in (frames.DATA, frames.NACK):
        (bad,) = a.receive(frames.write_frame(kind, 1, 1, 5, 5, 0), 0.0)
        assert type(bad) is BadFrame
    assert a.counters.malformed == 2


# ------------------------------------------------------------- any weather

SMALL = LinkLimits(
    window_messages=6, outbox_messages=12, batch_messages=3, ack_messages=2, latest_frames=3, window_bytes=400
)


class Weather(RuleBasedStateMachine):
    """Two names, any number of incarnations of each, and a network that loses, doubles and reorders frames."""

    def __init__(self) -> None:
        super().__init__()
        self.now_s = 0.0
        self.number = 0
        self.air: dict[str, list[bytes]] = {"a": [], "b": []}
        self.ends: dict[str, LinkMachine] = {}
        self.sent_by: dict[int, tuple[str, int]] = {}
        self.delivered: dict[int, tuple[str, int]] = {}
        self.returned: dict[int, bool] = {}
        self.last: dict[tuple[str, int, str, int], int] = {}
        self.newest: dict[tuple[str, int, str, int], int] = {}
        self.incarnations = {"a": 0, "b": 0}
        for name in "ab":
            self.start(name)

    def other(self, name: str) -> str:
        return "b" if name == "a" else "a"

    def start(self, name: str) -> None:
        self.incarnations[name] += 1
        self.ends[name] = LinkMachine(name, self.other(name), self.incarnations[name], "d", SMALL)
        self.note(name, self.ends[name].join(self.now_s))
        self.flush(name)

    def flush(self, name: str) -> None:
        self.air[self.other(name)] += self.ends[name].frames_to_send(self.now_s)

    def note(self, name: str, notices: Any) -> None:
        me = self.ends[name]
        for one in notices:
            if type(one) is Delivered and one.route == 1:
                key = (name, me.incarnation, one.peer, me.peer_incarnation or 0)
                assert one.message.number > self.newest.get(key, -1), "an older value after a newer one"
                self.newest[key] = one.message.number
            elif type(one) is Delivered:
                number = one.message.number
                assert number not in self.delivered, "delivered twice"
                assert self.returned.get(number, True), "delivered, though it was said that it cannot have run"
                assert self.sent_by[number] == (one.peer, me.peer_incarnation), "of an incarnation that is not the peer"
                self.delivered[number] = (name, me.incarnation)
                key = (name, me.incarnation, *self.sent_by[number])
                assert number > self.last.get(key, -1), "out of order"
                self.last[key] = number
            elif type(one) is Undelivered:
                number = one.message.number
                assert number not in self.returned, "handed back twice"
                assert one.may_have_run or number not in self.delivered
                self.returned[number] = one.may_have_run

    @rule(name=st.sampled_from("ab"), count=st.integers(1, 8))
    def send(self, name: str, count: int) -> None:
        for _ in range(count):
            self.number += 1
            self.sent_by[self.number] = (name, self.ends[name].incarnation)
            self.note(name, self.ends[name].send(0, "t", Count(self.number)))
        self.flush(name)

    @rule(name=st.sampled_from("ab"))
    def send_latest(self, name: str) -> None:
        self.number += 1
        self.note(name, self.ends[name].send(1, "t", Count(self.number), latest=True))
        self.flush(name)

    @rule(name=st.sampled_from("ab"), data=st.data())
    def arrive(self, name: str, data: st.DataObject) -> None:
        """A frame out of the air, any of them; it may stay there and come again."""
        air = self.air[name]
        if not air:
            return
        at = data.draw(st.integers(0, len(air) - 1))
        frame = air[at] if data.draw(st.booleans()) else air.pop(at)
        self.note(name, self.ends[name].receive(frame, self.now_s))
        self.flush(name)

    @rule(name=st.sampled_from("ab"))
    def arrive_in_order(self, name: str) -> None:
        air, self.air[name] = self.air[name], []
        for frame in air:
            self.note(name, self.ends[name].receive(frame, self.now_s))
        self.flush(name)

    @rule(name=st.sampled_from("ab"), data=st.data())
    def lose(self, name: str, data: st.DataObject) -> None:
        if self.air[name]:
            self.air[name].pop(data.draw(st.integers(0, len(self.air[name]) - 1)))

    @rule(seconds=st.sampled_from((0.01, 0.2, 0.6, 4.0)))
    def wait(self, seconds: float) -> None:
        self.now_s += seconds
        for name in "ab":
            self.note(name, self.ends[name].tick(self.now_s))
            self.flush(name)

    @rule(name=st.sampled_from("ab"))
    def restart(self, name: str) -> None:
        self.start(name)

    @precondition(lambda self: self.incarnations["a"] < 6)
    @rule(told=st.booleans())
    def kill_and_tell(self, told: bool) -> None:
        """The supervisor of b says that a ended, before or after its next incarnation speaks."""
        dead = self.ends["a"].incarnation
        if told:
            self.note("b", self.ends["b"].lost("killed", dead))
        self.start("a")
        if not told:
            self.note("b", self.ends["b"].lost("killed", dead))
        self.note("b", self.ends["b"].join(self.now_s, dead + 1))
        self.flush("b")

    @invariant()
    def bounded(self) -> None:
        for end in self.ends.values():
            assert end.unacknowledged <= SMALL.window_messages
            assert end.backlog <= SMALL.outbox_messages + SMALL.window_messages

    def heal(self) -> None:
        for _ in range(30):
            self.wait(0.2)
            for name in "ab":
                self.arrive_in_order(name)

    def teardown(self) -> None:
        """The network heals: every message of the living is then accounted for."""
        self.heal()
        a, b = self.ends["a"], self.ends["b"]
        assert a.state is b.state is LinkState.UP
        assert a.settled
        assert b.settled
        for name in "ab":
            self.send_latest(name)
            newest = self.number
            for air in self.air.values():
                air.clear()  # all of it is lost
            self.heal()
            reader = self.ends[self.other(name)]
            assert self.newest[reader.me, reader.incarnation, name, self.ends[name].incarnation] == newest
        for number, (name, incarnation) in self.sent_by.items():
            if incarnation == self.ends[name].incarnation:
                assert number in self.delivered or number in self.returned, f"message {number} vanished"


TestWeather = Weather.TestCase
TestWeather.settings = settings(max_examples=150, stateful_step_count=40, deadline=None)


def test_counters_are_plain_numbers() -> None:
    a, b = up()
    put(a, 1)
    talk(a, b)

    assert attrs.asdict(b.counters)["messages_delivered"] == 1
    assert encode(Count(1)) == cbor2.dumps(["test.link.count/1", 1])
