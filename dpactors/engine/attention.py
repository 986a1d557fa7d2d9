"""Causal attention of a flattened ragged batch over paged KV."""

from itertools import chain, pairwise, repeat

import torch
from attrs import frozen
from torch import Tensor
from torch.nn import functional

from dpactors.engine.config import ModelConfig
from dpactors.engine.tensors import int_tensor
from dpactors.serving.jobs import RunStep, SequenceSlice


@frozen(eq=False)
class Pages:
    """One layer's KV; each tensor is shaped [blocks, block_size, kv_heads, head_dim]."""

    keys: Tensor
    values: Tensor

    def write(self, slots: Tensor, keys: Tensor, values: Tensor) -> None:
        """Put `keys` and `values` [tokens, kv_heads, head_dim] into `slots` [tokens], none of which is -1."""
        self.keys.view(-1, *self.keys.shape[2:]).index_copy_(0, slots, keys)
        self.values.view(-1, *self.values.shape[2:]).index_copy_(0, slots, values)


class KVCache:
    """Keys and values of all layers, in blocks."""

    def __init__(
        self, config: ModelConfig, blocks: int, block_size: int, dtype: torch.dtype, device: str = "cpu"
    ) -> None:
        """Reserve `blocks` * `block_size` tokens in each layer."""
        shape = (blocks, block_size, config.kv_heads, config.head_dim)
        self.block_size = block_size
        self.layers = [
            Pages(torch.zeros(shape, dtype=dtype, device=device), torch.zeros(shape, dtype=dtype, device=device))
            for _ in range(config.layers)
        ]


@frozen(eq=False)
class _Decodes:
    """All sequences with one new token, as one padded batch."""

    rows: Tensor
    """Their rows in the step, shape [sequences]."""
    blocks: Tensor
    """Flattened block table, shape [sequences * longest]; padding is block 0 and masked."""
    length: int
    """Of the longest, in tokens."""
    mask: Tensor | None
    """Shape [sequences, 1, 1, length]; None where all are equally long."""


@frozen(eq=False)
class _Prefill:
    """One sequence with several new tokens."""

    start: int
    stop: int
    blocks: Tensor
    length: int
    """Cached and new, in tokens."""
    mask: Tensor | None
    """Shape [query, length]; None where nothing is cached and plain causal masking does."""


@frozen(eq=False)
class AttentionPlan:
    """What every layer of one step shares."""

    writable: Tensor | None
    """Rows whose KV is written; None means all."""
    slots: Tensor
    """Of the writable rows."""
    decodes: _Decodes | None
    prefills: tuple[_Prefill, ...]
    rows: int


def plan_attention(step: RunStep, block_size: int, device: str = "cpu") -> AttentionPlan:
    """Sort a step's sequences into one batch of decodes and single prefills."""
    slots = int_tensor(step.slots, device)
    writable = None
    if step.slots and min(step.slots) < 0:
        writable = (slots >= 0).nonzero().view(-1)
        slots = slots[writable]
    ends = [0]
    for part in step.sequences:
        ends.append(ends[-1] + part.query)
    decodes: list[tuple[int, SequenceSlice]] = []
    prefills: list[_Prefill] = []
    for (start, stop), part in zip(pairwise(ends), step.sequences, strict=True):
        if part.query == 1:
            decodes.append((start, part))
        else:
            prefills.append(_plan_prefill(start, stop, part, device))
    return AttentionPlan(
        writable=writable,
        slots=slots,
        decodes=_plan_decodes(decodes, block_size, device) if decodes else None,
        prefills=tuple(prefills),
        rows=len(step.tokens),
    )


def _plan_prefill(start: int, stop: int, part: SequenceSlice, device: str) -> _Prefill:
    length = part.context + part.query
    mask = None
    if part.context:
        mask = torch.ones(part.query, length, dtype=torch.bool, device=device).tril(part.context)
    return _Prefill(start, stop, int_tensor(part.blocks, device), length, mask)


def _plan_decodes(decodes: list[tuple[int, SequenceSlice]], block_size: int, device: str) -> _Decodes:
    longest = max(len(part.blocks) for _, part in decodes)
    padded = chain.from_iterable(chain(part.blocks, repeat(0, longest - len(part.blocks))) for _, part in decodes)
    lengths = [part.context + 1 for _, part in decodes]
    length = max(lengths)
    assert length <= longest * block_size, "a sequence is longer than its blocks"
    mask = None
    if min(lengths) != length:
        mask = (torch.arange(length, device=device) < int_tensor(lengths, device).unsqueeze(1))[:, None, None, :]
    return _Decodes(int_tensor((row for row, _ in decodes), device), int_tensor(padded, device), length, mask)


def attend(plan: AttentionPlan, pages: Pages, query: Tensor, keys: Tensor, values: Tensor) -> Tensor:
    """Write the step's KV, then attend.

    `query` is [tokens, heads, head_dim], `keys` and `values` [tokens, kv_heads, head_dim]; gives
    [tokens, heads * head_dim], zeros for tokens of no sequence.
    """
    if plan.writable is None:
        pages.write(plan.slots, keys, values)
    elif plan.slots.shape[0]:
        pages.write(plan.slots, keys[plan.writable], values[plan.writable])
    decodes = plan.decodes
    if decodes is not None and decodes.rows.shape[0] == plan.rows:
        return _attend_decodes(decodes, pages, query)
    out = query.new_zeros(plan.rows, query.shape[1] * query.shape[2])
    if decodes is not None:
        out[decodes.rows] = _attend_decodes(decodes, pages, query[decodes.rows])
    for prefill in plan.prefills:
        rows = slice(prefill.start, prefill.stop)
        if prefill.mask is None:
            part = _attend_prefill(query[rows], keys[rows], values[rows], None)
        else:
            past = _gather(pages.keys, prefill.blocks, 1, prefill.length)[0]
            past_values = _gather(pages.values, prefill.blocks, 1, prefill.length)[0]
            part = _attend_prefill(query[rows], past, past_values, prefill.mask)
        out[rows] = part
    return out


def _gather(cached: Tensor, blocks: Tensor, sequences: int, length: int) -> Tensor:
    """Blocks laid side by side, shape [sequences, length, kv_heads, head_dim]."""
    _, _, kv_heads, head_dim = cached.shape
    return cached.index_select(0, blocks).view(sequences, -1, kv_heads, head_dim)[:, :length]


def _attend_decodes(decodes: _Decodes, pages: Pages, query: Tensor) -> Tensor:
    sequences, heads, head_dim = query.shape
    keys = _gather(pages.keys, decodes.blocks, sequences, decodes.length).transpose(1, 2)
    values = _gather(pages.values, decodes.blocks, sequences, decodes.length).transpose(1, 2)
    # The query heads that share a KV head stand where tokens of a prefill would: no key is copied for them.
    shared = query.reshape(sequences, keys.shape[1], -1, head_dim)
    out = functional.scaled_dot_product_attention(shared, keys, values, attn_mask=decodes.mask)
    return out.reshape(sequences, heads * head_dim)


def _attend_prefill(query: Tensor, keys: Tensor, values: Tensor, mask: Tensor | None) -> Tensor:
    tokens = query.shape[0]
    out = functional.scaled_dot_product_attention(
        query.transpose(0, 1).unsqueeze(0),
        keys.transpose(0, 1).unsqueeze(0),
        values.transpose(0, 1).unsqueeze(0),
        attn_mask=mask,
        is_causal=mask is None,
        enable_gqa=True,
    )
    return out.squeeze(0).transpose(0, 1).reshape(tokens, -1)
