"""One end of a link: whatever bytes come, nothing raises and nothing changes."""

from collections.abc import Callable
from typing import Any

import cbor2
from hypothesis import given
from hypothesis import strategies as st

from dpactors.net import frames
from dpactors.net.link import LinkMachine
from dpactors.net.notices import BadFrame
from tests.unit.link_pair import put, up

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
