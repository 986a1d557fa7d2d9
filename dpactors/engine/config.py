"""What a Hugging Face checkpoint says of itself: config.json and generation_config.json, read once and checked."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, cast

from attrs import frozen

from dpactors.engine.errors import ModelRefused
from dpactors.message.message import Tokens, tokens

SUPPORTED = {"Qwen3MoeForCausalLM": True, "Qwen3ForCausalLM": False}
"""Architecture to whether it has experts."""
DTYPES = ("float32", "bfloat16", "float16")

Json = Mapping[str, Any]


@frozen
class ModelConfig:
    """The numbers of a decoder; experts are 0 in a dense one."""

    architecture: str
    dtype: str
    """Of the checkpoint's weights: float32, bfloat16 or float16."""
    vocab_size: int
    hidden_size: int
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    intermediate_size: int
    """Of dense layers."""
    moe_intermediate_size: int
    experts: int
    experts_per_token: int
    norm_topk: bool
    """Whether the chosen experts' weights are scaled to sum to 1."""
    expert_layers: tuple[bool, ...]
    """Shape [layers]: which have experts."""
    rms_norm_eps: float
    rope_theta: float
    tied_embeddings: bool
    max_model_len: int
    """In tokens."""
    end_tokens: Tokens


def read_config(directory: Path) -> ModelConfig:
    """The configuration of a checkpoint directory, in the spelling of transformers 4 or 5.

    Raises ModelRefused that names the field and what is supported.
    """
    raw = _json(directory / "config.json")
    architecture = _architecture(raw)
    _refuse_unsupported(raw)
    has_experts = SUPPORTED[architecture]
    heads = _integer(raw, "num_attention_heads")
    layers = _integer(raw, "num_hidden_layers")
    hidden = _integer(raw, "hidden_size")
    experts = _integer(raw, "num_experts", "num_local_experts") if has_experts else 0
    config = ModelConfig(
        architecture=architecture,
        dtype=_dtype(raw),
        vocab_size=_integer(raw, "vocab_size"),
        hidden_size=hidden,
        layers=layers,
        heads=heads,
        kv_heads=_integer(raw, "num_key_value_heads", default=heads),
        head_dim=_integer(raw, "head_dim", default=hidden // heads),
        intermediate_size=_integer(raw, "intermediate_size"),
        moe_intermediate_size=_integer(raw, "moe_intermediate_size") if has_experts else 0,
        experts=experts,
        experts_per_token=_integer(raw, "num_experts_per_tok") if has_experts else 0,
        norm_topk=bool(raw.get("norm_topk_prob", False)),
        expert_layers=_expert_layers(raw, layers, experts),
        rms_norm_eps=float(raw.get("rms_norm_eps", 1e-6)),
        rope_theta=_rope_theta(raw),
        tied_embeddings=bool(raw.get("tie_word_embeddings", False)),
        max_model_len=_integer(raw, "max_position_embeddings"),
        end_tokens=_end_tokens(raw, directory),
    )
    if config.heads % config.kv_heads:
        raise ModelRefused(f"config.json: {config.heads} attention heads do not divide by {config.kv_heads} KV heads")
    if config.experts_per_token > config.experts:
        raise ModelRefused(
            f"config.json: num_experts_per_tok is {config.experts_per_token} of {config.experts} experts"
        )
    return config


def _json(path: Path) -> Json:
    try:
        parsed: object = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ModelRefused(f"{path}: cannot be read: {error}") from error
    if not isinstance(parsed, dict):
        raise ModelRefused(f"{path}: must hold an object")
    return cast("Json", parsed)


def _architecture(raw: Json) -> str:
    named: object = raw.get("architectures")
    names = cast("list[object]", named) if isinstance(named, list) else []
    for name in names:
        if isinstance(name, str) and name in SUPPORTED:
            return name
    raise ModelRefused(f"config.json: architectures is {named}; supported are {', '.join(SUPPORTED)}")


def _integer(raw: Json, *names: str, default: int | None = None) -> int:
    for name in names:
        value: object = raw.get(name)
        if isinstance(value, int) and not isinstance(value, bool) and value > 0:
            return value
        if value is not None:
            raise ModelRefused(f"config.json: {name} is {value!r}; it must be a whole number above 0")
    if default is None:
        raise ModelRefused(f"config.json: {names[0]} is missing")
    return default


def _dtype(raw: Json) -> str:
    """`dtype` since transformers 5, `torch_dtype` before."""
    value: object = raw.get("dtype") or raw.get("torch_dtype") or "float32"
    if value not in DTYPES:
        raise ModelRefused(f"config.json: dtype is {value!r}; supported are {', '.join(DTYPES)}")
    return str(value)


def _refuse_unsupported(raw: Json) -> None:
    def refuse(name: str, supported: str) -> None:
        raise ModelRefused(f"config.json: {name} is {raw[name]!r}; supported is {supported}")

    if raw.get("hidden_act", "silu") != "silu":
        refuse("hidden_act", "'silu'")
    if raw.get("attention_bias"):
        refuse("attention_bias", "false")
    if raw.get("use_sliding_window"):
        refuse("use_sliding_window", "false")
    if raw.get("quantization_config"):
        refuse("quantization_config", "none: weights in float32, bfloat16 or float16")
    kinds: object = raw.get("layer_types")
    if isinstance(kinds, list) and any(kind != "full_attention" for kind in cast("list[object]", kinds)):
        refuse("layer_types", "'full_attention' in every layer")
    for name in ("rope_scaling", "rope_parameters"):
        if not _plain_rope(raw.get(name)):
            refuse(name, "rope_type 'default'")


def _plain_rope(rope: object) -> bool:
    if rope is None:
        return True
    table = cast("Json", rope if isinstance(rope, dict) else {"type": "unknown"})
    return table.get("rope_type", table.get("type", "default")) == "default"


def _rope_theta(raw: Json) -> float:
    """Inside `rope_parameters` since transformers 5, beside it before."""
    table = cast("Json", raw.get("rope_parameters") or {})
    return float(table.get("rope_theta", raw.get("rope_theta", 10000.0)))


def _expert_layers(raw: Json, layers: int, experts: int) -> tuple[bool, ...]:
    if not experts:
        return (False,) * layers
    dense = set(cast("list[int]", raw.get("mlp_only_layers") or []))
    every = _integer(raw, "decoder_sparse_step", default=1)
    return tuple(layer not in dense and (layer + 1) % every == 0 for layer in range(layers))


def _end_tokens(raw: Json, directory: Path) -> Tokens:
    """generation_config.json has the last word on what ends an answer; config.json speaks where it is silent."""
    path = directory / "generation_config.json"
    value: object = _json(path).get("eos_token_id") if path.is_file() else None
    if value is None:
        value = raw.get("eos_token_id")
    if value is None:
        return tokens()
    ids = cast("list[object]", value) if isinstance(value, list) else [value]
    if not all(isinstance(one, int) for one in ids):
        raise ModelRefused(f"eos_token_id is {value!r}; it must be a token id or a list of them")
    return tokens(cast("list[int]", ids))
