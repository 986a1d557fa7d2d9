"""The decoder's forward over one step."""

import torch
from torch import Tensor
from torch.nn import functional

from dpactors.engine.attention import KVCache, attend, plan_attention
from dpactors.engine.config import ModelConfig
from dpactors.engine.exchange import Exchange
from dpactors.engine.experts import gated, mixture
from dpactors.engine.tensors import int_tensor, split
from dpactors.engine.weights import DenseMlp, ModelWeights
from dpactors.serving.jobs import RunStep


class Decoder:
    """A Qwen3 decoder, dense or with experts, and its KV cache."""

    def __init__(self, config: ModelConfig, weights: ModelWeights, cache: KVCache, max_model_len: int) -> None:
        """`max_model_len` in tokens: how far positions go."""
        self.config = config
        self.weights = weights
        self.cache = cache
        self._dtype = weights.embedding.dtype
        self._device = str(weights.embedding.device)
        self._cos, self._sin = _rotations(config, max_model_len, self._device)
        # One norm over query and key heads together: their weights differ, so they stand side by side.
        self._head_norms = [
            torch.cat([layer.q_norm.expand(config.heads, -1), layer.k_norm.expand(config.kv_heads, -1)])
            for layer in weights.layers
        ]

    def forward(self, step: RunStep, exchange: Exchange) -> Tensor:
        """Logits of the sequences that draw a token, float32 [draws, vocab]; writes the step's KV.

        Raises ExchangeLost when a rank of the group is gone.
        """
        plan = plan_attention(step, self.cache.block_size, self._device)
        positions = int_tensor(step.positions, self._device)
        cos, sin = self._cos[positions].unsqueeze(1), self._sin[positions].unsqueeze(1)
        x = functional.embedding(int_tensor(step.tokens, self._device), self.weights.embedding)
        for index, layer in enumerate(self.weights.layers):
            query, keys, values = self._project(index, self._norm(x, layer.input_norm), cos, sin)
            attended = attend(plan, self.cache.layers[index], query, keys, values)
            x = x + functional.linear(attended, layer.out)
            normed = self._norm(x, layer.post_norm)
            if isinstance(layer.mlp, DenseMlp):
                x = x + gated(normed, layer.mlp.gate_up, layer.mlp.down)
            else:
                x = x + mixture(normed, layer.mlp, self.config, exchange, plan.writable)
        last = x[int_tensor(_drawing_rows(step), self._device)]
        return functional.linear(self._norm(last, self.weights.norm), self.weights.head).float()

    def _norm(self, x: Tensor, weight: Tensor) -> Tensor:
        return functional.rms_norm(x.float(), weight.shape, weight, self.config.rms_norm_eps).to(self._dtype)

    def _project(self, layer: int, x: Tensor, cos: Tensor, sin: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Query, key and value heads, each [tokens, heads, head_dim], the first two normed and rotated."""
        c = self.config
        heads = functional.linear(x, self.weights.layers[layer].qkv).view(x.shape[0], -1, c.head_dim)
        turned, values = split(heads, [c.heads + c.kv_heads, c.kv_heads], dim=1)
        normed = functional.rms_norm(turned.float(), (c.head_dim,), None, c.rms_norm_eps) * self._head_norms[layer]
        first, second = normed.chunk(2, dim=-1)
        rotated = torch.cat([first * cos - second * sin, second * cos + first * sin], dim=-1).to(self._dtype)
        query, keys = split(rotated, [c.heads, c.kv_heads], dim=1)
        return query, keys, values


def _drawing_rows(step: RunStep) -> list[int]:
    rows: list[int] = []
    end = 0
    for part in step.sequences:
        end += part.query
        if part.sampling is not None:
            rows.append(end - 1)
    return rows


def _rotations(config: ModelConfig, max_model_len: int, device: str) -> tuple[Tensor, Tensor]:
    """Cosine and sine of each position's angles, float32 [max_model_len, head_dim / 2]."""
    exponent = torch.arange(0, config.head_dim, 2, dtype=torch.float32) / config.head_dim
    angles = torch.outer(torch.arange(max_model_len, dtype=torch.float32), 1.0 / config.rope_theta**exponent)
    return angles.cos().to(device), angles.sin().to(device)
