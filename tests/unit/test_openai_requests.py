"""OpenAI JSON becomes checked records; every refusal is a 400 that names its field."""

from typing import Any

import pytest

from dpactors.http.errors import ApiError
from dpactors.http.openai import Defaults, chat_request, completion_request, request_id_of
from dpactors.message.message import tokens

DEFAULTS = Defaults()
MESSAGES = [{"role": "user", "content": "hi"}]


def test_a_bare_completion_has_openai_defaults() -> None:
    request = completion_request({"prompt": "hi"}, None, DEFAULTS)

    options = request.options
    assert request.prompts == ("hi",)
    assert (options.n, options.max_tokens, options.seed, options.rank, options.stop) == (1, None, None, None, ())
    assert (options.sampling.temperature, options.sampling.top_p, options.sampling.top_k) == (1.0, 1.0, 0)
    assert not options.stream
    assert options.add_special_tokens


@pytest.mark.parametrize(
    ("prompt", "expected"),
    [
        ("a", ("a",)),
        (["a", "b"], ("a", "b")),
        ([1, 2], (tokens([1, 2]),)),
        ([[1, 2], [3]], (tokens([1, 2]), tokens([3]))),
        (["a", [3]], ("a", tokens([3]))),
    ],
)
def test_a_prompt_is_text_or_token_ids_one_or_many(prompt: Any, expected: Any) -> None:
    assert completion_request({"prompt": prompt}, None, DEFAULTS).prompts == expected


def test_fields_of_the_checkpoint_stand_in_for_what_a_request_leaves_out() -> None:
    defaults = Defaults(temperature=0.6, top_p=0.95, top_k=20)

    asked = completion_request({"prompt": "a", "temperature": 0, "top_k": -1}, None, defaults).options.sampling

    assert (asked.temperature, asked.top_p, asked.top_k) == (0.0, 0.95, 0)


def test_null_means_absent_and_unknown_fields_are_ignored() -> None:
    body = {"prompt": "a", "stop": None, "max_tokens": None, "n": None, "seed": None, "user": "me", "priority": 3}
    body |= {"logprobs": None, "presence_penalty": 0, "repetition_penalty": 1.0, "metadata": {"a": [1]}}

    assert completion_request(body, None, DEFAULTS) == completion_request({"prompt": "a"}, None, DEFAULTS)


def test_max_completion_tokens_wins() -> None:
    body = {"messages": MESSAGES, "max_tokens": 5, "max_completion_tokens": 7}

    assert chat_request(body, None, DEFAULTS).options.max_tokens == 7


def test_text_parts_become_text_and_call_arguments_become_objects() -> None:
    body = {
        "messages": [
            {"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]},
            {"role": "assistant", "tool_calls": [{"id": "1", "function": {"name": "f", "arguments": '{"x": 1}'}}]},
            {"role": "tool", "tool_call_id": "1", "content": "2"},
        ],
        "tools": [{"type": "function", "function": {"name": "f"}}],
    }

    request = chat_request(body, None, DEFAULTS)

    assert [message["content"] for message in request.messages] == ["a\nb", "", "2"]
    assert request.messages[1]["tool_calls"][0]["function"]["arguments"] == {"x": 1}
    assert request.tools is not None
    assert not request.options.add_special_tokens


@pytest.mark.parametrize(
    ("changes", "param"),
    [
        ({"prompt": None}, "prompt"),
        ({"prompt": []}, "prompt"),
        ({"prompt": [[]]}, "prompt[0]"),
        ({"prompt": [-1]}, "prompt"),
        ({"prompt": [1, "a"]}, "prompt"),
        ({"prompt": [1 << 40]}, "prompt"),
        ({"prompt": {"a": 1}}, "prompt"),
        ({"prompt": ["a"] * 600, "n": 2}, "prompt"),
        ({"n": 0}, "n"),
        ({"n": True}, "n"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"max_tokens": "5"}, "max_tokens"),
        ({"max_tokens": 2.5}, "max_tokens"),
        ({"max_tokens": 2, "min_tokens": 3}, "min_tokens"),
        ({"temperature": -0.1}, "temperature"),
        ({"temperature": "hot"}, "temperature"),
        ({"top_p": 0}, "top_p"),
        ({"top_p": 1.1}, "top_p"),
        ({"top_k": -2}, "top_k"),
        ({"seed": 1 << 63}, "seed"),
        ({"stop": ""}, "stop"),
        ({"stop": ["a", 1]}, "stop"),
        ({"stop": {"a": 1}}, "stop"),
        ({"stop_token_ids": [-1]}, "stop_token_ids"),
        ({"stop_token_ids": 5}, "stop_token_ids"),
        ({"stream": 1}, "stream"),
        ({"stream_options": {"include_usage": True}}, "stream_options"),
        ({"stream": True, "stream_options": []}, "stream_options"),
        ({"stream": True, "stream_options": {"include_usage": 1}}, "stream_options.include_usage"),
        ({"logprobs": 0}, "logprobs"),
        ({"logprobs": True}, "logprobs"),
        ({"frequency_penalty": 0.5}, "frequency_penalty"),
        ({"response_format": {"type": "json_object"}}, "response_format"),
        ({"suffix": "b"}, "suffix"),
        ({"model": 5}, "model"),
        ({"data_parallel_rank": -1}, "data_parallel_rank"),
    ],
)
def test_what_does_not_fit_is_refused_by_name(changes: dict[str, Any], param: str) -> None:
    with pytest.raises(ApiError) as refused:
        completion_request({"prompt": "a", **changes}, None, DEFAULTS)

    assert (refused.value.status, refused.value.param) == (400, param)
    assert param in refused.value.message


