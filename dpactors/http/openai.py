"""OpenAI request JSON, read into checked records; every refusal names its field.

Fields that clients send and that change nothing here (user, priority, metadata, ...) are ignored. Fields that would
change the answer and that nobody behind the edge honours yet are refused unless they hold their neutral value.
"""

from collections.abc import Mapping
from typing import Any, TypeAlias, cast

import orjson
from attrs import field, frozen

from dpactors.http.errors import ApiError
from dpactors.http.fields import INT32_MAX, Fields, field_error
from dpactors.message.message import Tokens, tokens
from dpactors.serving.messages import Sampling

DEFAULT_MAX_TOKENS = 16  # OpenAI's for /v1/completions
N_MAX = 128  # OpenAI's
SEQUENCES_MAX = 1024
"""Choices one HTTP request may ask for: prompts times n."""
STOPS_MAX = 64
STOP_CHARS_MAX = 1024
STOP_TOKENS_MAX = 1024
REQUEST_ID_CHARS_MAX = 128
RANK_DIGITS_MAX = 9

Prompt: TypeAlias = "str | Tokens"
"""Text to encode, or token ids as they stand."""

_NEUTRAL: dict[str, tuple[object, ...]] = {
    "logprobs": (None, False),
    "top_logprobs": (None, 0),
    "prompt_logprobs": (None,),
    "presence_penalty": (None, 0, 0.0),
    "frequency_penalty": (None, 0, 0.0),
    "repetition_penalty": (None, 1, 1.0),
    "length_penalty": (None, 1, 1.0),
    "min_p": (None, 0, 0.0),
    "logit_bias": (None, {}),
    "best_of": (None, 1),
    "suffix": (None, ""),
    "use_beam_search": (None, False),
    "structured_outputs": (None,),
    "response_format": (None, {"type": "text"}),
    "functions": (None, []),
    "tool_choice": (None, "none", "auto"),
    "audio": (None,),
    "modalities": (None, ["text"]),
    "prompt_embeds": (None,),
    "truncate_prompt_tokens": (None,),
    "bad_words": (None, []),
    "allowed_token_ids": (None,),
    "continue_final_message": (None, False),
    "chat_template": (None,),
}


@frozen
class Defaults:
    """Sampling values for requests that name none: the checkpoint's generation_config, else OpenAI's."""

    temperature: float = field(default=1.0, converter=float)
    top_p: float = field(default=1.0, converter=float)
    top_k: int = field(default=0, converter=int)
    """0 is all."""


@frozen
class Options:
    """What both endpoints share, checked."""

    model: str | None
    n: int
    max_tokens: int | None
    """None takes the endpoint's default."""
    sampling: Sampling
    """Its seed is a placeholder: each sequence gets its own."""
    seed: int | None
    stop: tuple[str, ...]
    include_stop: bool
    """Whether a stop string that was met is part of the text."""
    skip_special_tokens: bool
    add_special_tokens: bool
    """Whether the tokenizer may add its own begin and end tokens to a text prompt."""
    stream: bool
    include_usage: bool
    continuous_usage: bool
    return_token_ids: bool
    rank: int | None


@frozen
class CompletionRequest:
    """Body of POST /v1/completions."""

    options: Options
    prompts: tuple[Prompt, ...]
    echo: bool


@frozen
class ChatRequest:
    """Body of POST /v1/chat/completions."""

    options: Options
    messages: tuple[dict[str, Any], ...]
    """As the chat template takes them: content is always text."""
    tools: tuple[dict[str, Any], ...] | None
    add_generation_prompt: bool
    template_arguments: Mapping[str, Any]


def completion_request(body: object, rank_header: str | None, defaults: Defaults) -> CompletionRequest:
    """Read a completions body; raises ApiError 400 that names the field at fault."""
    fields = Fields.of(body)
    options = _options(fields, rank_header, defaults, special=True)
    prompts = _prompts(fields.required("prompt"))
    if len(prompts) * options.n > SEQUENCES_MAX:
        raise field_error("prompt", f"{len(prompts)} prompts x n={options.n} is over {SEQUENCES_MAX} choices")
    return CompletionRequest(options, prompts, echo=fields.boolean("echo", default=False))


