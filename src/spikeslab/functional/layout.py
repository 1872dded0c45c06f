"""How a tensor's elements lie in memory."""

from __future__ import annotations

import torch
from torch import Tensor

FULL_PRECISION = (torch.float32, torch.float64)


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


def aligned(tensor: Tensor, like: Tensor) -> Tensor:
    """The tensor, or a copy if its elements do not lie in memory as those of the dense tensor ``like``.

    Raises:
        ValueError: If the shapes differ: what works on addresses would go past the end of the smaller one.
    """
    if tensor.shape != like.shape:
        raise ValueError(
            f"a parameter must keep its shape {tuple(tensor.shape)}, but got {tuple(like.shape)}: make a new sampler."
        )
    if tensor.dtype is like.dtype and tensor.is_cpu == like.is_cpu and not tensor.is_neg():
        strides, wanted = tensor.stride(), like.stride()
        # The stride of a dimension of size 1 says nothing.
        if strides == wanted or all(
            size <= 1 or a == b for size, a, b in zip(tensor.shape, strides, wanted, strict=True)
        ):
            return tensor
    return torch.empty_like(like, requires_grad=False).copy_(tensor)
