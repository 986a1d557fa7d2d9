"""One end of a link: order, acknowledgement, credit, newest values and silence, as transcripts."""

import attrs
import cbor2
import pytest

from dpactors.message.codec import encode
from dpactors.message.errors import FrameTooLarge, MessageError
from dpactors.net import frames
from dpactors.net.notices import BadFrame, Heard, Silent, Undelivered
from tests.unit.link_pair import Blob, Count, numbers, pair, put, talk, undelivered, up

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


def test_nothing_is_acknowledged_while_its_owner_is_being_told() -> None:
    a, b = up(ack_messages=2)
    put(a, *range(4))
    (frame,) = a.frames_to_send(0.0)
    b.receive(frame, 0.0)
    b.delivering = True
    put(b, 100)
    assert b.express(0.0) is None
    (share,) = b.frames_to_send(9.0)
    assert numbers(a.receive(share, 9.0)) == [100]
    assert a.unacknowledged == 4

    b.delivering = False
    (rest,) = b.frames_to_send(9.0)
    a.receive(rest, 9.0)
    assert a.unacknowledged == 0


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


def test_counters_are_plain_numbers() -> None:
    a, b = up()
    put(a, 1)
    talk(a, b)

    assert attrs.asdict(b.counters)["messages_delivered"] == 1
    assert encode(Count(1)) == cbor2.dumps(["test.link.count/1", 1])
