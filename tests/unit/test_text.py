"""Text of token ids as they come: the same as a decode of the whole, and no stop string ever shows."""

import asyncio
import random
from functools import cache
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer

from dpactors.http.detokenizer import Detokenizer, held_length
from dpactors.http.errors import ApiError
from dpactors.http.openai import Defaults, chat_request
from dpactors.http.text import THREAD_FROM_CHARS, Configs, ModelText

VOCABULARY = 3072


@cache
def model_text() -> ModelText:
    """tiny-moe's tokenizer and template."""
    return ModelText.load("tiny-moe")


def tokenizer() -> Tokenizer:
    return model_text().tokenizer


def split(ids: list[int], cuts: list[int]) -> list[list[int]]:
    """`ids` in parts that begin at `cuts`."""
    edges = sorted({0, len(ids), *[cut % (len(ids) + 1) for cut in cuts]})
    return [ids[a:b] for a, b in pairwise(edges)]


ids_lists = st.lists(st.integers(0, VOCABULARY - 1), max_size=60)
cuts_lists = st.lists(st.integers(0, 1000), max_size=10)
multi_byte = st.text(st.sampled_from("aé日本🙂👩‍👧\n ñ\u0301𝄞"), max_size=30)


@settings(max_examples=400, deadline=None)
@given(ids=ids_lists, cuts=cuts_lists, skip=st.booleans())
def test_pieces_join_to_the_decode_of_the_whole(ids: list[int], cuts: list[int], skip: bool) -> None:
    special = model_text().special if skip else frozenset[int]()
    detokenizer = Detokenizer(tokenizer(), special=special)

    shown = "".join([detokenizer.push(part) for part in split(ids, cuts)]) + detokenizer.finish()

    assert shown == tokenizer().decode(ids, skip_special_tokens=skip)
    assert detokenizer.token_count == len(ids)


@given(text=multi_byte)
def test_a_character_of_several_tokens_shows_whole(text: str) -> None:
    detokenizer = Detokenizer(tokenizer())

    pieces = [detokenizer.push([token]) for token in tokenizer().encode(text).ids]

    assert "".join(pieces) == text
    assert not any("\ufffd" in piece for piece in pieces)
    assert detokenizer.finish() == ""


def test_bytes_that_never_become_a_character_show_at_the_end() -> None:
    lead = tokenizer().encode("日").ids[0]
    detokenizer = Detokenizer(tokenizer())

    assert detokenizer.push([lead, lead]) == ""
    assert detokenizer.finish() == tokenizer().decode([lead, lead])


def first_end(text: str, stops: tuple[str, ...]) -> tuple[int, int] | None:
    """Where the stop string that is complete first begins and ends; the longest of those that end together."""
    spans = [(text.find(stop) + len(stop), text.find(stop)) for stop in stops if stop in text]
    return (min(spans)[1], min(spans)[0]) if spans else None


@settings(max_examples=400, deadline=None)
@given(
    text=st.text("ab日 ", max_size=40),
    stops=st.lists(st.text("ab日 ", min_size=1, max_size=5), min_size=1, max_size=3).map(tuple),
    include=st.booleans(),
    cuts=cuts_lists,
)
def test_no_part_of_a_stop_string_shows(text: str, stops: tuple[str, ...], include: bool, cuts: list[int]) -> None:
    ids = tokenizer().encode(text).ids
    detokenizer = Detokenizer(tokenizer(), stops, include_stop=include)
    span = first_end(text, stops)

    shown = ""
    for part in split(ids, cuts):
        shown += detokenizer.push(part)
        cut = text if span is None else text[: span[1] if include else span[0]]
        assert cut.startswith(shown), "something after the cut was shown"
    shown += detokenizer.finish()

    assert shown == (text if span is None else text[: span[1] if include else span[0]])
    assert detokenizer.stopped == (None if span is None else text[span[0] : span[1]])


def test_a_stop_string_over_tokens_is_held_back_and_let_go_when_it_does_not_come() -> None:
    detokenizer = Detokenizer(tokenizer(), ("\nUser:",))

    assert detokenizer.push(tokenizer().encode("fine\nUse").ids) == "fine"
    assert detokenizer.push(tokenizer().encode("ful").ids) == "\nUseful"
    assert detokenizer.push(tokenizer().encode("\nUs").ids) == ""
    assert detokenizer.push(tokenizer().encode("er: more").ids) == ""
    assert detokenizer.stopped == "\nUser:"
    assert detokenizer.push(tokenizer().encode("and more").ids) == ""
    assert detokenizer.finish() == ""


