"""Whatever JSON or bytes arrive, the answer is never a 500."""

import asyncio
from collections.abc import Awaitable, Callable
from functools import cache
from typing import Any

import httpx
import orjson
from hypothesis import given, settings
from hypothesis import strategies as st

from dpactors.http.app import build_app
from dpactors.http.keys import Doorman
from dpactors.http.metrics import Metrics
from dpactors.http.state import Edge
from dpactors.http.streams import Streams
from dpactors.http.text import ModelText
from dpactors.message.message import tokens
from dpactors.serving.jobs import Availability, ServeHttp, StreamWrite, Submitted

PATHS = ("/v1/completions", "/v1/chat/completions")

leaves = st.none() | st.booleans() | st.integers(-(1 << 63), (1 << 64) - 1) | st.floats() | st.text(max_size=8)
values = st.recursive(
    leaves, lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=6), inner, max_size=4)
)
names = st.sampled_from(
    [
        "model",
        "prompt",
        "messages",
        "n",
        "max_tokens",
        "max_completion_tokens",
        "temperature",
        "top_p",
        "top_k",
        "seed",
        "stop",
        "stop_token_ids",
        "ignore_eos",
        "min_tokens",
        "stream",
        "stream_options",
        "echo",
        "return_token_ids",
        "tools",
        "tool_choice",
        "logprobs",
        "response_format",
        "data_parallel_rank",
        "chat_template_kwargs",
        "add_generation_prompt",
        "add_special_tokens",
        "skip_special_tokens",
        "include_stop_str_in_output",
        "best_of",
        "suffix",
    ]
)
messages = st.lists(
    st.fixed_dictionaries(
        {"role": st.sampled_from(["user", "system", "assistant", "tool", ""]) | leaves},
        optional={"content": values, "tool_calls": values, "name": values, "extra": values},
    ),
    max_size=3,
)
prompts = st.text(max_size=20) | st.lists(st.text(max_size=5), max_size=3) | st.lists(st.integers(-1, 4000), max_size=5)
bodies = st.builds(
    lambda odd, good: {**good, **odd},
    st.dictionaries(names, values, max_size=3),
    st.fixed_dictionaries({"prompt": prompts, "messages": messages}, optional={"stream": st.booleans()}),
)


@cache
def model_text() -> ModelText:
    """tiny-moe's tokenizer and template."""
    return ModelText.load("tiny-moe")


async def post(path: str, content: bytes) -> httpx.Response:
    """One request against the application, behind which an engine answers each sequence with three tokens."""

    def say(item: Any) -> None:
        if isinstance(item, Submitted):
            last = StreamWrite(item.stream, tokens([5, 6, 2]), "stop", 2, rank=0)
            asyncio.get_running_loop().call_soon(streams.feed, last)

    clock = asyncio.get_running_loop().time
    metrics = Metrics("tiny-moe", 2048)
    streams = Streams(say, metrics, clock)
    now = Availability((0,), (0,), 2048)
    edge = Edge(ServeHttp("tiny-moe", "tiny-moe", ""), "0", model_text(), streams, metrics, clock, 0, now)
    app: Callable[..., Awaitable[None]] = build_app(edge, Doorman(()))
    transport = httpx.ASGITransport(app)
    async with httpx.AsyncClient(transport=transport, base_url="http://edge") as client:
        response = await client.post(path, content=content, headers={"content-type": "application/json"})
    assert streams.sequence_count == streams.request_count == 0
    return response


@settings(max_examples=300, deadline=None)
@given(path=st.sampled_from(PATHS), body=bodies | values)
def test_random_json_is_answered_or_refused(path: str, body: Any) -> None:
    response = asyncio.run(post(path, orjson.dumps(body)))

    assert response.status_code in (200, 400, 404), response.text
    if response.status_code != 200:
        error = response.json()["error"]
        assert error["code"] == response.status_code
        assert set(error) == {"message", "type", "param", "code"}


@settings(max_examples=50, deadline=None)
@given(path=st.sampled_from(PATHS), content=st.binary(max_size=30))
def test_random_bytes_are_refused(path: str, content: bytes) -> None:
    assert asyncio.run(post(path, content)).status_code == 400
