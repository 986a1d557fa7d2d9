"""The HTTP edge on real sockets, with real clients in front and an engine peer of the test behind."""

import asyncio
import json
import socket
import subprocess
import sys
from typing import Any

import httpx
import openai
import pytest
from tokenizers import Tokenizer

from dpactors.http.server import HttpEdge, ListenError, open_socket
from dpactors.http.streams import UNSENT_TOKENS_MAX
from dpactors.models import model_dir
from dpactors.serving.jobs import Availability, ServeHttp
from tests.http_peer import CONTEXT, END, LIMIT_S, READY, EnginePeer, load, serving

TOKENIZER = Tokenizer.from_file(str(model_dir("tiny-moe") / "tokenizer.json"))
SAID = "A wave is one 波 in which all engines run together."
ANSWER = TOKENIZER.encode(SAID).ids
CHAT = {"messages": [{"role": "user", "content": "What is a wave?"}]}
PATHS = pytest.mark.parametrize(
    ("path", "body"), [("/v1/completions", {"prompt": "What"}), ("/v1/chat/completions", CHAT)]
)


def official(url: str) -> openai.AsyncOpenAI:
    return openai.AsyncOpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0, timeout=LIMIT_S)


def plain(url: str) -> httpx.AsyncClient:
    return httpx.AsyncClient(base_url=url, timeout=LIMIT_S)


def events(body: str) -> list[Any]:
    """The data lines of a stream; [DONE] stays text."""
    lines = [line.removeprefix("data: ") for line in body.split("\n\n") if line]
    return [line if line == "[DONE]" else json.loads(line) for line in lines]


async def drained(client: httpx.AsyncClient) -> None:
    """No HTTP request but this one's is left at the edge."""
    async with asyncio.timeout(LIMIT_S):
        while (await client.get("/load")).json() != {"server_load": 0}:
            pass


# ------------------------------------------------------------- the official client


@pytest.mark.asyncio
async def test_the_official_client_is_answered_whole() -> None:
    async with serving(ANSWER) as (peer, url), official(url) as client:
        assert [model.id async for model in client.models.list()] == ["tiny-moe"]
        chat = await client.chat.completions.create(model="tiny-moe", messages=CHAT["messages"], seed=7)  # type: ignore[arg-type]
        completion = await client.completions.create(model="tiny-moe", prompt="A wave", echo=True, max_tokens=30)

    assert chat.choices[0].message.content == SAID
    assert chat.choices[0].finish_reason == "stop"
    assert chat.object == "chat.completion"
    assert chat.usage is not None
    assert chat.usage.completion_tokens == len(ANSWER) + 1
    assert completion.choices[0].text == "A wave" + SAID
    first, second = [submitted.generate for submitted in peer.all_submitted]
    assert first.max_tokens == CONTEXT - len(first.prompt)
    assert (first.sampling.seed, second.max_tokens) == (7, 30)
    assert chat.id == f"chatcmpl-{first.request_id}"
    assert TOKENIZER.decode(list(first.prompt), skip_special_tokens=False).endswith("<|im_start|>assistant\n")
    assert not peer.all_gone


@pytest.mark.asyncio
async def test_the_official_client_streams() -> None:
    async with serving(ANSWER) as (peer, url), official(url) as client:
        options: Any = {"include_usage": True}
        stream = await client.chat.completions.create(
            model="tiny-moe",
            messages=CHAT["messages"],
            stream=True,
            stream_options=options,  # type: ignore[arg-type]
        )
        chunks = [chunk async for chunk in stream]
        texts = [
            part.choices[0].text
            async for part in await client.completions.create(model="tiny-moe", prompt="A", stream=True)
        ]

    assert chunks[0].choices[0].delta.role == "assistant"
    assert "".join([chunk.choices[0].delta.content or "" for chunk in chunks[:-1]]) == SAID
    assert len(chunks) > 5
    assert [chunk.choices[0].finish_reason for chunk in chunks[:-1]] == [None] * (len(chunks) - 2) + ["stop"]
    assert chunks[-1].choices == []
    assert chunks[-1].usage is not None
    assert chunks[-1].usage.completion_tokens == len(ANSWER) + 1
    assert "".join(texts) == SAID
    assert not peer.all_gone


