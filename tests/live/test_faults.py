"""Processes are killed under load; their clients do not notice, or only those whose own connection was cut."""

import json
import threading
from pathlib import Path

import httpx

from tests.live.deployment import Deployment, until, up

PROMPTS = [[5 + n, 60 + n, 700 + n] for n in range(8)]


class Streams:
    """Greedy streams of known length over several connections, collected in threads."""

    def __init__(self, url: str, tokens: int) -> None:
        self.tokens: dict[int, list[int]] = {n: [] for n in range(len(PROMPTS))}
        self.failed: dict[int, str] = {}
        self.attempts: dict[int, str] = {}
        self._url = url
        self._length = tokens
        self._threads = [threading.Thread(target=self._read, args=(n,)) for n in self.tokens]
        for thread in self._threads:
            thread.start()

    def wait(self) -> None:
        for thread in self._threads:
            thread.join(120)
        assert not any(thread.is_alive() for thread in self._threads)

    def under_way(self) -> bool:
        return all(len(tokens) > 5 for tokens in self.tokens.values())

    def _read(self, number: int) -> None:
        body = {
            "model": "tiny-moe",
            "prompt": PROMPTS[number],
            "max_tokens": self._length,
            "ignore_eos": True,
            "temperature": 0,
            "stream": True,
            "return_token_ids": True,
        }
        try:
            with httpx.stream("POST", f"{self._url}/v1/completions", json=body, timeout=120) as stream:
                for line in stream.iter_lines():
                    if line.startswith("data: {"):
                        self._take(number, line)
        except httpx.HTTPError as error:
            self.failed[number] = repr(error)

    def _take(self, number: int, line: str) -> None:
        chunk = json.loads(line.removeprefix("data: "))
        if "error" in chunk:
            self.failed[number] = chunk["error"]["message"]
        for choice in chunk.get("choices", ()):
            self.tokens[number].extend(choice.get("token_ids") or ())


def stream_all(deployment: Deployment, tokens: int) -> Streams:
    return Streams(deployment.url, tokens)


def test_a_killed_rank_costs_no_stream_a_token(tmp_path: Path) -> None:
    """Every stream ends at its full length; no token is lost or doubled, and the two halves fit together."""
    with up("internal_1node", tmp_path) as deployment:
        undisturbed = stream_all(deployment, 120)
        undisturbed.wait()
        assert undisturbed.failed == {}

        streams = stream_all(deployment, 120)
        until(streams.under_way, "streams under way")
        assert deployment.cli("fault", "kill", "engine.1").returncode == 0
        streams.wait()

        assert streams.failed == {}
        assert {len(tokens) for tokens in streams.tokens.values()} == {120}
        # Greedy in float32: where two logits tie within rounding, another batch may choose the other one.
        same = sum(streams.tokens[n] == undisturbed.tokens[n] for n in streams.tokens)
        assert same >= len(PROMPTS) - 1


def test_a_killed_front_end_frees_its_requests_and_keeps_its_port(tmp_path: Path) -> None:
    with up("internal_1node", tmp_path) as deployment:
        url = deployment.url
        streams = stream_all(deployment, 1500)
        until(streams.under_way, "streams under way")
        assert "client.0 in the same process" in deployment.cli("fault", "kill", "ingress.0").stdout
        streams.wait()

        assert len(streams.failed) == len(PROMPTS)
        rows = deployment.asleep()
        assert [row["kv_used"] for row in rows] == [0.0, 0.0]
        until(lambda: [r for r in deployment.actors("ingress") if r["state"] == "ready"], "a new front end")
        assert deployment.url == url
        assert "together" in deployment.ask().text
