"""Messages cross the wire whole or not at all."""

import contextlib
from array import array
from typing import Literal

import attrs
import cbor2
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dpactors.message.codec import DEPTH_MAX, decode, encode, loads, source_of
from dpactors.message.errors import DuplicateTag, MalformedMessage, MessageError, UnknownTag
from dpactors.message.message import Tokens, all_tags, message, tokens
from dpactors.serving import messages as serving

int64 = st.integers(-(2**63), 2**63 - 1)
token_ids = st.lists(st.integers(-(2**31), 2**31 - 1), max_size=50).map(tokens)
text = st.text(max_size=30)
floats = st.floats(allow_nan=False, allow_infinity=False)

sampling = st.builds(serving.Sampling, floats, floats, int64, int64, token_ids, st.booleans(), int64)
generate = st.builds(serving.Generate, text, token_ids, int64, sampling, st.none() | int64)
marks = st.lists(st.builds(serving.ClientMark, int64, int64), max_size=3).map(tuple)
load = st.builds(serving.RankLoad, *[int64] * 10, *[floats] * 3, int64, int64, marks)
heard = st.builds(serving.HeardLoad, load, floats)
finish = st.none() | st.sampled_from(["stop", "length", "abort", "error"])
output = st.builds(
    serving.RequestOutput, text, int64, token_ids, finish, st.none() | int64, st.none() | text, int64, int64
)
any_message = st.one_of(
    st.builds(serving.Dispatch, generate, int64, int64, st.booleans(), token_ids),
    st.builds(serving.StepOutputs, load, st.lists(output, max_size=4).map(tuple)),
    st.builds(serving.LoadSnapshot, int64, int64, st.lists(heard, max_size=4).map(tuple), int64, st.booleans()),
    st.builds(serving.GroupKey, int64, text, st.binary(max_size=40)),
    st.builds(serving.StartWave, int64),
)


@given(any_message)
def test_what_is_decoded_is_what_was_encoded(sent: object) -> None:
    assert decode(encode(sent)) == sent


@given(any_message)
def test_bytes_are_plain_cbor_arrays_with_a_tag(sent: object) -> None:
    item = cbor2.loads(encode(sent))

    assert type(item) is list
    assert item[0] in all_tags()


@given(any_message)
def test_every_item_is_as_short_as_cbor2_makes_it(sent: object) -> None:
    data = encode(sent)

    assert cbor2.dumps(cbor2.loads(data)) == data


@given(any_message, st.integers(0, 400))
def test_half_a_message_is_refused(sent: object, cut: int) -> None:
    data = encode(sent)

    with pytest.raises(MessageError):
        decode(data[: min(cut, len(data) - 1)])


@given(any_message, st.data())
def test_a_damaged_field_is_refused_and_named(sent: object, data: st.DataObject) -> None:
    item = cbor2.loads(encode(sent))
    index = data.draw(st.integers(1, len(item) - 1))
    item[index] = {"a": 1}  # no field of ours is a map

    with pytest.raises(MalformedMessage, match=type(sent).__name__):
        decode(cbor2.dumps(item))


@given(st.binary(max_size=200))
def test_no_bytes_do_more_than_raise_a_message_error(data: bytes) -> None:
    with contextlib.suppress(MessageError):
        decode(data)


@pytest.mark.parametrize(
    "item",
    [
        ["wave.start/1"],
        ["wave.start/1", 1, 2],
        ["wave.start/1", True],
        ["wave.start/1", 1.0],
        ["wave.start/1", 2**70],
        ["group.key/1", 1, "key", "text"],
        ["request.abort/1", ["a", 5]],
        [5, 1],
        [],
        "wave.start/1",
    ],
)
def test_wrong_arity_type_or_range_is_malformed(item: object) -> None:
    with pytest.raises(MalformedMessage):
        decode(cbor2.dumps(item))


def test_an_unknown_tag_says_so() -> None:
    with pytest.raises(UnknownTag, match=r"nobody\.knows/1"):
        decode(cbor2.dumps(["nobody.knows/1", 1]))


def test_depth_is_limited() -> None:
    nested: object = []
    for _ in range(DEPTH_MAX + 2):
        nested = [nested]

    with pytest.raises(MalformedMessage):
        loads(cbor2.dumps(nested))


def test_int32_bytes_of_odd_length_are_no_tokens() -> None:
    good = cbor2.loads(encode(serving.Abort(("a",))))
    assert good == ["request.abort/1", ["a"]]

    @message("test.tokens/1")
    class Ids:
        ids: Tokens

    assert decode(encode(Ids(array("i", [1, -2])))) == Ids(array("i", [1, -2]))
    with pytest.raises(MalformedMessage, match=r"Ids\.ids"):
        decode(cbor2.dumps(["test.tokens/1", b"abc"]))