@pytest.mark.asyncio
async def test_prompts_times_n_are_choices_in_order() -> None:
    async with serving(ANSWER) as (peer, url), plain(url) as client:
        body = {"prompt": ["a", [5, 6]], "n": 2, "seed": 40, "stream_options": {"include_usage": True}, "stream": True}
        response = await client.post("/v1/completions", json=body, headers={"X-Request-ID": "many"})
        whole = await client.post("/v1/completions", json={"prompt": ["a", [5, 6]], "n": 2})

    found = events(response.text)
    asked = [submitted.generate for submitted in peer.all_submitted[:4]]
    assert [one.request_id for one in asked] == ["many", "many-1", "many-2", "many-3"]
    assert [one.sampling.seed for one in asked] == [40, 41, 40, 41]
    assert [list(one.prompt) for one in asked[2:]] == [[5, 6], [5, 6]]
    assert len({submitted.generate.sampling.seed for submitted in peer.all_submitted[4:]}) == 4
    for index in range(4):
        choices = [event["choices"][0] for event in found[:-2] if event["choices"][0]["index"] == index]
        assert "".join([choice["text"] for choice in choices]) == SAID
    assert (found[-2]["choices"], found[-1]) == ([], "[DONE]")
    assert found[-2]["usage"]["prompt_tokens"] == len(asked[0].prompt) + 2
    assert [choice["index"] for choice in whole.json()["choices"]] == [0, 1, 2, 3]
    assert {choice["text"] for choice in whole.json()["choices"]} == {SAID}


@PATHS
@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.asyncio
async def test_headers_tell_the_id_the_rank_and_the_attempts(path: str, body: Any, stream: bool) -> None:
    async with serving() as (peer, url), plain(url) as client:
        answer = asyncio.ensure_future(
            client.post(path, json={**body, "stream": stream}, headers={"X-Request-ID": "mine"})
        )
        stream_number = (await peer.submitted.get()).stream
        peer.write(stream_number, [*ANSWER, END], "stop", stop_token=END, rank=0, attempts=2, cached_tokens=1)
        response = await answer

    headers = [response.headers.get(name) for name in ("x-request-id", "x-dpactors-rank", "x-dpactors-attempts")]
    assert headers == ["mine", "0", "2"]


@pytest.mark.asyncio
async def test_token_ids_and_running_usage_on_demand() -> None:
    async with serving(ANSWER) as (_, url), plain(url) as client:
        options = {"include_usage": True, "continuous_usage_stats": True}
        body = {"prompt": [5, 6], "return_token_ids": True, "stream": True, "stream_options": options}
        found = events((await client.post("/v1/completions", json=body)).text)
        body = {**CHAT, "return_token_ids": True}
        whole = (await client.post("/v1/chat/completions", json=body)).json()

    assert found[0]["choices"][0]["prompt_token_ids"] == [5, 6]
    assert [token for event in found[:-2] for token in event["choices"][0]["token_ids"]] == [*ANSWER, END]
    counts = [event["usage"]["completion_tokens"] for event in found[:-1]]
    assert counts == sorted(counts)
    assert counts[-1] == len(ANSWER) + 1
    assert whole["choices"][0]["token_ids"] == [*ANSWER, END]
    assert whole["prompt_token_ids"]


# ------------------------------------------------------------- clients that leave, read slowly or stop early


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


# ------------------------------------------------------------- errors


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


# ------------------------------------------------------------- ranks and figures