def chat_request(body: object, rank_header: str | None, defaults: Defaults) -> ChatRequest:
    """Read a chat body; raises ApiError 400 that names the field at fault."""
    fields = Fields.of(body)
    if fields.boolean("echo", default=False):
        raise field_error("echo", "is for /v1/completions")
    options = _options(fields, rank_header, defaults, special=False)
    raw = fields.required("messages")
    if not isinstance(raw, list) or not raw:
        raise field_error("messages", "wants a list of at least one message")
    messages = tuple(_message(item, f"messages[{i}]") for i, item in enumerate(cast("list[object]", raw)))
    tools = fields.objects("tools")
    return ChatRequest(
        options,
        messages,
        tools if tools and fields.get("tool_choice") != "none" else None,
        fields.boolean("add_generation_prompt", default=True),
        fields.mapping("chat_template_kwargs"),
    )


def request_id_of(header: str | None) -> str | None:
    """Check a client's X-Request-ID; raises ApiError 400 where it cannot serve as a name."""
    if header is None or header == "":
        return None
    if len(header) > REQUEST_ID_CHARS_MAX or not all("!" <= char <= "~" for char in header):
        raise ApiError(400, f"X-Request-ID wants at most {REQUEST_ID_CHARS_MAX} printable ASCII characters, no space")
    return header


def _options(fields: Fields, rank_header: str | None, defaults: Defaults, *, special: bool) -> Options:
    _refuse_unsupported(fields)
    stream = fields.boolean("stream", default=False)
    stream_options = Fields(fields.mapping("stream_options"), "stream_options.")
    if fields.get("stream_options") is not None and not stream:
        raise field_error("stream_options", "is only allowed with stream=true")
    stop = _stop(fields.get("stop"))
    max_tokens = fields.integer("max_completion_tokens", None, 1, INT32_MAX)
    if max_tokens is None:
        max_tokens = fields.integer("max_tokens", None, 1, INT32_MAX)
    min_tokens = fields.integer("min_tokens", 0, 0, INT32_MAX) or 0
    if max_tokens is not None and min_tokens > max_tokens:
        raise field_error("min_tokens", f"is {min_tokens}, more than max_tokens {max_tokens}")
    top_k = fields.integer("top_k", None, -1, INT32_MAX)
    sampling = Sampling(
        temperature=fields.number("temperature", defaults.temperature, 0.0, 100.0),
        top_p=_top_p(fields, defaults),
        top_k=max(defaults.top_k if top_k is None else top_k, 0),
        seed=0,
        stop_token_ids=tokens(fields.integers("stop_token_ids", STOP_TOKENS_MAX)),
        ignore_eos=fields.boolean("ignore_eos", default=False),
        min_tokens=min_tokens,
    )
    return Options(
        model=fields.text("model"),
        n=fields.integer("n", 1, 1, N_MAX) or 1,
        max_tokens=max_tokens,
        sampling=sampling,
        seed=fields.integer("seed", None, -(1 << 63), (1 << 63) - 1),
        stop=stop,
        include_stop=fields.boolean("include_stop_str_in_output", default=False),
        skip_special_tokens=fields.boolean("skip_special_tokens", default=True),
        add_special_tokens=fields.boolean("add_special_tokens", default=special),
        stream=stream,
        include_usage=stream_options.boolean("include_usage", default=False),
        continuous_usage=stream_options.boolean("continuous_usage_stats", default=False),
        return_token_ids=fields.boolean("return_token_ids", default=False),
        rank=_rank(fields, rank_header),
    )


def _refuse_unsupported(fields: Fields) -> None:
    for name in _NEUTRAL.keys() & fields.names():
        value = fields.get(name)
        if not any(type(value) is type(neutral) and value == neutral for neutral in _NEUTRAL[name]):
            raise field_error(name, "is not supported yet")


def _top_p(fields: Fields, defaults: Defaults) -> float:
    top_p = fields.number("top_p", defaults.top_p, 0.0, 1.0)
    if top_p == 0.0:
        raise field_error("top_p", "wants a number above 0, at most 1")
    return top_p


