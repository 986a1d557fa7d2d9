#!/usr/bin/env python3
"""Write a small dense Qwen3 checkpoint with random weights: what topologies/dense_dp2 serves, and tests compare.

usage: scripts/make_dense.py [DIRECTORY]     (default: build/dense-qwen3 beside scripts/)

The same seed gives the same bytes. Its answers are noise; vocabulary and tokenizer are the bundled model's.
"""

import json
import shutil
import sys
from pathlib import Path

import torch
from safetensors.torch import save_file
from torch import Tensor

from dpactors.models import model_dir

DEFAULT = Path(__file__).resolve().parent.parent / "build" / "dense-qwen3"
COPIED = ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja", "generation_config.json")
HEADS, KV_HEADS, HEAD_DIM, INTERMEDIATE = 4, 2, 32, 256


def write_dense(directory: Path, *, seed: int = 0, layers: int = 4, hidden: int = 128) -> Path:
    """Write the checkpoint to `directory`, replacing files of an earlier one, and return it."""
    source = model_dir("tiny-moe")
    vocabulary = int(json.loads((source / "config.json").read_text(encoding="utf-8"))["vocab_size"])
    directory.mkdir(parents=True, exist_ok=True)
    for name in COPIED:
        if (source / name).is_file():
            shutil.copyfile(source / name, directory / name)
    config = _config(vocabulary, layers, hidden)
    (directory / "config.json").write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")
    weights = _weights(torch.Generator().manual_seed(seed), vocabulary, layers, hidden)
    save_file(weights, str(directory / "model.safetensors"), metadata={"format": "pt"})
    return directory


def _config(vocabulary: int, layers: int, hidden: int) -> dict[str, object]:
    return {
        "architectures": ["Qwen3ForCausalLM"],
        "model_type": "qwen3",
        "attention_bias": False,
        "bos_token_id": 0,
        "eos_token_id": 2,
        "head_dim": HEAD_DIM,
        "hidden_act": "silu",
        "hidden_size": hidden,
        "intermediate_size": INTERMEDIATE,
        "max_position_embeddings": 2048,
        "num_attention_heads": HEADS,
        "num_hidden_layers": layers,
        "num_key_value_heads": KV_HEADS,
        "rms_norm_eps": 1e-6,
        "rope_scaling": None,
        "rope_theta": 1000000.0,
        "tie_word_embeddings": False,
        "torch_dtype": "float32",
        "use_sliding_window": False,
        "vocab_size": vocabulary,
    }


def _weights(generator: torch.Generator, vocabulary: int, layers: int, hidden: int) -> dict[str, Tensor]:
    def matrix(rows: int, columns: int) -> Tensor:
        # Rows that keep the length of their input: neither layer drowns the other.
        return torch.randn(rows, columns, generator=generator) * columns**-0.5

    def norm(length: int) -> Tensor:
        return 1.0 + 0.1 * torch.randn(length, generator=generator)

    weights = {"model.embed_tokens.weight": matrix(vocabulary, hidden), "model.norm.weight": norm(hidden)}
    weights["lm_head.weight"] = matrix(vocabulary, hidden)
    for layer in range(layers):
        at = f"model.layers.{layer}"
        weights |= {
            f"{at}.input_layernorm.weight": norm(hidden),
            f"{at}.post_attention_layernorm.weight": norm(hidden),
            f"{at}.self_attn.q_proj.weight": matrix(HEADS * HEAD_DIM, hidden),
            f"{at}.self_attn.k_proj.weight": matrix(KV_HEADS * HEAD_DIM, hidden),
            f"{at}.self_attn.v_proj.weight": matrix(KV_HEADS * HEAD_DIM, hidden),
            f"{at}.self_attn.o_proj.weight": matrix(hidden, HEADS * HEAD_DIM),
            f"{at}.self_attn.q_norm.weight": norm(HEAD_DIM),
            f"{at}.self_attn.k_norm.weight": norm(HEAD_DIM),
            f"{at}.mlp.gate_proj.weight": matrix(INTERMEDIATE, hidden),
            f"{at}.mlp.up_proj.weight": matrix(INTERMEDIATE, hidden),
            f"{at}.mlp.down_proj.weight": matrix(hidden, INTERMEDIATE),
        }
    return weights


if __name__ == "__main__":
    print(write_dense(Path(sys.argv[1]) if len(sys.argv) > 1 else DEFAULT))
