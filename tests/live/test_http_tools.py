"""Endpoints beside generation: tokens, what the server is, and the end of requests by name."""

import asyncio
from typing import Any

import pytest

from tests.http_peer import ANSWER, BODIES, CHAT, CONTEXT, END, SAID, TOKENIZER, drained, events, plain, serving

PATHS = pytest.mark.parametrize(("path", "body"), BODIES)


@pytest.mark.asyncio
async def test_text_becomes_tokens_and_text_again() -> None:
    async with serving() as (peer, url), plain(url) as client:
        found = (await client.post("/tokenize", json={"model": "tiny-moe", "prompt": SAID})).json()
        back = (await client.post("/detokenize", json={"tokens": found["tokens"]})).json()
        named = (await client.post("/tokenize", json={"prompt": "A wave", "return_token_strs": True})).json()

    assert found == {"count": len(ANSWER), "max_model_len": CONTEXT, "tokens": ANSWER, "token_strs": None}
    assert back == {"prompt": SAID}
    assert named["token_strs"] == TOKENIZER.encode("A wave").tokens
    assert not peer.all_submitted


@pytest.mark.asyncio
async def test_a_conversation_has_the_tokens_that_are_served() -> None:
    async with serving() as (peer, url), plain(url) as client:
        told = (await client.post("/tokenize", json=CHAT)).json()
        bare = (await client.post("/tokenize", json={**CHAT, "add_generation_prompt": False})).json()
        answer = asyncio.ensure_future(client.post("/v1/chat/completions", json=CHAT))
        submitted = await peer.submitted.get()
        peer.write(submitted.stream, [END], "stop", stop_token=END)
        await answer

    assert told["tokens"] == list(submitted.generate.prompt)
    assert bare["count"] < told["count"]


@pytest.mark.asyncio
async def test_what_is_no_text_or_token_is_refused_by_name() -> None:
    cases: list[tuple[str, Any, int, str | None]] = [
        ("/tokenize", {}, 400, "prompt"),
        ("/tokenize", {"prompt": 5}, 400, "prompt"),
        ("/tokenize", {"prompt": "a", "model": "other"}, 404, "model"),
        ("/tokenize", {"messages": []}, 400, "messages"),
        ("/tokenize", [], 400, None),
        ("/detokenize", {}, 400, "tokens"),
        ("/detokenize", {"tokens": "a"}, 400, "tokens"),
        ("/detokenize", {"tokens": [-1]}, 400, "tokens"),
        ("/detokenize", {"tokens": [10**6]}, 400, "tokens"),
        ("/abort_requests", {}, 400, "request_ids"),
        ("/abort_requests", {"request_ids": [1]}, 400, "request_ids"),
        ("/abort_requests", {"request_ids": ["a"] * 1025}, 400, "request_ids"),
    ]
    async with serving() as (_, url), plain(url) as client:
        for path, body, status, param in cases:
            response = await client.post(path, json=body)
            error = response.json()["error"]
            assert (response.status_code, error["code"], error["param"]) == (status, status, param), (path, body)
        assert (await client.get("/tokenize")).status_code == 405
        assert (await client.post("/server_info")).status_code == 405


@pytest.mark.asyncio
async def test_the_server_says_what_it_is_and_how_each_rank_does() -> None:
    async with serving() as (peer, url), plain(url) as client:
        waiting = asyncio.ensure_future(client.post("/v1/completions", json={"prompt": "a"}))
        stream = (await peer.submitted.get()).stream
        info = (await client.get("/server_info")).json()
        peer.write(stream, [END], "stop", stop_token=END)
        await waiting
        assert (await client.get("/ping")).status_code == (await client.post("/ping")).status_code == 200

    assert (info["model"], info["max_model_len"], info["requests"], info["stopping"]) == ("tiny-moe", CONTEXT, 1, False)
    shown = [(one["rank"], one["ready"], one["kv_tokens"], one["kv_capacity"]) for one in info["ranks"]]
    assert shown == [(0, True, 1024, 4096), (1, True, 1024, 4096)]


@PATHS
@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.asyncio
async def test_a_request_is_ended_by_its_id(path: str, body: Any, stream: bool) -> None:
    async with serving() as (peer, url), plain(url) as client:
        named = {"headers": {"X-Request-ID": "mine"}, "json": {**body, "stream": stream, "n": 2}}
        answer = asyncio.ensure_future(client.post(path, **named))
        numbers = {(await peer.submitted.get()).stream for _ in range(2)}
        for number in numbers:
            peer.write(number, ANSWER[:3])
        ended = await client.post("/abort_requests", json={"request_ids": ["mine", "nobody's"]})
        found = await answer
        assert ended.json() == {"aborted": ["mine"]}
        assert {await peer.gone.get(), await peer.gone.get()} == numbers
        assert (await client.post("/abort_requests", json={"request_ids": ["mine"]})).json() == {"aborted": []}
        await drained(client)

    assert found.status_code == 200
    bodies = events(found.text)[:-1] if stream else [found.json()]
    reasons = [choice["finish_reason"] for one in bodies for choice in one["choices"] if choice["finish_reason"]]
    assert reasons == ["abort", "abort"]
