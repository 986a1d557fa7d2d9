"""The mixture-of-experts layer: choose, send to whom owns the expert, weigh and sum."""

import torch
from torch import Tensor
from torch.nn import functional

from dpactors.engine.config import ModelConfig
from dpactors.engine.exchange import Exchange
from dpactors.engine.weights import ExpertMlp


def gated(rows: Tensor, gate_up: Tensor, down: Tensor) -> Tensor:
    """One gated feed-forward: `rows` [rows, hidden] to the same shape, in two matmuls."""
    gate, up = functional.linear(rows, gate_up).chunk(2, dim=-1)
    return functional.linear(functional.silu(gate) * up, down)


def mixture(x: Tensor, mlp: ExpertMlp, config: ModelConfig, exchange: Exchange, real: Tensor | None) -> Tensor:
    """Each token's weighted sum over its chosen experts, [tokens, hidden] to the same shape.

    `real` are the rows that are no dummies, None where all are; dummies are sent nowhere and get zeros.
    """
    if real is None:
        return _mixture(x, mlp, config, exchange)
    out = torch.zeros_like(x)
    out[real] = _mixture(x[real], mlp, config, exchange)
    return out


def _mixture(x: Tensor, mlp: ExpertMlp, config: ModelConfig, exchange: Exchange) -> Tensor:
    tokens, hidden = x.shape
    top = config.experts_per_token
    shares, chosen = functional.linear(x, mlp.router).softmax(dim=-1, dtype=torch.float32).topk(top, dim=-1)
    if config.norm_topk:
        shares = shares / shares.sum(dim=-1, keepdim=True)
    pairs = chosen.view(-1)
    order = pairs.argsort(stable=True)
    counts = pairs.bincount(minlength=config.experts)

    def compute(rows: Tensor, rows_of: list[int]) -> Tensor:
        outputs: list[Tensor] = []
        at = 0
        for expert, count in enumerate(rows_of):
            if count:
                outputs.append(gated(rows[at : at + count], mlp.gate_up[expert], mlp.down[expert]))
                at += count
        return torch.cat(outputs)

    outputs = exchange.experts(x[order // top], counts, compute)
    # Back in each row's own order of choice: then the sum is the same on whichever ranks the experts live.
    slots = torch.empty_like(outputs)
    slots[order] = outputs
    return (slots.view(tokens, top, hidden) * shares.to(x.dtype).unsqueeze(-1)).sum(dim=1)
