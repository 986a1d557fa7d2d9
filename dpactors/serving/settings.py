"""What ``[roles.X] settings`` may hold: one frozen class an actor; unit and meaning in each field's metadata."""

from typing import Any

from attrs import field, frozen, validators

from dpactors.serving.policy.registry import POLICIES


def setting(default: Any, meaning: str, unit: str = "", check: Any = None) -> Any:
    """A setting with its one-line meaning and unit for ``check --explain``."""
    return field(default=default, metadata={"meaning": meaning, "unit": unit}, validator=check)


_at_least_1 = validators.ge(1)
_positive = validators.gt(0)
_int64 = validators.and_(validators.ge(-(1 << 63)), validators.lt(1 << 63))
_size = validators.and_(validators.ge(1), validators.le(1 << 24))
"""No engine of today holds more; a slip of the keyboard is told by ``check``, not by an allocation."""


@frozen
class IngressSettings:
    """The HTTP front door."""

    listen: str = setting(
        "127.0.0.1:8000", "address and port; ':8000' is the host's own address, ':800{index}' one port an instance"
    )
    served_name: str = setting("", "model name in the API; empty takes the last part of the model path")
    model: str = setting("tiny-moe", "bundled name or checkpoint directory whose tokenizer and chat template are used")
    sequences_max: int = setting(
        2048, "in flight at this front end; more are refused with 429", "sequences", _at_least_1
    )
    tokens_max: int = setting(
        8_388_608, "of the prompts in flight here; more are refused with 429", "tokens", _at_least_1
    )
    api_keys: str = setting("", "file of API keys, one a line, of which requests must bear one; empty asks for none")


@frozen
class ClientSettings:
    """The data-parallel load balancer."""

    policy: str = setting("vllm", "how a rank is chosen", check=validators.in_(tuple(POLICIES)))
    policy_seed: int = setting(0, "power_of_two: another seed draws other pairs", check=_int64)
    prefix_tokens: int = setting(256, "prefix_affinity: prompts alike so far go to one rank", "tokens", _at_least_1)
    pd_role: str = setting(
        "none",
        "auto: 'prefill' follows bootstrap rooms, the others take turns",
        check=validators.in_(("none", "prefill", "decode")),
    )
    attempts_max: int = setting(4, "ranks that may begin one request before it fails", "ranks", _at_least_1)
    hold_s: float = setting(60.0, "how long a request whose rank was lost waits for one that is ready", "s", _positive)


@frozen
class CoordinatorSettings:
    """Snapshots, waves, membership."""

    snapshot_interval_s: float = setting(0.1, "between two snapshots while loads change", "s", _positive)
    start_retry_s: float = setting(0.1, "before START_DP_WAVE is repeated to ranks that did not join", "s", _positive)


@frozen
class EngineSettings:
    """One data-parallel replica."""

    model: str = setting("tiny-moe", "bundled name or Hugging Face checkpoint directory")
    dtype: str = setting("float32", "weights and activations", check=validators.in_(("auto", "float32", "bfloat16")))
    threads: int = setting(1, "intra-op threads of the process", "threads", _at_least_1)
    kv_blocks: int = setting(1024, "KV blocks reserved", "blocks", _size)
    block_size: int = setting(16, "tokens of one KV block", "tokens", _size)
    max_model_len: int = setting(0, "longest prompt + output; 0 takes the checkpoint's limit", "tokens")
    max_running: int = setting(64, "requests in one step", "requests", _at_least_1)
    max_step_tokens: int = setting(2048, "tokens in one step, prefill and decode together", "tokens", _at_least_1)
    exchange: str = setting(
        "auto",
        "how expert rows travel: 'auto' takes shared memory if all ranks are on one host, else gloo; 'shared' refuses"
        " a second host; 'gloo' is TCP everywhere",
        check=validators.in_(("auto", "shared", "gloo")),
    )
    sync_interval: int = setting(16, "steps between finish agreements of a group", "steps", _at_least_1)
    report_interval_s: float = setting(0.1, "between two load reports while nothing changes", "s", _positive)
    wake_retry_s: float = setting(0.1, "before a rank with work repeats that it wants a wave", "s", _positive)
