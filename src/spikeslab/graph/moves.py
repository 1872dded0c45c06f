"""Operations that move entries of a tensor about, such as views, transpositions, slices and paddings.

Such an operation is run on a tensor that holds the number of each entry's channel in place of the entry: where the
numbers arrive, there are the channels. Where ``forward`` fixes a size, a bound or an amount that does not fit a
narrower network, :func:`refit` returns the arguments that do.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, fx

from spikeslab.graph.operations import operation_name

VIEWS = ("view", "reshape", "expand")
SPLITS = ("split", "chunk", "tensor_split")
MOVES = frozenset({
    *VIEWS, *SPLITS, "flatten", "unflatten", "transpose", "permute", "movedim", "swapaxes", "t", "T", "mT", "unsqueeze",
    "squeeze", "unbind", "getitem", "select", "narrow", "pad", "contiguous", "repeat_interleave",
})  # fmt: skip


class ChannelLayout(NamedTuple):
    """Channels of a tensor.

    Attributes:
        numbers: Number of the channel at each place of ``axes``; -1 for padding, which is zero.
        constants: Constant of each of these channels.
        axes: Dimensions of the tensor along which its channels differ.
    """

    numbers: Tensor
    constants: Tensor
    axes: tuple[int, ...]

    def spread(self, shape: Sequence[int]) -> tuple[Tensor, Tensor]:
        """Return numbers and constants at every place of a tensor of this shape."""
        sizes = [size if axis in self.axes else 1 for axis, size in enumerate(shape)]
        numbers, constants = (
            part.reshape(sizes).expand(*shape).contiguous() for part in (self.numbers, self.constants)
        )
        return numbers, constants


def as_rows(tensor: Tensor, places: list[int]) -> Tensor:
    """Return a matrix with a row for each entry along some dimensions.

    >>> as_rows(torch.arange(6).view(2, 3), [1]).tolist()
    [[0, 3], [1, 4], [2, 5]]
    """
    rows = math.prod(tensor.shape[place] for place in places)
    return tensor.movedim(places, list(range(len(places)))).reshape(rows, -1)


def move(layout: ChannelLayout, shape: Sequence[int], call: Callable[[Tensor], Any]) -> Any:
    """Return the layout of what an operation makes of a tensor of this shape; several for an operation with several."""
    numbers, constants = layout.spread(shape)
    # Padding is zero, and zero is no number here.
    moved, values = call(numbers + 1), call(constants)
    if isinstance(moved, Tensor):
        return _collapse(moved - 1, values)
    return tuple(_collapse(part - 1, value) for part, value in zip(moved, values, strict=True))


def _collapse(numbers: Tensor, constants: Tensor) -> ChannelLayout:
    """Return the layout of a tensor by the number and the constant at every place."""
    axes = []
    for axis in reversed(range(numbers.dim())):
        highest = numbers.amax(axis, keepdim=True)
        lowest = numbers.masked_fill(numbers < 0, int(numbers.max()) + 1).amin(axis, keepdim=True)
        if bool((lowest < highest).any()):
            axes.append(axis)
            continue
        first = constants.narrow(axis, 0, 1)
        same = ((constants == first) | (constants.isnan() & first.isnan())).all(axis, keepdim=True)
        numbers, constants = highest, first.masked_fill(~same, torch.nan)
    axes.reverse()
    sizes = [numbers.shape[axis] for axis in axes]
    return ChannelLayout(numbers.reshape(sizes), constants.reshape(sizes), tuple(axes))


def fixed_axes(node: fx.Node, before: ChannelLayout, rank: int) -> list[int]:
    """Return the positions in ``before.axes`` along which an operation takes single entries, so that all must stay."""
    name, places = operation_name(node), range(len(before.axes))
    if name in ("unbind", "select"):
        dim = node.args[1] if len(node.args) > 1 else node.kwargs.get("dim", 0)
        return [place for place in places if isinstance(dim, int) and before.axes[place] == dim % rank]
    if name != "getitem":
        return []
    return [place for place in places if not _is_range(entry_of(node.args[1], before.axes[place], rank))]


def entry_of(index: Any, axis: int, rank: int) -> Any:
    """Return the entry of an index that is about a dimension; ``slice(None)`` if none is.

    >>> entry_of((0, ..., slice(1, 3)), 2, 3), entry_of((0, ..., slice(1, 3)), 1, 3)
    (slice(1, 3, None), slice(None, None, None))
    """
    entries = [entry for entry in (index if isinstance(index, tuple) else (index,)) if entry is not None]
    if Ellipsis in entries:
        place = entries.index(Ellipsis)
        entries[place : place + 1] = [slice(None)] * (rank - len(entries) + 1)
    return entries[axis] if axis < len(entries) else slice(None)


def _is_range(entry: Any) -> bool:
    return isinstance(entry, slice) and entry.step in (None, 1)


def is_plain(node: fx.Node) -> bool:
    """Return True if an index has slices and whole numbers only: lists and tensors may put dimensions elsewhere."""
    if operation_name(node) != "getitem":
        return True
    index = node.args[1] if isinstance(node.args[1], tuple) else (node.args[1],)
    return all(entry is None or entry is Ellipsis or isinstance(entry, (int, slice)) for entry in index)


def refit(node: fx.Node, rank: int, kept: dict[int, Tensor], kept_after: dict[int, Tensor]) -> tuple[Any, ...] | None:
    """Return the arguments behind the tensor with which an operation fits a narrower network.

    Args:
        node: A node of :data:`MOVES`.
        rank: Number of dimensions of the tensor that it reads.
        kept: For each dimension of this tensor that gets narrower, which places stay.
        kept_after: The same for the result; not used for several.

    Returns:
        The arguments, or ``None`` if they fit as they are.
    """
    name = operation_name(node)
    if name in VIEWS:
        given = node.args[1] if len(node.args) == 2 and isinstance(node.args[1], (list, tuple)) else node.args[1:]
        return _refit_sizes(list(given), 0, kept_after)
    if name == "unflatten":
        dim = int(node.args[1]) % rank  # type: ignore[arg-type]
        sizes = _refit_sizes(list(node.args[2]), dim, kept_after)  # type: ignore[arg-type]
        return None if sizes is None else (dim, *sizes)
    if name in SPLITS:
        dim = _argument(node, 2, "dim", 0) % rank
        if dim not in kept:
            return None
        pieces = getattr(kept[dim], name)(node.args[1])
        return [int(piece.sum()) for piece in pieces], dim
    if name == "narrow":
        dim, start, length = (_argument(node, place, key) for place, key in enumerate(("dim", "start", "length"), 1))
        return (dim, *_bounds(kept[dim % rank], slice(start, start + length))) if dim % rank in kept else None
    if name == "getitem":
        return _refit_index(node.args[1], rank, kept)
    return _refit_padding(node, rank, kept_after) if name == "pad" else None


def _refit_sizes(sizes: list[Any], first: int, kept: dict[int, Tensor]) -> tuple[list[Any]] | None:
    """Return the sizes of a view, whose dimensions begin with ``first``, with those of narrower dimensions."""
    new = [
        int(kept[axis].sum()) if axis in kept and size != -1 else size for axis, size in enumerate(sizes, start=first)
    ]
    return None if new == sizes else (new,)


def _argument(node: fx.Node, place: int, name: str, default: int = 0) -> Any:
    return node.args[place] if len(node.args) > place else node.kwargs.get(name, default)


def _bounds(kept: Tensor, entry: slice) -> tuple[int, int]:
    """Return the start of a range among the places that stay, and their number in it."""
    start, stop, _ = entry.indices(len(kept))
    return int(kept[:start].sum()), int(kept[start:stop].sum())


def _refit_index(index: Any, rank: int, kept: dict[int, Tensor]) -> tuple[Any, ...] | None:
    narrowed = {axis: entry_of(index, axis, rank) for axis in kept}
    if all(entry == slice(None) for entry in narrowed.values()):
        return None
    given = list(index) if isinstance(index, tuple) else [index]
    if Ellipsis in given:
        place, known = given.index(Ellipsis), sum(entry is not None for entry in given) - 1
        given[place : place + 1] = [slice(None)] * (rank - known)
    axis = 0
    for place, entry in enumerate(given):
        if entry is None:
            continue
        if axis in kept:
            start, count = _bounds(kept[axis], entry)
            given[place] = slice(start, start + count)
        axis += 1
    return (tuple(given),)


def _refit_padding(node: fx.Node, rank: int, kept_after: dict[int, Tensor]) -> tuple[Any, ...] | None:
    given: Any = node.args[1] if len(node.args) > 1 else node.kwargs["pad"]
    amounts = list(given)
    for axis, kept in kept_after.items():
        place = 2 * (rank - 1 - axis)
        if place < len(amounts):
            left, right = amounts[place : place + 2]
            amounts[place], amounts[place + 1] = int(kept[:left].sum()), int(kept[len(kept) - right :].sum())
    return None if amounts == list(given) else (amounts, *node.args[2:])
