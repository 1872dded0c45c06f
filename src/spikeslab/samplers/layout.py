"""How a tensor's elements lie in memory."""

from __future__ import annotations

from torch import Tensor


def is_dense(tensor: Tensor) -> bool:
    """Whether the elements fill one stretch of memory, in any order of the dimensions.

    >>> import torch
    >>> is_dense(torch.ones(2, 3).t()), is_dense(torch.ones(2, 3)[:, :2])
    (True, False)
    """
    if tensor.is_contiguous():
        return True
    expected = 1
    for stride, size in sorted((st, sz) for st, sz in zip(tensor.stride(), tensor.shape, strict=True) if sz > 1):
        if stride != expected:
            return False
        expected *= size
    return True


def same_layout(first: Tensor, second: Tensor) -> bool:
    """Whether equal positions in memory are equal indices, for two dense tensors of the same shape."""
    if first.stride() == second.stride():
        return True
    # The stride of a dimension of size 1 says nothing.
    pairs = zip(first.shape, first.stride(), second.stride(), strict=True)
    return all(size <= 1 or a == b for size, a, b in pairs)