def _rank(fields: Fields, header: str | None) -> int | None:
    named = fields.integer("data_parallel_rank", None, 0, INT32_MAX)
    if header is None:
        return named
    if not (header.isascii() and header.isdigit() and len(header) <= RANK_DIGITS_MAX):
        raise ApiError(400, "X-data-parallel-rank wants a rank number", "X-data-parallel-rank")
    if named is not None and named != int(header):
        raise field_error("data_parallel_rank", f"is {named}, but the header X-data-parallel-rank says {header}")
    return int(header)


def _stop(raw: object) -> tuple[str, ...]:
    if raw is None:
        return ()
    stops = [raw] if isinstance(raw, str) else raw
    if not isinstance(stops, list) or not all(isinstance(stop, str) for stop in cast("list[object]", stops)):
        raise field_error("stop", "wants a string, a list of strings or null")
    found = tuple(cast("list[str]", stops))
    if len(found) > STOPS_MAX or not all(0 < len(stop) <= STOP_CHARS_MAX for stop in found):
        raise field_error("stop", f"wants at most {STOPS_MAX} strings of 1 to {STOP_CHARS_MAX} characters")
    return found


def _prompts(raw: object) -> tuple[Prompt, ...]:
    if isinstance(raw, str):
        return (raw,)
    if not isinstance(raw, list) or not raw:
        raise field_error("prompt", "wants a string, a list of strings, token ids or a list of token id lists")
    items = cast("list[object]", raw)
    if type(items[0]) is int:
        return (_token_ids(items, "prompt"),)
    return tuple(
        item if isinstance(item, str) else _token_ids(item, f"prompt[{index}]") for index, item in enumerate(items)
    )


def _token_ids(raw: object, where: str) -> Tokens:
    if not isinstance(raw, list) or not raw:
        raise field_error(where, "wants a string or a non-empty list of token ids")
    items = cast("list[object]", raw)
    if not all(type(item) is int and 0 <= item <= INT32_MAX for item in items):
        raise field_error(where, "wants token ids: integers, not negative")
    return tokens(cast("list[int]", items))


def _message(raw: object, where: str) -> dict[str, Any]:
    if not isinstance(raw, dict):
        raise field_error(where, "wants an object with role and content")
    message = dict(cast("dict[str, Any]", raw))
    if not isinstance(message.get("role"), str) or not message["role"]:
        raise field_error(f"{where}.role", "wants a string")
    message["content"] = _content(message.get("content"), f"{where}.content")
    if message.get("tool_calls") is not None:
        message["tool_calls"] = [_tool_call(call) for call in _list(message["tool_calls"], f"{where}.tool_calls")]
    return message


def _content(raw: object, where: str) -> str:
    if raw is None:
        return ""
    if isinstance(raw, str):
        return raw
    texts: list[str] = []
    for index, part in enumerate(_list(raw, where)):
        place = f"{where}[{index}]"
        if not isinstance(part, dict):
            raise field_error(place, "wants an object with type and text")
        known = cast("dict[str, object]", part)
        text = known.get("text")
        if known.get("type") != "text" or not isinstance(text, str):
            raise field_error(f"{place}.type", "only parts of type text are supported")
        texts.append(text)
    return "\n".join(texts)


def _tool_call(raw: object) -> object:
    """Templates want a call's arguments as an object; clients send back the JSON text they were given."""
    if not isinstance(raw, dict):
        return raw
    call = dict(cast("dict[str, Any]", raw))
    function = call.get("function")
    if isinstance(function, dict):
        made = dict(cast("dict[str, Any]", function))
        if isinstance(made.get("arguments"), str):
            made["arguments"] = _json_or_text(made["arguments"])
        call["function"] = made
    return call


def _json_or_text(text: str) -> object:
    try:
        return orjson.loads(text)
    except orjson.JSONDecodeError:
        return text


def _list(raw: object, where: str) -> list[object]:
    if not isinstance(raw, list):
        raise field_error(where, "wants text or a list of parts" if where.endswith("content") else "wants a list")
    return cast("list[object]", raw)
