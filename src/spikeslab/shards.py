"""Sharded parameters: this rank's part of a DTensor and the numbers of its elements.

A DTensor is spread over a mesh of ranks: along each dimension of the mesh it is cut (``Shard``) or repeated
(``Replicate``).
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import torch
from torch import Tensor

from spikeslab.errors import ArgumentValueError, Phrase


def is_sharded(tensor: Tensor) -> bool:
    """Return True for a DTensor."""
    return hasattr(tensor, "placements")


def local(tensor: Tensor) -> Tensor:
    """Return this rank's part of a DTensor, without a copy and without its gradient's history; others as they are."""
    part: Tensor = tensor._local_tensor if is_sharded(tensor) else tensor  # type: ignore[attr-defined]
    return part


def locate(tensor: Tensor) -> int | Tensor:
    """Return where this rank's part lies in the whole tensor, whose elements are numbered in rows.

    Returns:
        The number of its first element if they are consecutive; the numbers of all of them otherwise.
    """
    if not is_sharded(tensor):
        return 0
    cuts, coordinate = _cuts(tensor)
    return _locate(tuple(tensor.shape), cuts, coordinate, tuple(local(tensor).shape))


def _cuts(tensor: Any) -> tuple[tuple[tuple[int, int], ...], tuple[int, ...]]:
    """Return dimension and number of the parts of each cut, outermost first, and the numbers of this rank's parts."""
    mesh, position = tensor.device_mesh, tensor.device_mesh.get_coordinate()
    # A strided shard is one of parts that a later dimension of the mesh has already cut.
    order = sorted(
        (type(placement).__name__ == "_StridedShard", index)
        for index, placement in enumerate(tensor.placements)
        if placement.is_shard()
    )
    cuts = tuple((tensor.placements[index].dim % tensor.ndim, mesh.size(index)) for _, index in order)
    return cuts, tuple(position[index] for _, index in order)


@lru_cache(maxsize=4096)
def _locate(
    shape: tuple[int, ...], cuts: tuple[tuple[int, int], ...], coordinate: tuple[int, ...], own: tuple[int, ...]
) -> int | Tensor:
    rows = [torch.arange(size) for size in shape]
    for (dim, parts), number in zip(cuts, coordinate, strict=True):
        pieces = rows[dim].chunk(parts)
        rows[dim] = pieces[number] if number < len(pieces) else rows[dim][:0]
    found = tuple(map(len, rows))
    if found != own and 0 not in own:
        got = Phrase(f"a part of a tensor of shape {shape} has the shape {own} instead of {found}")
        raise ArgumentValueError("params", "must be sharded in equal parts, the last ones smaller", got)
    numbers = torch.zeros((), dtype=torch.int64)
    for size, of_dim in zip(shape, rows, strict=True):
        numbers = numbers.unsqueeze(-1) * size + of_dim
    numbers = numbers.reshape(-1)
    if not len(numbers):
        return 0
    first = int(numbers[0])
    return first if int(numbers[-1]) - first == len(numbers) - 1 else numbers