@pytest.mark.asyncio
async def test_a_pinned_rank_reaches_the_client_actor() -> None:
    async with serving(ANSWER) as (peer, url), plain(url) as client:
        headers = {"X-data-parallel-rank": "1"}
        assert (await client.post("/v1/completions", json={"prompt": "a"}, headers=headers)).status_code == 200
        peer.edge.feed(Availability((2, 3), 2, CONTEXT))
        body = {"prompt": "a", "data_parallel_rank": 3}
        assert (await client.post("/v1/completions", json=body)).status_code == 200
        assert (await client.post("/v1/completions", json={**body, "data_parallel_rank": 1})).status_code == 400
        # One rank is not known yet: the client actor knows better.
        peer.edge.feed(Availability((2,), 2, CONTEXT))
        assert (await client.post("/v1/completions", json=body)).status_code == 200

    assert [submitted.generate.rank for submitted in peer.all_submitted] == [1, 3, 3]


@pytest.mark.asyncio
async def test_ready_says_what_it_waits_for_and_health_does_not_care() -> None:
    async with serving() as (peer, url), plain(url) as client:
        assert (await client.get("/ready")).json() == {"ready": [0, 1], "total": 2, "waits_for": []}
        peer.edge.feed(Availability((1,), 2, CONTEXT, (load(0), load(1))))
        response = await client.get("/ready")
        assert (response.status_code, response.json()["waits_for"]) == (503, [0])
        peer.edge.feed(Availability((), 0, 0))
        assert (await client.get("/ready")).status_code == 503
        assert (await client.get("/health")).status_code == 200
        assert (await client.get("/v1/models")).json()["data"][0]["max_model_len"] == CONTEXT


def series(text: str) -> dict[str, float]:
    return {line.rpartition(" ")[0]: float(line.rpartition(" ")[2]) for line in text.splitlines() if line[0] != "#"}


@pytest.mark.asyncio
async def test_metrics_have_vllms_names_and_add_up() -> None:
    async with serving(ANSWER) as (peer, url), plain(url) as client:
        for _ in range(3):
            await client.post("/v1/completions", json={"prompt": [5, 6]})
        leaver = asyncio.ensure_future(client.post("/v1/completions", json={"prompt": [5], "stream": True}))
        loads = (load(0, waiting=4), load(1, running=2))
        peer.edge.feed(Availability((0, 1), 2, CONTEXT, loads, wave=6, running=True))
        assert (await leaver).status_code == 200
        found = series((await client.get("/metrics")).text)

    rank = '{engine="1",model_name="tiny-moe"}'
    assert found["vllm:prompt_tokens_total" + rank] == 7
    assert found["vllm:generation_tokens_total" + rank] == 4 * (len(ANSWER) + 1)
    assert found['vllm:request_success_total{engine="1",finished_reason="stop",model_name="tiny-moe"}'] == 4
    for name in ("e2e_request_latency_seconds", "time_to_first_token_seconds", "request_generation_tokens"):
        assert found[f"vllm:{name}_count{rank}"] == 4
        assert found[f"vllm:{name}_count{rank.replace('1', '0', 1)}"] == 0
    assert found["vllm:inter_token_latency_seconds_count" + rank] == 4 * len(ANSWER)
    assert found['vllm:request_prompt_tokens_bucket{engine="1",le="1.0",model_name="tiny-moe"}'] == 1
    assert found['vllm:request_prompt_tokens_bucket{engine="1",le="2.0",model_name="tiny-moe"}'] == 4
    assert found['vllm:time_to_first_token_seconds_bucket{engine="1",le="0.001",model_name="tiny-moe"}'] >= 0
    assert found['vllm:num_requests_waiting{engine="0",model_name="tiny-moe"}'] == 4
    assert found["vllm:num_requests_running" + rank] == 2
    assert found["vllm:kv_cache_usage_perc" + rank] == 0.25
    own = [found[f'dpactors:{name}{{model_name="tiny-moe"}}'] for name in ("wave", "wave_running", "ranks_ready")]
    assert own == [6, 1, 2]


# ------------------------------------------------------------- sockets, start and stop


