"""Slots: places for channels that are kept or removed everywhere at once, some of them tied to each other."""

from __future__ import annotations

import torch
from torch import Tensor


class Slots:
    """A forest of slots; tied ones are in the same tree (union-find with path halving).

    >>> slots = Slots()
    >>> first, second = slots.fresh(2), slots.fresh(2)
    >>> slots.tie(first, second)
    >>> slots.pin(first[:1])
    >>> slots.pinned().tolist()
    [True, False, True, False]
    """

    def __init__(self) -> None:
        self._parents: list[int] = []
        self._pinned: list[Tensor] = []

    def __len__(self) -> int:
        return len(self._parents)

    def fresh(self, count: int) -> Tensor:
        """New slots, tied to none."""
        slots = torch.arange(len(self), len(self) + count)
        self._parents.extend(slots.tolist())
        return slots

    def tie(self, first: Tensor, second: Tensor) -> None:
        """Let slots share their fate, each with its counterpart."""
        for a, b in zip(first.tolist(), second.tolist(), strict=True):
            self._parents[self._root(a)] = self._root(b)

    def pin(self, slots: Tensor) -> None:
        """Let slots stay, whatever the weights are."""
        self._pinned.append(slots)

    def roots(self, slots: Tensor) -> Tensor:
        """One representative for all slots that are tied."""
        return torch.tensor([self._root(slot) for slot in slots.tolist()], dtype=torch.long)

    def all_roots(self) -> Tensor:
        """The same for every slot."""
        return self.roots(torch.arange(len(self)))

    def pinned(self) -> Tensor:
        """Whether each slot, or one that it is tied to, must stay."""
        pinned = torch.zeros(len(self), dtype=torch.bool)
        for slots in self._pinned:
            pinned[self.roots(slots)] = True
        return pinned[self.all_roots()]

    def _root(self, slot: int) -> int:
        while self._parents[slot] != slot:
            self._parents[slot] = self._parents[self._parents[slot]]
            slot = self._parents[slot]
        return slot
