"""Masks of exactly the smallest weights, ties included, and exact shares of zeros."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from spikeslab.errors import ArgumentValueError, pluralize


def smallest(scores: Tensor, count: int) -> Tensor:
    """Return the mask of exactly ``count`` smallest entries; of equal ones, those with the lower index go first.

    >>> smallest(torch.tensor([3.0, 1.0, 1.0, 2.0]), 2).tolist()
    [False, True, True, False]
    >>> smallest(torch.zeros(4), 2).tolist()
    [True, True, False, False]
    """
    flat = scores.reshape(-1)
    if count <= 0:
        return torch.zeros_like(scores, dtype=torch.bool)
    threshold = flat.kthvalue(count).values
    mask = flat < threshold
    ties = flat == threshold
    missing = count - mask.sum()
    mask |= ties & (ties.cumsum(0) <= missing)
    return mask.view(scores.shape)


def smallest_overall(scores: Sequence[Tensor], count: int, keep: Sequence[int] | None = None) -> list[Tensor]:
    """Return masks of exactly ``count`` smallest entries over all tensors, without the ``keep[i]`` largest of each."""
    flat = [score.reshape(-1).clone() for score in scores]
    for values, spared in zip(flat, [1] * len(flat) if keep is None else keep, strict=True):
        values[values.topk(spared).indices] = torch.inf
    masks = torch.split(smallest(torch.cat(flat), count), [values.numel() for values in flat])
    return [mask.view(score.shape) for mask, score in zip(masks, scores, strict=True)]


def apportion(
    total: int,
    sizes: Sequence[int],
    at_least: Sequence[int] | None = None,
    *,
    keep: Sequence[int] | None = None,
    shares: Sequence[float] | None = None,
) -> list[int]:
    """Split ``total`` zeros over layers in proportion to their sizes, exactly, one weight kept in each.

    The largest remainders are rounded up (Hamilton's method); zeros that a layer cannot take, because it keeps its last
    weight, go to the next. Under Hamilton's method a layer may lose a zero when the total grows (the Alabama paradox):
    ``at_least`` holds the zeros that each layer must keep, and sums to at most ``total``.

    >>> apportion(9, [10, 5, 3])
    [5, 3, 1]
    >>> apportion(4, [4, 1, 1])
    Traceback (most recent call last):
    spikeslab.errors.ArgumentValueError: zeros must be at most 3 of 6 weights, since 3 layers keep 3 weights, but got 4.

    Args:
        total: Zeros in all.
        sizes: Weights of each layer.
        at_least: Zeros that each layer must have.
        keep: Weights that each layer keeps, by default one.
        shares: Zeros that each layer should have, by default in proportion to the sizes; they sum to ``total``.
    """
    kept = [1] * len(sizes) if keep is None else keep
    weights, room = sum(sizes), sum(sizes) - sum(kept)
    if total > room:
        layers = f"{len(sizes)} layers keep {pluralize(sum(kept), 'weight')}"
        raise ArgumentValueError("zeros", f"must be at most {room} of {weights} weights, since {layers}", total)
    wanted = [total * size / weights for size in sizes] if shares is None else shares
    least = [0] * len(sizes) if at_least is None else at_least
    most = [max(size - k, low) for size, k, low in zip(sizes, kept, least, strict=True)]
    counts = [max(min(int(share), high), low) for share, high, low in zip(wanted, most, least, strict=True)]
    by_remainder = sorted(range(len(sizes)), key=lambda i: (counts[i] - wanted[i], i))
    while (missing := total - sum(counts)) > 0:
        for index in by_remainder:
            if missing and counts[index] < most[index]:
                counts[index] += 1
                missing -= 1
    while (surplus := sum(counts) - total) > 0:
        for index in reversed(by_remainder):
            if surplus and counts[index] > least[index]:
                counts[index] -= 1
                surplus -= 1
    return counts
