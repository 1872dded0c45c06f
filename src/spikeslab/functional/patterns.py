"""Patterns of zeros in a matrix of weights: any number of them anywhere, or some of every few inputs, as 2:4."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor


class Pattern(NamedTuple):
    """Weights that a matrix keeps: ``keep`` of every ``group`` of inputs of an output, or of all its weights.

    Attributes:
        keep: Number of weights that are kept.
        group: Number of neighbouring inputs of one output that share it; ``None`` is the whole matrix.
    """

    keep: int
    group: int | None = None


def keep_largest(scores: Tensor, pattern: Pattern) -> Tensor:
    """Return a mask of the entries with the largest absolute values that the pattern allows.

    >>> scores = torch.tensor([[4.0, -3.0, 2.0, 1.0], [0.1, 0.2, 0.3, -0.4]])
    >>> keep_largest(scores, Pattern(3)).int()
    tensor([[1, 1, 1, 0],
            [0, 0, 0, 0]], dtype=torch.int32)
    >>> keep_largest(scores, Pattern(1, group=2)).int()
    tensor([[1, 0, 1, 0],
            [0, 1, 0, 1]], dtype=torch.int32)
    """
    sizes = scores.abs()
    if pattern.group is None:
        return _keep(sizes.view(-1), pattern.keep).view(scores.shape)
    rows = sizes.reshape(-1, pattern.group)
    kept = torch.zeros_like(rows, dtype=torch.bool).scatter_(1, rows.topk(pattern.keep, dim=1).indices, True)
    return kept.view(scores.shape)


def _keep(sizes: Tensor, count: int) -> Tensor:
    """Return a mask of the largest sizes; of equal ones, the first. For many sizes a threshold is faster than topk."""
    if not count:
        return torch.zeros_like(sizes, dtype=torch.bool)
    threshold = sizes.kthvalue(sizes.numel() - count + 1).values
    kept = sizes > threshold
    kept[(sizes == threshold).nonzero()[: count - int(kept.sum()), 0]] = True
    return kept
