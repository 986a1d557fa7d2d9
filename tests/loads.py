"""Load reports for tests: an idle rank's, with what a test says otherwise."""

from typing import Any

from dpactors.serving.messages import ClientMark, RankLoad

CAPACITY = 4096
"""Tokens of KV."""


def rank_load(rank: int, report: int = 1, kv_used: float = 0.0, seen: int = 0, **counts: Any) -> RankLoad:
    """A report; `seen` dispatches of client 0 are in it."""
    zero = dict.fromkeys(
        ("wave", "step", "waiting", "running", "decoding", "waiting_tokens", "pending_tokens", "step_tokens"), 0
    )
    pace = {"step_left_s": 0.0, "decode_step_s": 0.0, "prefill_token_s": 0.0}
    kv = {"kv_tokens": round(kv_used * CAPACITY), "kv_capacity": CAPACITY}
    accepted = (ClientMark(0, seen),) if seen else ()
    return RankLoad(rank=rank, report=report, accepted=accepted, **{**zero, **pace, **kv, **counts})
