"""Sharded parameters: this rank's part of a DTensor, the numbers of its elements, and sums over all parts.

A DTensor is spread over a mesh of ranks: along each dimension of the mesh it is cut (``Shard``) or repeated
(``Replicate``). Whatever a sampler, a prior or a pruner computes of single weights it computes on the local part; what
it needs of all weights together is a few sums, which :class:`Reduction` adds up over the mesh.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import lru_cache
from typing import Any, NamedTuple

import torch
from torch import Tensor

from spikeslab.errors import ArgumentTypeError, ArgumentValueError, Phrase, StateError

TORCH = "2.13"
"""First version of torch with which sharding was tested."""


def is_sharded(tensor: Tensor) -> bool:
    """Return True for a DTensor."""
    return hasattr(tensor, "placements")


def local(tensor: Tensor) -> Tensor:
    """Return this rank's part of a DTensor, without a copy and without its gradient's history; others as they are."""
    part: Tensor = tensor._local_tensor if is_sharded(tensor) else tensor  # type: ignore[attr-defined]
    return part


def wrap(part: Tensor, like: Tensor) -> Tensor:
    """Return a DTensor with this rank's part, spread as the DTensor ``like``; the part itself if that is none."""
    if not is_sharded(like):
        return part
    from torch.distributed.tensor import DTensor

    mesh, placements = like.device_mesh, like.placements  # type: ignore[attr-defined]
    whole: Tensor = DTensor.from_local(part, mesh, placements, run_check=False, shape=like.shape, stride=like.stride())
    return whole


def part_of(whole: Tensor, like: Tensor) -> Tensor:
    """Return this rank's part of a tensor that is spread as the DTensor ``like``, or is whole."""
    if is_sharded(whole):
        return local(whole)
    own = local(like)
    if not is_sharded(like) or (whole.shape == own.shape and whole.shape != like.shape):
        return whole
    place = locate(like)
    flat = whole.reshape(-1)
    found = flat[place : place + own.numel()] if isinstance(place, int) else flat[place.to(flat.device)]
    return found.view(own.shape)


def gather(tensor: Tensor) -> Tensor:
    """Return a DTensor as a whole; all ranks must call it."""
    whole: Tensor = tensor.full_tensor() if is_sharded(tensor) else tensor  # type: ignore[attr-defined]
    return whole


def locate(tensor: Tensor) -> int | Tensor:
    """Return where this rank's part lies in the whole tensor, whose elements are numbered in rows.

    Returns:
        The number of its first element if they are consecutive; the numbers of all of them otherwise.
    """
    return Place.of(tensor).locate(tuple(local(tensor).shape))


class Place(NamedTuple):
    """Place of a part in a whole tensor.

    Attributes:
        shape: Shape of the whole tensor.
        cuts: Dimension and number of the parts of each cut, outermost first; none for a whole tensor.
        coordinate: Number of this part along each cut.
    """

    shape: tuple[int, ...]
    cuts: tuple[tuple[int, int], ...] = ()
    coordinate: tuple[int, ...] = ()

    @classmethod
    def of(cls, tensor: Tensor) -> Place:
        """Return the place of this rank's part."""
        shape = tuple(tensor.shape)
        return cls(shape, *_cuts(tensor)) if is_sharded(tensor) else cls(shape)

    def locate(self, own: tuple[int, ...]) -> int | Tensor:
        """Return the numbers of the elements of a part of shape ``own``, or the first if they are consecutive."""
        return _locate(self.shape, self.cuts, self.coordinate, own) if self.cuts else 0


def check_torch() -> None:
    """Raise if this torch is older than the first one with which sharding was tested."""
    if torch.__version__ < TORCH:
        raise StateError(
            f"Sharded parameters need torch {TORCH} or later, the first version with which they were tested, but this "
            f"is {torch.__version__}: update torch, or keep the model whole."
        )


def check_sharding(name: str, tensor: Tensor) -> None:
    """Raise if a DTensor is spread in a way that has no parts: sums that are still to be added up, or uneven memory."""
    if not is_sharded(tensor):
        return
    check_torch()
    odd = [placement for placement in tensor.placements if not (placement.is_shard() or placement.is_replicate())]  # type: ignore[attr-defined]
    if odd:
        got = Phrase(f"{name} is a DTensor with the placement {odd[0]}")
        raise ArgumentTypeError("params", "must be sharded or replicated", got)
    locate(tensor)


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


DIGIT, KEY_BITS = 13, 65
"""Bits of a digit of the threshold, and of all digits; the sign of a score is none of them."""


