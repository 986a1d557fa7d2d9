"""The HTTP edge on real sockets: real clients in front, an engine peer of the test behind."""

import asyncio
from typing import Any

import pytest

from dpactors.serving.jobs import Availability
from tests.http_peer import ANSWER, BODIES, CHAT, CONTEXT, END, SAID, TOKENIZER, events, load, official, plain, serving

PATHS = pytest.mark.parametrize(("path", "body"), BODIES)


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


@pytest.mark.asyncio
async def test_a_pinned_rank_reaches_the_client_actor() -> None:
    async with serving(ANSWER) as (peer, url), plain(url) as client:
        headers = {"X-data-parallel-rank": "1"}
        assert (await client.post("/v1/completions", json={"prompt": "a"}, headers=headers)).status_code == 200
        peer.edge.feed(Availability((2, 3), (2, 3), CONTEXT))
        body = {"prompt": "a", "data_parallel_rank": 3}
        assert (await client.post("/v1/completions", json=body)).status_code == 200
        assert (await client.post("/v1/completions", json={**body, "data_parallel_rank": 1})).status_code == 400
        # One rank is not known yet: the client actor knows better.
        peer.edge.feed(Availability((2,), (2, 3), CONTEXT))
        assert (await client.post("/v1/completions", json=body)).status_code == 200

    assert [submitted.generate.rank for submitted in peer.all_submitted] == [1, 3, 3]


@pytest.mark.asyncio
async def test_ready_says_what_it_waits_for_and_health_does_not_care() -> None:
    async with serving() as (peer, url), plain(url) as client:
        assert (await client.get("/ready")).json() == {"ready": [0, 1], "total": 2, "waits_for": []}
        peer.edge.feed(Availability((1,), (0, 1), CONTEXT, (load(0), load(1))))
        response = await client.get("/ready")
        assert (response.status_code, response.json()["waits_for"]) == (503, [0])
        peer.edge.feed(Availability((), (), 0))
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
        peer.edge.feed(Availability((0, 1), (0, 1), CONTEXT, loads, wave=6, running=True))
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
