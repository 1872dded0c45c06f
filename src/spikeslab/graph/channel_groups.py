"""Groups of channels that are kept or removed together, and products of tensors that tie them."""

from __future__ import annotations

import math
from typing import NamedTuple, Self

import torch
from torch import Tensor

from spikeslab.graph.moves import ChannelLayout, as_rows


class ChannelGroups:
    """Groups of channels as a forest of channels (union-find with path halving).

    >>> groups = ChannelGroups()
    >>> first, second = groups.add(2), groups.add(2)
    >>> groups.merge(first, second)
    >>> groups.pin(first[:1])
    >>> groups.find_pinned().tolist()
    [True, False, True, False]
    """

    def __init__(self) -> None:
        self._parents: list[int] = []
        self._pinned: list[Tensor] = []

    def __len__(self) -> int:
        return len(self._parents)

    def add(self, count: int) -> Tensor:
        """Add channels, each in a group of its own, and return their numbers."""
        added = torch.arange(len(self), len(self) + count)
        self._parents.extend(added.tolist())
        return added

    def merge(self, first: Tensor, second: Tensor) -> None:
        """Merge the group of each channel with that of its counterpart."""
        for a, b in zip(first.flatten().tolist(), second.flatten().tolist(), strict=True):
            self._parents[self._root(a)] = self._root(b)

    def tie(self, rows: Tensor) -> None:
        """Merge the groups of all channels in each row."""
        if rows.numel():
            self.merge(rows[:, 1:], rows[:, :1].expand_as(rows[:, 1:]))

    def pin(self, channels: Tensor) -> None:
        """Mark channels that stay, whatever the weights are."""
        self._pinned.append(channels.flatten())

    def find_roots(self, channels: Tensor | None = None) -> Tensor:
        """Return one representative of the group of each channel; by default of all channels."""
        if channels is None:
            return torch.tensor([self._root(number) for number in range(len(self))], dtype=torch.long)
        roots = [self._root(number) for number in channels.flatten().tolist()]
        return torch.tensor(roots, dtype=torch.long).view(channels.shape)

    def find_pinned(self) -> Tensor:
        """Return for every channel True if one of its group is pinned."""
        pinned = torch.zeros(len(self), dtype=torch.bool)
        for channels in self._pinned:
            pinned[self.find_roots(channels)] = True
        return pinned[self.find_roots()]

    def _root(self, channel: int) -> int:
        while self._parents[channel] != channel:
            self._parents[channel] = self._parents[self._parents[channel]]
            channel = self._parents[channel]
        return channel


class Factor(NamedTuple):
    """Tensor of a product, with a letter for each dimension.

    Attributes:
        letters: The letters.
        shape: Its shape.
        layout: Its channels, ``None`` if it has none.
    """

    letters: str
    shape: tuple[int, ...]
    layout: ChannelLayout | None

    def repeat(self, axis: int, times: int) -> Factor:
        """Return the tensor with each of its entries along a dimension several times in a row."""
        axis %= len(self.shape)
        shape = tuple(size * times if place == axis else size for place, size in enumerate(self.shape))
        if self.layout is None or axis not in self.layout.axes:
            return self._replace(shape=shape)
        place = self.layout.axes.index(axis)
        numbers, constants = (
            part.repeat_interleave(times, place) for part in (self.layout.numbers, self.layout.constants)
        )
        return self._replace(shape=shape, layout=self.layout._replace(numbers=numbers, constants=constants))

    def along(self, letter: str) -> bool:
        """Return True if the tensor has several entries along a dimension that no channel is about."""
        place = self.letters.find(letter)
        return place >= 0 and self.shape[place] > 1 and letter not in self.channel_letters

    @property
    def channel_letters(self) -> str:
        """Letters of the dimensions along which the channels differ."""
        return "" if self.layout is None else "".join(self.letters[axis] for axis in self.layout.axes)


class Tied(NamedTuple):
    """Channels of a tensor that were tied along some dimensions.

    Attributes:
        letters: Letters of the others.
        numbers: Number of one channel at each of their places.
        zero: True where all channels are zero.
    """

    letters: str
    numbers: Tensor
    zero: Tensor

    def tie(self, groups: ChannelGroups, letters: str) -> Self:
        """Tie the channels at the same places of some of the dimensions."""
        places = [self.letters.index(letter) for letter in letters]
        sizes = [self.numbers.shape[place] for place in places]
        rows = as_rows(self.numbers, places)
        groups.tie(rows)
        zero = as_rows(self.zero, places).all(1).view(sizes)
        return self._replace(letters=letters, numbers=rows[:, 0].view(sizes), zero=zero)


def contract(groups: ChannelGroups, factors: list[Factor], out: str) -> tuple[ChannelLayout | None, bool]:
    """Return the channels of a sum of products of two tensors, and False if they cannot be told.

    What is summed over goes with the channels that it belongs to, as the entries of a query with its head, and a
    dimension of channels that both tensors have goes as one.

    >>> groups = ChannelGroups()
    >>> heads = [ChannelLayout(groups.add(6).view(2, 3), torch.zeros(2, 3), (0, 2)) for _ in range(2)]
    >>> queries, keys = Factor("htd", (2, 5, 3), heads[0]), Factor("hsd", (2, 5, 3), heads[1])
    >>> layout, known = contract(groups, [queries, keys], "hts")
    >>> layout.axes, len(groups.find_roots().unique())
    ((0,), 2)
    """
    tied: list[Tied] = []
    for factor in factors:
        letters = factor.channel_letters
        if factor.layout is None:
            continue
        kept = "".join(letter for letter in letters if letter in out)
        if not kept:
            return None, False
        tied.append(Tied(letters, factor.layout.numbers, factor.layout.constants == 0).tie(groups, kept))
    if not tied:
        return None, True
    if any(factor.along(letter) for part in tied for factor in factors for letter in part.letters):
        return None, False
    shared = "".join(letter for letter in tied[0].letters if all(letter in part.letters for part in tied))
    if not shared:
        return None, False
    tied = [part.tie(groups, shared) for part in tied]
    for part in tied[1:]:
        groups.merge(part.numbers, tied[0].numbers)
    order = sorted(range(len(shared)), key=lambda place: out.index(shared[place]))
    zero = torch.stack([part.zero for part in tied]).any(0)
    numbers, constants = (part.permute(order) for part in (tied[0].numbers, torch.where(zero, 0.0, math.nan).double()))
    return ChannelLayout(numbers, constants, tuple(sorted(out.index(letter) for letter in shared))), True
