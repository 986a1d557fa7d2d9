"""SGLang's surface on real processes: turns, a named rank, and the reason afterwards."""

import json
from pathlib import Path

import httpx

from tests.live.deployment import Deployment, until, up


def served_by(deployment: Deployment, **headers: str) -> str:
    body = {"model": "tiny-moe", "prompt": [5, 6, 7], "max_tokens": 3, "ignore_eos": True}
    answer = httpx.post(f"{deployment.url}/v1/completions", json=body, headers=headers, timeout=60)
    assert answer.status_code == 200, answer.text
    return answer.headers["x-dpactors-rank"]


def test_ranks_take_turns_a_named_rank_moves_no_turn_and_the_trace_says_why(tmp_path: Path) -> None:
    with up("sglang_dp", tmp_path) as deployment:
        first = [served_by(deployment, **{"X-Request-ID": f"turn-{n}"}) for n in range(3)]
        named = [served_by(deployment, **{"X-Data-Parallel-Rank": "0"}) for _ in range(2)]
        then = served_by(deployment)

        assert first == ["0", "1", "0"]
        assert named == ["0", "0"]
        assert then == "1"

        def told() -> list[dict[str, object]]:
            found = deployment.cli("trace", "turn-1", "--format", "json")
            story = json.loads(found.stdout) if found.returncode == 0 else []
            return [one for one in story if one["what"] == "client.chose"]

        (chose,) = until(told, "the choice in the story")
        assert (chose["policy"], chose["rank"], chose["reason"]) == ("auto", 1, "next in turn")
        assert chose["candidates"] == "1 alone"
        assert "reason=next in turn" in deployment.cli("trace", "turn-1").stdout
