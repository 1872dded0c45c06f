"""Tensors in memory: layouts, and sums with a factor that changes at every step."""

from __future__ import annotations

from typing import TypeAlias

import torch
from torch import Tensor

from spikeslab.errors import ArgumentValueError

FULL_PRECISION = (torch.float32, torch.float64)

# A compiler takes a Python number for a constant and compiles anew for each value, so compiled updates get 0-d tensors.
# Those cannot be an ``alpha``; the product that is needed instead costs memory in eager mode and nothing if compiled.
Number: TypeAlias = float | Tensor


def is_dense(tensor: Tensor) -> bool:
    """Return True if the elements fill one stretch of memory, in any order of the dimensions.

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


def align(tensor: Tensor, like: Tensor) -> Tensor:
    """Return the tensor, or a copy if its elements do not lie in memory as those of the dense tensor ``like``.

    Raises:
        ValueError: If the shapes differ; a kernel would go past the end of the smaller one.
    """
    if tensor.shape != like.shape:
        expectation = f"must keep its shape {tuple(tensor.shape)}"
        raise ArgumentValueError("a parameter", expectation, tuple(like.shape), "make a new sampler")
    if tensor.dtype is like.dtype and tensor.is_cpu == like.is_cpu and not tensor.is_neg():
        strides, wanted = tensor.stride(), like.stride()
        # The stride of a dimension of size 1 does not matter.
        if strides == wanted or all(
            size <= 1 or a == b for size, a, b in zip(tensor.shape, strides, wanted, strict=True)
        ):
            return tensor
    return torch.empty_like(like, requires_grad=False).copy_(tensor)


def add_scaled_(outs: list[Tensor], values: list[Tensor], factor: Number, *, foreach: bool) -> None:
    """Add ``factor * values`` to ``outs``."""
    if isinstance(factor, Tensor):
        for out, value in zip(outs, values, strict=True):
            out.add_(value * factor)
    elif foreach:
        torch._foreach_add_(outs, values, alpha=factor)
    else:
        for out, value in zip(outs, values, strict=True):
            out.add_(value, alpha=factor)


def add_ratio_(
    outs: list[Tensor], values: list[Tensor], scales: list[Tensor], factor: Number, *, foreach: bool
) -> None:
    """Add ``factor * values / scales`` to ``outs``."""
    if isinstance(factor, Tensor):
        for out, value, scale in zip(outs, values, scales, strict=True):
            out.add_(value / scale * factor)
    elif foreach:
        torch._foreach_addcdiv_(outs, values, scales, factor)
    else:
        for out, value, scale in zip(outs, values, scales, strict=True):
            out.addcdiv_(value, scale, value=factor)
