"""Patterns of zeros in a matrix of weights: any number of them anywhere, or some of every few inputs, as 2:4."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from spikeslab.errors import ArgumentValueError


class Pattern(NamedTuple):
    """Weights that a matrix keeps: ``keep`` of every ``group`` of inputs of an output, or of all its weights.

    Attributes:
        keep: Number of weights that are kept.
        group: Number of neighbouring inputs of one output that share it; ``None`` is the whole matrix.
    """

    keep: int
    group: int | None = None

    @property
    def sparsity(self) -> float:
        """Share of zeros in each group."""
        return 1.0 - self.keep / self.group if self.group else 0.0


def parse_pattern(text: object) -> Pattern:
    """Return the pattern that ``"N:M"`` names: N of every M neighbouring inputs are kept.

    >>> parse_pattern("2:4")
    Pattern(keep=2, group=4)

    Raises:
        ValueError: If the text names none.
    """
    parts = text.split(":") if isinstance(text, str) else []
    numbers = [int(part) for part in parts if part.isdecimal() and len(part) < 6]
    if len(parts) != 2 or len(numbers) != 2 or not 0 < numbers[0] < numbers[1]:
        raise ArgumentValueError("pattern", "must be 'N:M' with 0 < N < M, such as '2:4', or None", text)
    return Pattern(*numbers)


def keep_largest_inputs(scores: Tensor, pattern: Pattern) -> Tensor:
    """Return :func:`keep_largest` of the weights of a layer, whose neighbouring inputs are those of dimension 1."""
    moved = scores.movedim(1, -1)
    return keep_largest(moved.reshape(-1, moved.shape[-1]), pattern).view(moved.shape).movedim(-1, 1)


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
        return _keep(sizes.reshape(-1), pattern.keep).view(scores.shape)
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