class Reduction:
    """Sums over the ranks that share some weights.

    Every element of a weight counts once: copies of it on other ranks, along replicated dimensions of the mesh or of
    plain tensors, are left out.

    Args:
        tensors: Weights that the sums are over, DTensors of one mesh or plain tensors.
    """

    def __init__(self, tensors: Iterable[Tensor]) -> None:
        tensors = list(tensors)
        meshes = {id(tensor.device_mesh): tensor.device_mesh for tensor in tensors if is_sharded(tensor)}  # type: ignore[attr-defined]
        if len({str(mesh) for mesh in meshes.values()}) > 1:
            got = Phrase(f"got {len(meshes)}")
            raise ArgumentValueError("params", "must be sharded over one device mesh", got)
        self.mesh: Any = next(iter(meshes.values()), None)
        self._counts = [self.is_counted(tensor) for tensor in tensors]
        self._sharded = [self._cuts(tensor) for tensor in tensors]

    def _cuts(self, tensor: Any) -> list[bool]:
        """Return along which dimensions of the mesh a tensor is cut."""
        if self.mesh is None or not is_sharded(tensor):
            return [False] * (0 if self.mesh is None else self.mesh.ndim)
        return [placement.is_shard() for placement in tensor.placements]

    def is_counted(self, tensor: Any) -> bool:
        """Return True if this rank's part of a tensor is the one of several copies that counts."""
        if self.mesh is None:
            return True
        position = self.mesh.get_coordinate()
        if not is_sharded(tensor):
            return not any(position)
        return all(p.is_shard() or not at for p, at in zip(tensor.placements, position, strict=True))

    def __bool__(self) -> bool:
        """Return True if there is anything to add up over ranks."""
        return self.mesh is not None

    def __deepcopy__(self, memo: dict[int, Any]) -> Reduction:
        """Return itself: a mesh belongs to the processes."""
        return self

    @property
    def is_first(self) -> bool:
        """True on the first rank of the mesh, and without one."""
        return self.mesh is None or not any(self.mesh.get_coordinate())

    @property
    def size(self) -> int:
        """Number of ranks."""
        return 1 if self.mesh is None else int(self.mesh.size())

    @property
    def position(self) -> int:
        """Number of this rank, in the order of the mesh."""
        return 0 if self.mesh is None else _flat(list(self.mesh.get_coordinate()), self.mesh)

    @property
    def device(self) -> torch.device:
        """Device of what is added up."""
        return torch.device("cpu") if self.mesh is None else torch.device(self.mesh.device_type)

    def total(self, tensors: Sequence[Tensor], values: Sequence[float]) -> float:
        """Return the sum over the ranks of a number of each of some tensors."""
        return self.sum([sum(v for t, v in zip(tensors, values, strict=True) if self.is_counted(t))])[0]

    def own(self, values: Sequence[float]) -> list[float]:
        """Return a number of each weight, zero where another rank's copy counts."""
        return [value if counts else 0.0 for value, counts in zip(values, self._counts, strict=True)]

    def gather_bytes(self, own: bytes) -> list[bytes]:
        """Return the bytes of all ranks, of which each has equally many."""
        table = torch.zeros(self.size, len(own), dtype=torch.int64, device=self.device)
        table[self.position] = torch.tensor(list(own))
        return [bytes(row) for row in self.all_reduce_(table).tolist()]

    def all_reduce_(self, totals: Tensor, op: Any = None) -> Tensor:
        """Add up a tensor over all ranks of the mesh, in place; ``op`` is another reduction than the sum."""
        if self.mesh is not None:
            from torch import distributed as dist

            for group in self.mesh.get_all_groups():
                dist.all_reduce(totals, op=dist.ReduceOp.SUM if op is None else op, group=group)
        return totals

    def sum(self, values: Sequence[float]) -> list[float]:
        """Return the sums over the ranks of some numbers, in float64."""
        if self.mesh is None:
            return list(values)
        totals = torch.tensor(list(values), dtype=torch.float64, device=self.device)
        result: list[float] = self.all_reduce_(totals).tolist()
        return result

    def all(self, value: bool) -> bool:
        """Return True if a value is True on all ranks."""
        return value if self.mesh is None else self.sum([0.0 if value else 1.0]) == [0.0]

    def raise_together(self, name: str, error: Exception | None) -> None:
        """Raise on all ranks if one of them has an error about the argument ``name``: none must wait for it."""
        if not self.all(error is None):
            got = Phrase("another rank refused its own")
            raise error or ArgumentValueError(name, "must be accepted by all ranks that share a sharded model", got)

    def agree(self, values: Sequence[int]) -> list[bool]:
        """Return which of some integers, of at most 64 bits, are the same on all ranks."""
        if self.mesh is None:
            return [True] * len(values)
        from torch import distributed as dist

        halves = [half for value in values for half in (value & 0xFFFFFFFF, value >> 32)]
        both = torch.tensor([*halves, *(-half for half in halves)], device=self.device)
        highest, lowest = self.all_reduce_(both, dist.ReduceOp.MAX).view(2, -1, 2)
        same: list[bool] = (highest == -lowest).all(1).tolist()
        return same

    def first(self, value: int) -> int:
        """Return the smallest of the ranks' integers."""
        if self.mesh is None:
            return value
        from torch import distributed as dist

        return int(self.all_reduce_(torch.tensor(value, device=self.device), dist.ReduceOp.MIN))

    def smallest(self, scores: Sequence[Tensor], count: int) -> list[Tensor]:
        """Return masks of exactly ``count`` smallest scores over all ranks; of equal ones, those of lower ranks go.

        The threshold is found digit by digit, from histograms that are added up over the ranks: what is sent does not
        depend on the number of scores, and no rank sees those of another.

        Args:
            scores: This rank's part of each weight, numbers >= 0 or -inf.
            count: Number of entries.
        """
        if count <= 0:
            return [torch.zeros_like(score, dtype=torch.bool) for score in scores]
        keys = [_order(score) for score in scores]
        counted = [key.reshape(-1) for key, counts in zip(keys, self._counts, strict=True) if counts]
        threshold, below = self._select(counted, count)
        ties = [key == threshold for key in keys]
        return [
            (key < threshold) | (tie & (tie.reshape(-1).cumsum(0).view(tie.shape) <= room))
            for key, tie, room in zip(keys, ties, self._share_ties(ties, count - below), strict=True)
        ]

    def quantile(self, scores: Sequence[Tensor], count: int) -> float:
        """Return the ``count``-th smallest of scores >= 0 over all ranks."""
        counted = [_order(score).reshape(-1) for score, counts in zip(scores, self._counts, strict=True) if counts]
        key, _ = self._select(counted, count)
        return float(torch.tensor(key - 1, dtype=torch.int64).view(torch.float64))

    def _select(self, keys: list[Tensor], count: int) -> tuple[int, int]:
        """Return the ``count``-th smallest key over all ranks, and the number of smaller ones."""
        prefix = below = 0
        for shift in range(KEY_BITS - DIGIT, -1, -DIGIT):
            histogram = torch.zeros(1 << DIGIT, dtype=torch.int64, device=self.device)
            for key in keys:
                rest = key if shift + DIGIT == KEY_BITS else key[key >> (shift + DIGIT) == prefix]
                digits = rest >> shift & (1 << DIGIT) - 1
                histogram += torch.bincount(digits, minlength=1 << DIGIT).to(self.device)
            upto = self.all_reduce_(histogram).cumsum(0) + below
            digit = int((upto < count).sum())
            below = int(upto[digit - 1]) if digit else below
            prefix = prefix << DIGIT | digit
        return prefix, below

    def _share_ties(self, ties: list[Tensor], missing: int) -> list[int]:
        """Return how many of the equal scores of each weight go on this rank, ``missing`` in all."""
        own = [int(tie.sum()) for tie in ties]
        table = torch.zeros(len(ties), self.size, dtype=torch.int64, device=self.device)
        table[:, self.position] = torch.tensor(self.own(own), dtype=torch.int64)
        self.all_reduce_(table)
        before = table.flatten().cumsum(0).view(table.shape) - table
        # A copy follows the rank whose numbers count.
        sources = [self.position if counts else self._source(index) for index, counts in enumerate(self._counts)]
        return [max(0, missing - int(before[index, source])) for index, source in enumerate(sources)]

    def _source(self, index: int) -> int:
        """Return the rank, in the order of the mesh, that has the copy of this part that counts."""
        position = list(self.mesh.get_coordinate())
        shards = self._sharded[index]
        return _flat([at if cut else 0 for at, cut in zip(position, shards, strict=True)], self.mesh)


def _order(score: Tensor) -> Tensor:
    """Return integers >= 0 in the order of scores, of which -inf is the first and NaN the last."""
    wide = score.double()
    return torch.where(wide == -torch.inf, 0, wide.nan_to_num(nan=torch.inf, posinf=torch.inf).view(torch.int64) + 1)


def _flat(coordinate: Sequence[int], mesh: Any) -> int:
    number = 0
    for index, at in enumerate(coordinate):
        number = number * mesh.size(index) + at
    return number