@pytest.mark.parametrize(
    ("changes", "param"),
    [
        ({"messages": None}, "messages"),
        ({"messages": []}, "messages"),
        ({"messages": "hi"}, "messages"),
        ({"messages": ["hi"]}, "messages[0]"),
        ({"messages": [{"content": "hi"}]}, "messages[0].role"),
        ({"messages": [{"role": "user", "content": 5}]}, "messages[0].content"),
        ({"messages": [{"role": "user", "content": ["a"]}]}, "messages[0].content[0]"),
        ({"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}, "messages[0].content[0].type"),
        ({"messages": [{"role": "assistant", "tool_calls": 1}]}, "messages[0].tool_calls"),
        ({"tools": [1]}, "tools"),
        ({"tool_choice": "required"}, "tool_choice"),
        ({"top_logprobs": 3}, "top_logprobs"),
        ({"echo": True}, "echo"),
        ({"chat_template_kwargs": 1}, "chat_template_kwargs"),
    ],
)
def test_a_chat_that_does_not_fit_is_refused_by_name(changes: dict[str, Any], param: str) -> None:
    with pytest.raises(ApiError) as refused:
        chat_request({"messages": MESSAGES, **changes}, None, DEFAULTS)

    assert (refused.value.status, refused.value.param) == (400, param)


@pytest.mark.parametrize("body", [None, [], "a", 5, True])
def test_a_body_is_an_object(body: Any) -> None:
    with pytest.raises(ApiError, match="JSON object"):
        completion_request(body, None, DEFAULTS)


def test_a_rank_is_pinned_by_header_or_body_that_agree() -> None:
    assert completion_request({"prompt": "a"}, "3", DEFAULTS).options.rank == 3
    assert completion_request({"prompt": "a", "data_parallel_rank": 2}, None, DEFAULTS).options.rank == 2
    assert completion_request({"prompt": "a", "data_parallel_rank": 2}, "2", DEFAULTS).options.rank == 2
    for header in ("-1", "x", "", "²", "1" * 30):
        with pytest.raises(ApiError):
            completion_request({"prompt": "a"}, header, DEFAULTS)
    with pytest.raises(ApiError):
        completion_request({"prompt": "a", "data_parallel_rank": 2}, "3", DEFAULTS)


def test_a_request_id_is_short_and_printable() -> None:
    assert request_id_of("req-1/a:b") == "req-1/a:b"
    assert request_id_of(None) is None
    assert request_id_of("") is None
    for header in ("a b", "é", "a\x7f", "a" * 129):
        with pytest.raises(ApiError):
            request_id_of(header)