def test_tokens_after_the_stop_string_do_not_count() -> None:
    ids = [tokenizer().encode(char).ids[0] for char in "abcd"]
    detokenizer = Detokenizer(tokenizer(), ("b",))

    assert detokenizer.push(ids) == "a"
    assert detokenizer.token_count == 2


def test_stop_strings_wait_for_min_tokens() -> None:
    ids = [tokenizer().encode(char).ids[0] for char in "abab"]
    detokenizer = Detokenizer(tokenizer(), ("b",), min_tokens=2)

    assert "".join([detokenizer.push([token]) for token in ids]) == "aba"
    assert detokenizer.stopped == "b"


def test_held_length_is_the_longest_beginning_of_a_stop_string() -> None:
    assert held_length("xxab", ("abc", "bd")) == 2
    assert held_length("xxb", ("abc", "bd")) == 1
    assert held_length("abc", ("abc",)) == 0
    assert held_length("", ("abc",)) == 0


def test_long_text_is_encoded_in_a_thread_to_the_same_ids() -> None:
    chooser = random.Random(7)
    text = " ".join(chooser.choice(["wave", "rank", "日本", "engine"]) for _ in range(THREAD_FROM_CHARS))

    ids = asyncio.run(model_text().encode(text, add_special_tokens=True))

    assert list(ids) == tokenizer().encode(text).ids


def chat(messages: list[dict[str, Any]], **more: Any) -> Any:
    return chat_request({"messages": messages, **more}, None, Defaults())


def test_the_bundled_template_makes_chatml() -> None:
    request = chat([{"role": "user", "content": "What is a wave?"}])

    assert model_text().render(request) == ("<|im_start|>user\nWhat is a wave?<|im_end|>\n<|im_start|>assistant\n")
    ids = asyncio.run(model_text().encode_chat(request))
    assert ids[0] == tokenizer().token_to_id("<|im_start|>")


def with_template(template: str | None, **tokenizer_config: Any) -> ModelText:
    return ModelText(tokenizer(), template, Configs({}, tokenizer_config, {}))


def test_a_template_has_what_hugging_face_gives_it() -> None:
    template = (
        "{{ bos_token }}{%- for m in messages %}\n    {% if m.role == 'skip' %}{% continue %}{% endif %}"
        "{% generation %}{{ m.content }}{% endgeneration %}{% endfor %}"
        "{{ tools | tojson }}{{ strftime_now('%Y') | length }}{{ extra }}{{ eos_token }}"
    )
    text = with_template(template, bos_token={"content": "<s>"}, eos_token="</s>")
    request = chat(
        [{"role": "user", "content": "a<b>"}, {"role": "skip", "content": "x"}],
        tools=[{"name": "é"}],
        chat_template_kwargs={"extra": "!"},
    )

    assert text.render(request).replace("\n", "").replace(" ", "") == '<s>a<b>[{"name":"é"}]4!</s>'


@pytest.mark.parametrize(
    ("template", "why"),
    [
        ("{{ raise_exception('roles must alternate') }}", "roles must alternate"),
        ("{{ messages[0].missing.deeper }}", "refuses"),
        ("{{ 1 // 0 }}", "ZeroDivisionError"),
        ("{{ ''.__class__.__mro__ }}", "refuses"),
        (None, "no chat template"),
    ],
)
def test_what_a_template_refuses_is_the_clients_fault(template: str | None, why: str) -> None:
    with pytest.raises(ApiError, match=why) as refused:
        with_template(template).render(chat([{"role": "user", "content": "a"}]))

    assert (refused.value.status, refused.value.param) == (400, "messages")


def test_sampling_defaults_come_from_the_checkpoint() -> None:
    text = ModelText(tokenizer(), None, Configs({}, {}, {"temperature": 0.6, "top_k": 20, "eos_token_id": 2}))

    assert text.defaults == Defaults(temperature=0.6, top_p=1.0, top_k=20)
