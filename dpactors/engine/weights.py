"""Weights from safetensors files: one file or a sharded index, and of the experts only this rank's share."""

import json
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, cast

import torch
from attrs import frozen
from safetensors import safe_open
from torch import Tensor

from dpactors.engine.config import ModelConfig
from dpactors.engine.errors import ModelRefused
from dpactors.serving.jobs import Progress

INDEX = "model.safetensors.index.json"
SINGLE = "model.safetensors"


@frozen(eq=False)
class DenseMlp:
    """A gated feed-forward layer."""

    gate_up: Tensor
    """Shape [2 * intermediate, hidden]."""
    down: Tensor
    """Shape [hidden, intermediate]."""


@frozen(eq=False)
class ExpertMlp:
    """A router and the experts of this rank."""

    router: Tensor
    """Shape [experts, hidden]; all of them, on every rank."""
    gate_up: Tensor
    """Shape [local experts, 2 * intermediate, hidden]."""
    down: Tensor
    """Shape [local experts, hidden, intermediate]."""


@frozen(eq=False)
class LayerWeights:
    """One decoder layer; norms are float32, the rest in the model's dtype."""

    input_norm: Tensor
    qkv: Tensor
    """Shape [(heads + 2 * kv_heads) * head_dim, hidden]."""
    q_norm: Tensor
    k_norm: Tensor
    out: Tensor
    """Shape [hidden, heads * head_dim]."""
    post_norm: Tensor
    mlp: DenseMlp | ExpertMlp


@frozen(eq=False)
class ModelWeights:
    """All weights a rank holds."""

    embedding: Tensor
    """Shape [vocab, hidden]."""
    layers: tuple[LayerWeights, ...]
    norm: Tensor
    head: Tensor
    """Shape [vocab, hidden]; the embedding itself where they are tied."""


