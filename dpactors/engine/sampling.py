"""Drawing tokens: a pure function of logits, sampling parameters and output position.

No generator is kept: the uniform number of a draw is a hash of (seed, position), so a continuation on another rank
draws what this one would have drawn.
"""

import struct
from collections.abc import Iterable
from hashlib import blake2b

import torch
from torch import Tensor

from dpactors.engine.tensors import int_list
from dpactors.message.message import Tokens, tokens
from dpactors.serving.jobs import SequenceSlice
from dpactors.serving.messages import Sampling

_WORD = 2**64


def uniform(seed: int, position: int) -> float:
    """A number in [0, 1) that depends on nothing else."""
    digest = blake2b(struct.pack("<QQ", seed % _WORD, position % _WORD), digest_size=8).digest()
    return (int.from_bytes(digest, "little") >> 11) / 2**53  # 53 bits are what a float64 can hold


def draw(logits: Tensor, sequences: Iterable[SequenceSlice]) -> Tokens:
    """One token for each of `sequences` that has sampling, in order; `logits` is float32 [draws, vocab]."""
    drawing = [part for part in sequences if part.sampling is not None]
    assert logits.shape[0] == len(drawing), "one row of logits for each drawn token"
    if not drawing:
        return tokens()
    for row, part in enumerate(drawing):
        if part.banned:
            ids = [one for one in part.banned if 0 <= one < logits.shape[1]]
            logits[row, ids] = -torch.inf
    chosen = int_list(logits.argmax(dim=-1))
    for row, part in enumerate(drawing):
        if part.sampling is not None and part.sampling.temperature > 0:
            chosen[row] = draw_one(logits[row], part.sampling, part.position)
    return tokens(chosen)


def draw_one(logits: Tensor, sampling: Sampling, position: int) -> int:
    """Inverse of the cumulative distribution at `uniform(seed, position)`; `logits` is [vocab].

    Top-k first, then the smallest set that holds top_p of what is left, as in vLLM. Ids keep their order in the
    distribution: two nearly equal logits that change places then change next to nothing.
    """
    scaled = logits.double() / sampling.temperature
    probabilities = (scaled - scaled.max()).softmax(dim=-1)
    if 0 < sampling.top_k < probabilities.shape[0]:
        kept = probabilities.topk(sampling.top_k).indices
        probabilities = torch.zeros_like(probabilities).index_copy_(0, kept, probabilities[kept])
    if sampling.top_p < 1.0:
        falling, ids = probabilities.sort(descending=True, stable=True)
        mass = falling.cumsum(0)
        # The token that crosses top_p is still in; the first always is.
        outside = ids[mass - falling >= max(sampling.top_p, 0.0) * mass[-1]]
        outside = outside[outside != ids[0]]
        probabilities[outside] = 0.0
    cumulative = probabilities.cumsum(0)
    target = uniform(sampling.seed, position) * cumulative[-1]
    found = int(torch.searchsorted(cumulative, target, right=True).item())
    # `right` skips ids of no probability; rounding at the far end must not step past the last possible one.
    return min(found, int(probabilities.nonzero()[-1].item()))
