"""Clients that leave, read slowly or stop early; errors before and after the first byte."""

import asyncio
import json
import socket
from typing import Any

import httpx
import openai
import pytest

from dpactors.http.streams import UNSENT_TOKENS_MAX
from tests.http_peer import (
    ANSWER,
    BODIES,
    CHAT,
    CONTEXT,
    END,
    LIMIT_S,
    SAID,
    TOKENIZER,
    drained,
    events,
    official,
    plain,
    serving,
)

PATHS = pytest.mark.parametrize(("path", "body"), BODIES)


@PATHS
@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("phase", ["queued", "answering"])
@pytest.mark.asyncio
async def test_a_client_that_leaves_is_told_in_every_phase(path: str, body: Any, stream: bool, phase: str) -> None:
    async with serving() as (peer, url), plain(url) as client:
        async with plain(url) as leaver:
            answer = asyncio.ensure_future(leaver.post(path, json={**body, "stream": stream, "n": 2}))
            numbers = {(await peer.submitted.get()).stream for _ in range(2)}
            if phase == "answering":
                for number in numbers:
                    peer.write(number, ANSWER[:3])
                await client.get("/health")
            assert not peer.all_gone
            answer.cancel()
            await asyncio.wait([answer])
        async with asyncio.timeout(LIMIT_S):
            assert {await peer.gone.get(), await peer.gone.get()} == numbers
        for number in numbers:
            peer.write(number, ANSWER, "length")  # news for streams that were given up changes nothing
        await drained(client)
        assert peer.gone.empty()


