"""Who and how much is let in: API keys, and a bound on what is in flight."""

import asyncio
from pathlib import Path
from typing import Any

import openai
import pytest

from dpactors.http.keys import KeysFileError, read_keys
from tests.http_peer import ANSWER, BODIES, END, drained, plain, serving
from tests.live.deployment import TOPOLOGIES, cli

PATHS = pytest.mark.parametrize(("path", "body"), BODIES)
KEYS = "# for the team\nfirst-key\n\nsecond-key\n"


@pytest.fixture
def keys(tmp_path: Path) -> str:
    path = tmp_path / "keys"
    path.write_text(KEYS)
    return str(path)


@pytest.mark.asyncio
async def test_a_request_must_bear_one_of_the_keys(keys: str) -> None:
    closed = ["/v1/models", "/load", "/server_info", "/nothing"]
    async with serving(ANSWER, api_keys=keys) as (peer, url), plain(url) as client:
        for shown in (
            None,
            "first-key",
            "Bearer",
            "Bearer third-key",
            "Bearer first-key2",
            "Basic first-key",
        ):
            headers = {} if shown is None else {"Authorization": shown}
            for path in closed:
                refused = await client.get(path, headers=headers)
                error = refused.json()["error"]
                assert (refused.status_code, error["type"]) == (401, "AuthenticationError"), (path, shown)
                assert refused.headers["www-authenticate"] == "Bearer"
            asked = await client.post("/v1/completions", json={"prompt": "a"}, headers=headers)
            assert asked.status_code == 401
        assert not peer.all_submitted
        for key in ("first-key", "second-key"):
            assert (await client.get("/v1/models", headers={"Authorization": f"bearer {key}"})).status_code == 200
        for path in ("/health", "/ping", "/ready", "/metrics", "/version"):
            assert (await client.get(path)).status_code == 200


@pytest.mark.asyncio
async def test_the_official_client_bears_its_key(keys: str) -> None:
    async with serving(ANSWER, api_keys=keys) as (_, url):
        async with openai.AsyncOpenAI(base_url=f"{url}/v1", api_key="second-key", max_retries=0) as good:
            assert (await good.completions.create(model="tiny-moe", prompt="A")).choices[0].finish_reason == "stop"
        async with openai.AsyncOpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0) as bad:
            with pytest.raises(openai.AuthenticationError):
                await bad.completions.create(model="tiny-moe", prompt="A")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (None, "cannot be read: No such file or directory. Name a file with one key a line"),
        ("", "holds no key. Write one a line"),
        ("# none\n", "holds no key"),
        ("good\nbad key\n", "key 2 of"),
        ("schlüssel\n", "key 1 of"),
    ],
)
def test_a_file_that_holds_no_keys_is_refused_before_anything_starts(
    text: str | None, said: str, tmp_path: Path
) -> None:
    file = tmp_path / "keys"
    if text is not None:
        file.write_text(text, encoding="utf-8")
    with pytest.raises(KeysFileError, match=said.partition(".")[0]):
        read_keys(str(file))

    found = cli(
        *("up", str(TOPOLOGIES / "internal_1node.toml"), "--run-dir", str(tmp_path / "run")),
        *("--set", f"roles.frontend.settings.api_keys={file}"),
    )

    assert found.returncode == 2
    assert said in found.stderr


def test_no_file_asks_for_no_key() -> None:
    assert read_keys("") == ()


@PATHS
@pytest.mark.asyncio
async def test_what_would_be_too_much_is_refused_before_any_hop(path: str, body: Any) -> None:
    async with serving(sequences_max=3) as (peer, url), plain(url) as client:
        first = asyncio.ensure_future(client.post(path, json={**body, "n": 2}))
        numbers = [(await peer.submitted.get()).stream for _ in range(2)]
        late = await client.post(path, json={**body, "n": 2})
        third = asyncio.ensure_future(client.post(path, json=body))
        numbers.append((await peer.submitted.get()).stream)
        never = await client.post(path, json={**body, "n": 4})
        for number in numbers:
            peer.write(number, [END], "stop", stop_token=END)
        assert [(await one).status_code for one in (first, third)] == [200, 200]
        again = asyncio.ensure_future(client.post(path, json={**body, "n": 3}))
        for _ in range(3):
            peer.write((await peer.submitted.get()).stream, [END], "stop", stop_token=END)
        assert (await again).status_code == 200
        await drained(client)

    assert (late.status_code, late.headers["retry-after"]) == (429, "1")
    assert late.json()["error"]["type"] == "RateLimitError"
    assert (never.status_code, never.json()["error"]["param"]) == (400, "prompt")


@pytest.mark.asyncio
async def test_prompts_in_flight_are_bounded_by_their_tokens() -> None:
    async with serving(tokens_max=100) as (peer, url), plain(url) as client:
        first = asyncio.ensure_future(client.post("/v1/completions", json={"prompt": [5] * 60}))
        number = (await peer.submitted.get()).stream
        assert (await client.post("/v1/completions", json={"prompt": [5] * 41})).status_code == 429
        assert (await client.post("/v1/completions", json={"prompt": [5] * 101})).status_code == 400
        peer.write(number, [END], "stop", stop_token=END)
        assert (await first).status_code == 200
        second = asyncio.ensure_future(client.post("/v1/completions", json={"prompt": [5] * 100}))
        peer.write((await peer.submitted.get()).stream, [END], "stop", stop_token=END)
        assert (await second).status_code == 200
        await drained(client)
