"""Torch's calls that the type checker knows only in part, with their types; each one line."""

from array import array
from collections.abc import Iterable
from typing import Any, cast

import torch
from torch import Tensor


def int_tensor(ids: Iterable[int], device: str = "cpu") -> Tensor:
    """Integers as an int64 tensor of its own memory, shape [length]."""
    values = ids if isinstance(ids, array) else array("q", ids)
    if not values:
        return torch.empty(0, dtype=torch.int64, device=device)
    # frombuffer shares the array's memory: widening copies, int64 must be cloned.
    if values.typecode == "i":
        return torch.frombuffer(values, dtype=torch.int32).to(device=device, dtype=torch.int64)
    return torch.frombuffer(values, dtype=torch.int64).clone().to(device)


def int_list(tensor: Tensor) -> list[int]:
    """The integers of a tensor of one dimension."""
    return cast("Any", tensor).tolist()


def split(tensor: Tensor, sizes: list[int], dim: int = 0) -> tuple[Tensor, ...]:
    """Views of `sizes` along `dim`."""
    return cast("Any", tensor).split(sizes, dim=dim)
