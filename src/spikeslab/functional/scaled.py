"""``out += factor * value`` with a factor that changes at every step.

A compiler takes a Python number for a constant and compiles anew for each value, so compiled updates get 0-d tensors.
Those cannot be an ``alpha``; the product that is needed instead costs memory in eager mode and nothing when compiled.
"""

from __future__ import annotations

from typing import TypeAlias

import torch
from torch import Tensor

Number: TypeAlias = float | Tensor


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