@pytest.mark.asyncio
async def test_a_client_that_leaves_before_its_body_is_whole_submits_nothing() -> None:
    async with serving() as (peer, url), plain(url) as client:
        _, writer = await asyncio.open_connection("127.0.0.1", int(url.rpartition(":")[2]))
        writer.write(b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: 100\r\n\r\n{")
        await writer.drain()
        await client.get("/health")
        writer.close()
        await drained(client)
        assert not peer.all_submitted


async def raw_request(url: str, body: dict[str, Any]) -> socket.socket:
    """A connection with a small receive buffer that sent `body` and reads nothing."""
    made = socket.socket()
    made.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    made.setblocking(False)
    loop = asyncio.get_running_loop()
    await loop.sock_connect(made, ("127.0.0.1", int(url.rpartition(":")[2])))
    content = json.dumps(body).encode()
    await loop.sock_sendall(
        made, b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n%s" % (len(content), content)
    )
    return made


@pytest.mark.asyncio
async def test_a_slow_reader_costs_its_own_stream_only() -> None:
    async with serving() as (peer, url), plain(url) as client:
        slow = await raw_request(url, {"prompt": "a", "stream": True})
        slow_number = (await peer.submitted.get()).stream
        good = asyncio.ensure_future(client.post("/v1/completions", json={"prompt": "a", "stream": True}))
        good_number = (await peer.submitted.get()).stream
        written = 0
        async with asyncio.timeout(LIMIT_S):
            while slow_number not in peer.all_gone:
                peer.write(slow_number, [ANSWER[0]])
                peer.write(good_number, [ANSWER[0]])
                written += 1
                await asyncio.sleep(0)
        assert written > UNSENT_TOKENS_MAX
        peer.write(good_number, [END], "stop", stop_token=END)
        found = events((await good).text)
        assert "".join([event["choices"][0]["text"] for event in found[:-1]]) == TOKENIZER.decode([ANSWER[0]]) * written
        assert peer.all_gone == {slow_number}
        slow.close()
        await drained(client)


@pytest.mark.asyncio
async def test_many_tokens_at_once_are_no_slow_reader() -> None:
    async with serving() as (peer, url), plain(url) as client:
        answer = asyncio.ensure_future(client.post("/v1/completions", json={"prompt": "a", "stream": True}))
        number = (await peer.submitted.get()).stream
        for _ in range(3 * UNSENT_TOKENS_MAX):
            peer.write(number, [ANSWER[0]])
        peer.write(number, [], "length")
        found = events((await answer).text)

    assert len(found) == 2, "what is ready together is one event"
    assert found[0]["choices"][0]["text"] == TOKENIZER.decode([ANSWER[0]]) * (3 * UNSENT_TOKENS_MAX)
    assert not peer.all_gone


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.asyncio
async def test_a_stop_string_ends_the_sequence_at_its_engine(stream: bool) -> None:
    async with serving(ANSWER) as (peer, url), plain(url) as client:
        body = {**CHAT, "stop": ["all engines"], "stream": stream, "stream_options": {"include_usage": True}}
        if not stream:
            del body["stream_options"]
        response = await client.post("/v1/chat/completions", json=body)
        await drained(client)

    assert peer.all_gone == {1}
    if stream:
        found = events(response.text)
        choices = [event["choices"][0] for event in found[:-2]]
        text, last = "".join([choice["delta"].get("content", "") for choice in choices]), choices[-1]
        usage = found[-2]["usage"]
    else:
        last, usage = response.json()["choices"][0], response.json()["usage"]
        text = last["message"]["content"]
    assert text == SAID.partition("all engines")[0]
    assert (last["finish_reason"], last["stop_reason"]) == ("stop", "all engines")
    assert usage["completion_tokens"] < len(ANSWER)


@PATHS
@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(("status", "told"), [(503, 503), (400, 400), (500, 500), (200, 500)])
@pytest.mark.asyncio
async def test_an_error_before_the_first_byte_is_a_status(
    path: str, body: Any, stream: bool, status: int, told: int
) -> None:
    async with serving() as (peer, url), plain(url) as client:
        answer = asyncio.ensure_future(client.post(path, json={**body, "stream": stream, "n": 2}))
        first, second = [(await peer.submitted.get()).stream for _ in range(2)]
        peer.write(first, [], "error", error="rank 1 was lost", status=status, rank=None)
        response = await answer
        assert await peer.gone.get() == second

    assert response.status_code == told
    assert response.json()["error"]["message"] == "rank 1 was lost"
    assert (response.headers.get("retry-after") is not None) == (told == 503)


@pytest.mark.asyncio
async def test_an_error_after_the_first_byte_is_an_event_and_no_success() -> None:
    async with serving() as (peer, url), plain(url) as client:
        lines: list[str] = []

        async def read() -> None:
            async with client.stream(
                "POST", "/v1/completions", json={"prompt": ["a", "b"], "stream": True}
            ) as response:
                async for line in response.aiter_lines():
                    lines.append(line)
                    if len(lines) == 1:
                        peer.write(first, ANSWER[1:2], "error", error="rank 1 was lost", status=503)

        reading = asyncio.ensure_future(read())
        first, second = [(await peer.submitted.get()).stream for _ in range(2)]
        peer.write(first, ANSWER[:1])
        with pytest.raises(httpx.RemoteProtocolError):
            await reading
        assert await peer.gone.get() == second

    told = json.loads(lines[-2].removeprefix("data: "))
    assert told["error"] == {
        "message": "rank 1 was lost",
        "type": "ServiceUnavailableError",
        "param": None,
        "code": 503,
    }
    assert not any("[DONE]" in line for line in lines)


@pytest.mark.asyncio
async def test_the_official_client_raises_on_an_error_in_the_stream() -> None:
    async with serving() as (peer, url), official(url) as client:
        opening = asyncio.ensure_future(client.completions.create(model="tiny-moe", prompt="a", stream=True))
        number = (await peer.submitted.get()).stream
        peer.write(number, ANSWER[:2])
        stream = await opening
        text: list[str] = []

        async def read() -> None:
            async for part in stream:
                text.append(part.choices[0].text)
                peer.write(number, [], "error", error="rank 1 was lost", status=503)

        with pytest.raises(openai.APIError, match="rank 1 was lost"):
            await read()
    assert "".join(text) == TOKENIZER.decode(ANSWER[:2])


@pytest.mark.asyncio
async def test_refusals_before_any_hop() -> None:
    async with serving() as (peer, url), plain(url) as client:
        long = {"prompt": [5] * CONTEXT}
        cases: list[tuple[dict[str, Any], int, str | None]] = [
            ({"json": {"prompt": "a", "model": "other"}}, 404, "model"),
            ({"json": long}, 400, "prompt"),
            ({"json": {"prompt": [5] * 2000, "max_tokens": 49}}, 400, "max_tokens"),
            ({"json": {"prompt": [3072]}}, 400, "prompt"),
            ({"json": {"prompt": ""}}, 400, "prompt"),
            ({"json": {"prompt": "a", "data_parallel_rank": 2}}, 400, "data_parallel_rank"),
            ({"json": {"prompt": "a"}, "headers": {"X-data-parallel-rank": "7"}}, 400, "data_parallel_rank"),
            ({"json": {"prompt": "a"}, "headers": {"X-Request-ID": "a b"}}, 400, None),
            ({"json": {"prompt": "a", "logprobs": 1}}, 400, "logprobs"),
            ({"content": b"{", "headers": {"content-type": "application/json"}}, 400, None),
            ({"content": b"{}", "headers": {"content-type": "text/plain"}}, 400, None),
            ({"content": b" " * (4 << 20) + b"{}"}, 413, None),
        ]
        for request, status, param in cases:
            response = await client.post("/v1/completions", **request)
            error = response.json()["error"]
            assert (response.status_code, error["code"], error["param"]) == (status, status, param), error
        assert (await client.get("/v1/completions")).status_code == 405
        assert (await client.post("/health")).json()["error"]["code"] == 405
        assert (await client.get("/nothing")).json()["error"]["code"] == 404
        assert not peer.all_submitted


@pytest.mark.parametrize("length", [b"Content-Length: 12582912", b"Transfer-Encoding: chunked"])
@pytest.mark.asyncio
async def test_a_client_that_writes_all_before_it_reads_still_reads_its_refusal(length: bytes) -> None:
    part = b"100000\r\n" + b" " * (1 << 20) + b"\r\n" if length.endswith(b"chunked") else b" " * (1 << 20)
    async with serving() as (_, url):
        reader, writer = await asyncio.open_connection("127.0.0.1", int(url.rpartition(":")[2]))
        writer.write(b"POST /v1/completions HTTP/1.1\r\nHost: x\r\n" + length + b"\r\n\r\n")
        async with asyncio.timeout(LIMIT_S):
            for _ in range(12):
                writer.write(part)
                await writer.drain()
            writer.write(b"0\r\n\r\n" if length.endswith(b"chunked") else b"")
            answer = await reader.read()
        writer.close()

    assert answer.startswith(b"HTTP/1.1 413 ")
    assert b"connection: close" in answer


@pytest.mark.asyncio
async def test_an_id_names_one_request_at_a_time() -> None:
    async with serving() as (peer, url), plain(url) as client:
        named: dict[str, Any] = {"json": {"prompt": "a"}, "headers": {"X-Request-ID": "same"}}
        first = asyncio.ensure_future(client.post("/v1/completions", **named))
        number = (await peer.submitted.get()).stream
        assert (await client.post("/v1/completions", **named)).status_code == 409
        peer.write(number, [END], "stop", stop_token=END)
        assert (await first).status_code == 200
        again = asyncio.ensure_future(client.post("/v1/completions", **named))
        peer.write((await peer.submitted.get()).stream, [END], "stop", stop_token=END)
        assert (await again).status_code == 200


@pytest.mark.parametrize(
    ("sent", "status"),
    [
        (b"NONSENSE\r\n\r\n", 400),
        (b"POST /v1/completions HTTP/1.1\r\nContent-Length: 2\r\nContent-Length: 3\r\n\r\n{}", 400),
        (b"POST / HTTP/1.1\r\nContent-Length: 2\r\nTransfer-Encoding: chunked\r\n\r\n{}", 400),
        (b"GET /health HTTP/1.1\r\nA: " + b"a" * (20 << 10) + b"\r\n\r\n", 431),
        (b"GET /health HTTP/1.1\r\nA: " + b"a" * (30 << 10), 431),
        (b"GET /health HTTP/1.1\r\n" + b"A: a\r\n" * 101 + b"\r\n", 431),
    ],
)
@pytest.mark.asyncio
async def test_what_is_no_request_is_refused_and_closed(sent: bytes, status: int) -> None:
    async with serving() as (_, url):
        reader, writer = await asyncio.open_connection("127.0.0.1", int(url.rpartition(":")[2]))
        writer.write(sent)
        async with asyncio.timeout(LIMIT_S):
            answer = await reader.read()
        writer.close()

    head, _, body = answer.partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 %d " % status)
    assert json.loads(body)["error"]["code"] == status