@pytest.mark.asyncio
async def test_two_edges_serve_one_inherited_socket_and_outlive_each_other() -> None:
    one_shot = httpx.AsyncClient(limits=httpx.Limits(max_keepalive_connections=0), timeout=LIMIT_S)
    with open_socket("127.0.0.1:0") as shared:
        port = shared.getsockname()[1]

        async def ask() -> int:
            body = {"prompt": "a"}
            return (await one_shot.post(f"http://127.0.0.1:{port}/v1/completions", json=body)).status_code

        async with serving(ANSWER, lambda: HttpEdge([shared])) as (first, url):
            async with serving(ANSWER, lambda: HttpEdge([shared])) as (second, same):
                assert url == same == f"http://127.0.0.1:{port}"

                assert set(await asyncio.gather(*[ask() for _ in range(60)])) == {200}
                assert len(first.all_submitted) + len(second.all_submitted) == 60
            assert [await ask() for _ in range(5)] == [200] * 5
        async with serving(ANSWER, lambda: HttpEdge([shared])):
            assert await ask() == 200
    await one_shot.aclose()


@pytest.mark.asyncio
async def test_a_stop_ends_what_is_in_flight_and_says_so() -> None:
    edge = HttpEdge()
    peer = EnginePeer(edge)
    edge.feed(READY)
    task = asyncio.ensure_future(edge.perform(ServeHttp("tiny-moe", "tiny-moe", "127.0.0.1:0"), peer.say))
    url = (await peer.urls)[0]
    async with plain(url) as client:
        waiting = asyncio.ensure_future(client.post("/v1/completions", json={"prompt": "a"}))
        await peer.submitted.get()
        lines: list[str] = []

        async def read() -> None:
            async with client.stream("POST", "/v1/completions", json={"prompt": "a", "stream": True}) as response:
                async for line in response.aiter_lines():
                    lines.append(line)
                    if len(lines) == 1:
                        task.cancel()

        reading = asyncio.ensure_future(read())
        peer.write((await peer.submitted.get()).stream, ANSWER[:1])
        with pytest.raises(httpx.RemoteProtocolError):
            await reading
        response = await waiting
        with pytest.raises(asyncio.CancelledError):
            await task
        assert (response.status_code, response.headers["retry-after"]) == (503, "1")
        assert "shutting down" in lines[2]
        assert "data: [DONE]" not in lines
        assert peer.all_gone == {1, 2}
        with pytest.raises(httpx.ConnectError):
            await client.get("/health")


@pytest.mark.parametrize("listen", ["nonsense", "127.0.0.1:99999", "127.0.0.1:x", "203.0.113.1:0"])
@pytest.mark.asyncio
async def test_a_place_that_cannot_be_listened_on_is_named(listen: str) -> None:
    with pytest.raises(ListenError, match="listen"):
        await HttpEdge().perform(ServeHttp("tiny-moe", "tiny-moe", listen), print)


@pytest.mark.asyncio
async def test_a_model_that_is_not_there_is_named() -> None:
    with pytest.raises(FileNotFoundError, match="no-such-model"):
        await HttpEdge().perform(ServeHttp("no-such-model", "x", "127.0.0.1:0"), print)


CONTROL_PROCESS = """
import asyncio, sys
from tests.http_peer import serving
import httpx

async def main():
    async with serving([5, 6, 7]) as (_, url), httpx.AsyncClient(base_url=url) as client:
        for _ in range(20):
            assert (await client.post("/v1/completions", json={"prompt": "a"})).status_code == 200
        await client.get("/metrics")
        pss = next(line for line in open("/proc/self/smaps_rollup") if line.startswith("Pss:")).split()[1]
        print(pss, *[name for name in ("torch", "transformers", "numpy") if name in sys.modules])

asyncio.run(main())
"""


def test_the_edge_is_a_light_process_without_torch() -> None:
    done = subprocess.run([sys.executable, "-c", CONTROL_PROCESS], capture_output=True, text=True, check=True)

    pss_kib, *heavy = done.stdout.splitlines()[0].split()
    assert not heavy
    assert int(pss_kib) < 120 * 1024


def test_the_edge_serves_on_uvloop_too() -> None:
    uvloop = pytest.importorskip("uvloop")

    async def main() -> None:
        async with serving(ANSWER) as (_, url), plain(url) as client:
            response = await client.post("/v1/completions", json={"prompt": "a", "stream": True})
            assert events(response.text)[-1] == "[DONE]"

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(main())
