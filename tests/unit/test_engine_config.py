"""What checkpoints may say, in both spellings, and what is refused with its name."""

import json
from pathlib import Path
from typing import Any

import pytest

from dpactors.engine.config import ModelConfig, read_config
from dpactors.engine.errors import ModelRefused
from dpactors.engine.performer import EnginePerformer
from dpactors.models import model_dir
from dpactors.serving.jobs import LoadModel

MOE: dict[str, Any] = {
    "architectures": ["Qwen3MoeForCausalLM"],
    "hidden_size": 64,
    "num_attention_heads": 4,
    "num_hidden_layers": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "intermediate_size": 96,
    "moe_intermediate_size": 32,
    "num_experts_per_tok": 2,
    "max_position_embeddings": 512,
    "vocab_size": 100,
    "norm_topk_prob": True,
}
SINCE_5 = {
    "dtype": "bfloat16",
    "num_local_experts": 8,
    "rope_parameters": {"rope_theta": 5e5, "rope_type": "default"},
    "layer_types": ["full_attention"] * 4,
    "eos_token_id": [3, 4],
}
BEFORE_5 = {
    "torch_dtype": "bfloat16",
    "num_experts": 8,
    "rope_theta": 5e5,
    "rope_scaling": None,
    "sliding_window": 4096,
    "use_sliding_window": False,
    "eos_token_id": [3, 4],
}


def write(directory: Path, config: dict[str, Any], generation: dict[str, Any] | None = None) -> Path:
    """A checkpoint directory without weights."""
    (directory / "config.json").write_text(json.dumps(config))
    if generation is not None:
        (directory / "generation_config.json").write_text(json.dumps(generation))
    return directory


def read(directory: Path, **changes: Any) -> ModelConfig:
    """Read MOE with changes; None takes a field out."""
    config = {name: value for name, value in {**MOE, **SINCE_5, **changes}.items() if value is not None}
    return read_config(write(directory, config))


def test_both_spellings_mean_the_same(tmp_path: Path) -> None:
    (tmp_path / "old").mkdir()

    new = read_config(write(tmp_path, {**MOE, **SINCE_5}))
    old = read_config(write(tmp_path / "old", {**MOE, **BEFORE_5}))

    assert new == old
    assert ("bfloat16", 5e5, 8, [3, 4]) == (new.dtype, new.rope_theta, new.experts, list(new.end_tokens))


def test_generation_config_has_the_last_word_on_end_tokens(tmp_path: Path) -> None:
    config = read_config(write(tmp_path, {**MOE, **SINCE_5}, {"eos_token_id": 9}))

    assert [9] == list(config.end_tokens)


def test_a_dense_model_has_no_experts(tmp_path: Path) -> None:
    config = read(tmp_path, architectures=["Qwen3ForCausalLM"], head_dim=None, num_key_value_heads=None)

    assert (0, (False,) * 4, 16, 4) == (config.experts, config.expert_layers, config.head_dim, config.kv_heads)


def test_some_layers_may_be_dense(tmp_path: Path) -> None:
    config = read(tmp_path, decoder_sparse_step=2, mlp_only_layers=[3])

    assert (False, True, False, False) == config.expert_layers


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"architectures": ["GPT2LMHeadModel"]}, "architectures is ['GPT2LMHeadModel']; supported are Qwen3Moe"),
        ({"architectures": None}, "architectures is None"),
        ({"rope_parameters": {"rope_type": "yarn"}}, "rope_parameters is {'rope_type': 'yarn'}; supported is"),
        ({"rope_scaling": {"type": "linear", "factor": 2}}, "rope_scaling"),
        ({"use_sliding_window": True}, "use_sliding_window is True; supported is false"),
        ({"layer_types": ["full_attention", "sliding_attention"]}, "layer_types"),
        ({"attention_bias": True}, "attention_bias"),
        ({"hidden_act": "gelu"}, "hidden_act is 'gelu'; supported is 'silu'"),
        ({"quantization_config": {"quant_method": "fp8"}}, "quantization_config"),
        ({"dtype": "float8_e4m3fn"}, "dtype is 'float8_e4m3fn'; supported are float32"),
        ({"num_local_experts": None}, "num_experts is missing"),
        ({"hidden_size": "64"}, "hidden_size is '64'; it must be a whole number"),
        ({"num_key_value_heads": 3}, "4 attention heads do not divide by 3 KV heads"),
        ({"num_experts_per_tok": 9}, "num_experts_per_tok is 9 of 8 experts"),
        ({"eos_token_id": "end"}, "eos_token_id is 'end'"),
    ],
)
def test_what_is_not_supported_is_refused_by_name(tmp_path: Path, changes: dict[str, Any], text: str) -> None:
    with pytest.raises(ModelRefused) as refused:
        read(tmp_path, **changes)

    assert text in str(refused.value)


def test_a_broken_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{")

    with pytest.raises(ModelRefused, match="cannot be read"):
        read_config(tmp_path)


def test_the_bundled_model_is_read() -> None:
    config = read_config(model_dir("tiny-moe"))

    assert (8, 2, 4, 2048) == (config.experts, config.experts_per_token, config.layers, config.max_model_len)
    assert (True,) * 4 == config.expert_layers


@pytest.mark.parametrize(("asked", "kv_blocks", "context"), [(0, 1024, 2048), (100, 1024, 100), (0, 8, 128)])
def test_the_context_is_what_checkpoint_setting_and_cache_allow(asked: int, kv_blocks: int, context: int) -> None:
    loaded = EnginePerformer().perform(LoadModel("tiny-moe", "float32", 1, kv_blocks, 16, asked, 0, 1), lambda _: None)

    assert (context, kv_blocks, 3072) == (loaded.max_model_len, loaded.kv_blocks, loaded.vocab_size)


def test_a_longer_context_than_the_checkpoint_is_refused() -> None:
    with pytest.raises(ModelRefused, match="max_model_len is 4096; the checkpoint goes to 2048"):
        EnginePerformer().perform(LoadModel("tiny-moe", "float32", 1, 8, 16, 4096, 0, 1), lambda _: None)