def local_experts(experts: int, rank: int, size: int) -> range:
    """Which experts `rank` of `size` owns."""
    return range(rank * experts // size, (rank + 1) * experts // size)


class _Files:
    """Open safetensors files by tensor name; only what is asked for is read from disk."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._handles: dict[str, Any] = {}
        if (directory / INDEX).is_file():
            index = cast("dict[str, dict[str, str]]", json.loads((directory / INDEX).read_text(encoding="utf-8")))
            self._file_of = index["weight_map"]
        elif (directory / SINGLE).is_file():
            self._file_of = dict.fromkeys(cast("Iterable[str]", self._open(SINGLE).keys()), SINGLE)
        else:
            raise ModelRefused(f"{directory}: neither {SINGLE} nor {INDEX} is there")

    def _open(self, file: str) -> Any:
        if file not in self._handles:
            path = self._directory / file
            if not path.is_file():
                raise ModelRefused(f"{path}: named in {INDEX} and not there")
            self._handles[file] = safe_open(str(path), framework="pt")
        return self._handles[file]

    def __contains__(self, name: str) -> bool:
        return name in self._file_of

    def tensor(self, name: str) -> Tensor:
        file = self._file_of.get(name)
        if file is None:
            raise ModelRefused(f"{self._directory}: tensor {name} is missing")
        return cast("Tensor", self._open(file).get_tensor(name))


class _Loader:
    """Reads named tensors, checks their shapes, converts them, and counts how far it is."""

    def __init__(self, files: _Files, dtype: torch.dtype, device: str, say: Callable[[Progress], None]) -> None:
        self.files, self.dtype, self.device, self.say = files, dtype, device, say

    def get(self, name: str, *shape: int, dtype: torch.dtype | None = None) -> Tensor:
        found = self.files.tensor(name)
        if tuple(found.shape) != shape:
            raise ModelRefused(f"tensor {name} has shape {list(found.shape)}; config.json says {list(shape)}")
        return found.to(device=self.device, dtype=dtype or self.dtype)

    def norm(self, name: str, length: int) -> Tensor:
        return self.get(name, length, dtype=torch.float32)

    def joined(self, names: Iterable[tuple[str, int]], width: int) -> Tensor:
        """Weights that are applied to one input, under each other: one matmul instead of several."""
        return torch.cat([self.get(name, rows, width) for name, rows in names])


def load_weights(
    directory: Path,
    config: ModelConfig,
    dtype: torch.dtype,
    say: Callable[[Progress], None],
    *,
    rank: int,
    size: int,
    device: str = "cpu",
) -> ModelWeights:
    """Read what `rank` of `size` needs, in `dtype` on `device`; says Progress, 0 to 1.

    Raises ModelRefused where a tensor is missing or has another shape than the configuration says.
    """
    loader = _Loader(_Files(directory), dtype, device, say)
    c = config
    say(Progress(0.0, "reading weights"))
    embedding = loader.get("model.embed_tokens.weight", c.vocab_size, c.hidden_size)
    layers: list[LayerWeights] = []
    for layer in range(c.layers):
        layers.append(_layer(loader, c, layer, local_experts(c.experts, rank, size)))
        say(Progress((layer + 1) / (c.layers + 1), f"weights of layer {layer + 1} of {c.layers}"))
    head = embedding
    if not c.tied_embeddings:
        head = loader.get("lm_head.weight", c.vocab_size, c.hidden_size)
    weights = ModelWeights(embedding, tuple(layers), loader.norm("model.norm.weight", c.hidden_size), head)
    say(Progress(1.0, "weights are loaded"))
    return weights


def _layer(loader: _Loader, c: ModelConfig, layer: int, mine: range) -> LayerWeights:
    at = f"model.layers.{layer}"
    attention = f"{at}.self_attn"
    query, key = c.heads * c.head_dim, c.kv_heads * c.head_dim
    rows = (
        (f"{attention}.q_proj.weight", query),
        (f"{attention}.k_proj.weight", key),
        (f"{attention}.v_proj.weight", key),
    )
    return LayerWeights(
        input_norm=loader.norm(f"{at}.input_layernorm.weight", c.hidden_size),
        qkv=loader.joined(rows, c.hidden_size),
        q_norm=loader.norm(f"{attention}.q_norm.weight", c.head_dim),
        k_norm=loader.norm(f"{attention}.k_norm.weight", c.head_dim),
        out=loader.get(f"{attention}.o_proj.weight", c.hidden_size, query),
        post_norm=loader.norm(f"{at}.post_attention_layernorm.weight", c.hidden_size),
        mlp=_experts(loader, c, at, mine) if c.expert_layers[layer] else _dense(loader, c, at),
    )


def _dense(loader: _Loader, c: ModelConfig, at: str) -> DenseMlp:
    gate_up, down = _gated(loader, f"{at}.mlp", c.hidden_size, c.intermediate_size)
    return DenseMlp(gate_up, down)


def _experts(loader: _Loader, c: ModelConfig, at: str, mine: range) -> ExpertMlp:
    inner, hidden = c.moe_intermediate_size, c.hidden_size
    gate_up = torch.empty(len(mine), 2 * inner, hidden, dtype=loader.dtype, device=loader.device)
    down = torch.empty(len(mine), hidden, inner, dtype=loader.dtype, device=loader.device)
    for index, expert in enumerate(mine):
        gate_up[index], down[index] = _gated(loader, f"{at}.mlp.experts.{expert}", hidden, inner)
    return ExpertMlp(loader.get(f"{at}.mlp.gate.weight", c.experts, hidden), gate_up, down)


def _gated(loader: _Loader, at: str, hidden: int, inner: int) -> tuple[Tensor, Tensor]:
    gate_up = loader.joined(((f"{at}.gate_proj.weight", inner), (f"{at}.up_proj.weight", inner)), hidden)
    return gate_up, loader.get(f"{at}.down_proj.weight", hidden, inner)
