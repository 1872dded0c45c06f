r"""Dynamic pruning with feedback (DPF): a pruned weight keeps its value in a dense copy and returns when it has grown.

A dense copy w is kept. The network is :math:`\tilde w = m \odot w` with the mask m of the largest weights, and the
gradient at the pruned network moves the dense copy:

.. math:: w \leftarrow w - \mathrm{lr}\,\nabla f(m \odot w),

with m computed anew every p steps. Only the part of w under the mask needs to be kept, since the rest is the network.

Reference: Lin, Stich, Barba, Dmitriev and Jaggi, "Dynamic Model Pruning with Feedback", ICLR 2020.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from spikeslab.errors import check_count
from spikeslab.functional.thresholds import smallest_overall, smallest_per_tensor
from spikeslab.pruning import Pruner
from spikeslab.schedules import ScheduleLike
from spikeslab.weights import Weights


class FeedbackPruner(Pruner):
    """Magnitude pruner that keeps the values of pruned weights.

    >>> layer = nn.Linear(2, 1)
    >>> with torch.no_grad():
    ...     _ = layer.weight.copy_(torch.tensor([[0.3, 1.0]]))
    >>> pruner = FeedbackPruner([layer.weight], 0.5, every=1)
    >>> pruner.step()
    >>> with torch.no_grad():
    ...     _ = layer.weight.add_(torch.tensor([[0.5, -0.4]]))  # a step of the optimizer, from (0, 1)
    >>> pruner.step()  # dense: (0.8, 0.6)
    >>> [round(w, 6) for w in layer.weight.flatten().tolist()]
    [0.8, 0.0]

    Args:
        weights: Weights that may become zero.
        sparsity: Share of zeros: a number or a schedule of the step.
        every: Steps between two masks, p.
        scope: As for :class:`~spikeslab.Pruner`.
        floor: As for :class:`~spikeslab.Pruner`.
        network: As for :class:`~spikeslab.Pruner`.
    """

    def __init__(
        self,
        weights: Weights,
        sparsity: float | ScheduleLike,
        *,
        every: int = 16,
        scope: str = "layer",
        floor: float = 1,
        network: nn.Module | None = None,
    ) -> None:
        super().__init__(weights, sparsity, scope=scope, floor=floor, network=network)
        self.every = check_count("every", every)
        self._hidden: list[Tensor] = []
        self._masks: list[Tensor] = []

    @torch.no_grad()
    def step(self) -> None:
        """Move the dense copy as the network was moved, and prune it; every ``every`` steps by a new mask."""
        if self.mode == "masked":
            super().step()
            return
        step = max(self._count_step(), 1)
        self._prune(anew=not self._masks or step % self.every == 0)

    @torch.no_grad()
    def freeze(self) -> None:
        """Update the mask, and drop the values under it."""
        if self.mode != "masked":
            self._prune(anew=True)
        super().freeze()
        self._hidden, self._masks = [], []

    def _prune(self, anew: bool) -> None:
        dense = [weight.detach().clone() for weight in self.weights.values()]
        if self._hidden:
            torch._foreach_add_(dense, self._hidden)
        if anew:
            self._masks = self._smallest([weight.abs() for weight in dense], self.zeros(max(self.steps, 1)))
        self._hidden = [weight.masked_fill(~mask, 0.0) for weight, mask in zip(dense, self._masks, strict=True)]
        for weight, value, mask in zip(self.weights.values(), dense, self._masks, strict=True):
            weight.copy_(value.masked_fill_(mask, 0.0))

    def _smallest(self, scores: list[Tensor], zeros: int) -> list[Tensor]:
        if self.scope == "global":
            return smallest_overall(scores, zeros, self._keep)
        return smallest_per_tensor(scores, self._allocate(zeros, [0] * len(scores)))

    def state_dict(self) -> dict[str, Any]:
        """Return the state of the pruner, and the values under the mask."""
        return super().state_dict() | {"hidden": list(self._hidden), "masks": list(self._masks)}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Load a state; one of other weights is refused and changes nothing."""
        super().load_state_dict(state)
        weights = list(self.weights.values())
        self._hidden = [t.to(w, copy=True) for t, w in zip(state["hidden"], weights, strict=False)]
        self._masks = [t.to(w.device, torch.bool, copy=True) for t, w in zip(state["masks"], weights, strict=False)]