def test_a_word_outside_a_literal_is_malformed() -> None:
    @message("test.word/1")
    class Word:
        word: Literal["yes", "no"]

    assert decode(encode(Word("yes"))) == Word("yes")
    with pytest.raises(MalformedMessage, match=r"Word\.word"):
        decode(cbor2.dumps(["test.word/1", "perhaps"]))


def test_a_union_of_messages_travels_with_its_tag() -> None:
    @message("test.either/1")
    class Either:
        inner: serving.StartWave | serving.WaveJoined

    assert decode(encode(Either(serving.WaveJoined(1, 2)))) == Either(serving.WaveJoined(1, 2))
    with pytest.raises(MalformedMessage, match="none of its messages"):
        decode(cbor2.dumps(["test.either/1", ["request.abort/1", []]]))


def test_a_type_that_cannot_travel_is_refused_with_its_place() -> None:
    @message("test.bad/1")
    class Bad:
        things: dict[str, int]

    with pytest.raises(MessageError, match=r"Bad\.things"):
        encode(Bad({}))


def test_no_plain_object_travels() -> None:
    @attrs.frozen
    class Plain:
        x: int

    with pytest.raises(MessageError, match="is no message"):
        encode(Plain(1))


def test_one_tag_is_one_class() -> None:
    @message("test.once/1")
    class Once:
        x: int

    with pytest.raises(DuplicateTag, match=r"test\.once/1"):

        @message("test.once/1")
        class Twice:
            x: int


def test_messages_are_frozen() -> None:
    with pytest.raises(attrs.exceptions.FrozenInstanceError):
        serving.StartWave(1).wave = 2  # type: ignore[misc]


TAGGED = [
    bytes((0xC0 | tag,)) if tag < 24 else b"\xd8" + bytes((tag,))
    for tag in (0, 1, 2, 3, 4, 5, 25, 28, 29, 30, 35, 36, 99)
]


def test_an_endless_number_travels() -> None:
    @message("test.endless/1")
    class Endless:
        number: float

    assert decode(encode(Endless(float("-inf")))) == Endless(float("-inf"))


@pytest.mark.parametrize("tag", [*TAGGED, b"\xd9\x01\x02", b"\xd9\xd9\xf7"])
@pytest.mark.parametrize("inner", [b"\x01", b"\x61a", b"\x41\x01", b"\x82\x01\x02"])
def test_no_cbor_tag_is_part_of_a_message(tag: bytes, inner: bytes) -> None:
    """Among them regular expressions to be compiled, numbers without bound and shared values."""
    with pytest.raises(MalformedMessage):
        loads(b"\x82" + cbor2.dumps("wave.start/1") + tag + inner)


@pytest.mark.parametrize(
    ("wrong", "named"),
    [
        (serving.StartWave("1"), "StartWave"),  # type: ignore[arg-type]
        (serving.StartWave(2**64), "64 bits"),
        (serving.StartWave(None), "wave: NoneType"),  # type: ignore[arg-type]
        (serving.Abort((1,)), "request_ids: tuple"),  # type: ignore[arg-type]
        (serving.Abort(("\ud800",)), "Abort"),
        (serving.GroupKey(1, "key", 5), "value: int"),  # type: ignore[arg-type]
    ],
)
def test_a_field_of_another_type_is_its_senders_fault(wrong: object, named: str) -> None:
    with pytest.raises(MessageError, match=named):
        encode(wrong)


def test_an_array_of_other_numbers_is_no_tokens() -> None:
    @message("test.array/1")
    class Ids:
        ids: Tokens

    with pytest.raises(MessageError, match=r"array\('i'\)"):
        encode(Ids(array("q", [1])))


def test_numbers_end_where_cbor_does() -> None:
    for edge in (2**64 - 1, -(2**64), 23, 24, 255, 256, 1023, 1024, 65535, 65536, 2**32, -1, -24, -25, -257):
        assert decode(encode(serving.StartWave(edge))) == serving.StartWave(edge)


def test_a_message_that_contains_itself_is_refused() -> None:
    with pytest.raises(MessageError, match="Knot contains itself"):
        encode(Knot(()))


@message("test.knot/1")
class Knot:
    inner: "tuple[Knot, ...]"


def test_what_was_decoded_is_frozen_as_well() -> None:
    made = decode(encode(serving.StartWave(1)))

    assert type(made) is serving.StartWave
    with pytest.raises(attrs.exceptions.FrozenInstanceError):
        made.wave = 2


def test_the_source_of_a_codec_can_be_read() -> None:
    source = source_of(serving.StartWave)

    assert "def encode(o, head=HEAD):" in source
    assert "wave_ = o.wave" in source
    assert "raise wrong('StartWave.wave', 'int', wave_)" in source
