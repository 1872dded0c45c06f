r"""What the pruners on a schedule share (algorithm 1 of the paper): after every step, the bottom s(k) become zero."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import ClassVar

import torch
from torch import Tensor

from spikeslab.errors import ArgumentValueError, Phrase, check_choice, check_number, pluralize
from spikeslab.functional.thresholds import smallest_overall, smallest_per_tensor
from spikeslab.pruning import allocation
from spikeslab.pruning.masks import Masks
from spikeslab.samplers.base import Sampler
from spikeslab.schedules import Schedule, ScheduleLike, constant

SCOPES = ("layer", "global", "erk")


class ScheduledPruner(Masks):
    """Base of the pruners that follow a schedule of the sparsity.

    Args:
        weights: Weights that may become zero.
        sparsity: Share of zeros in [0, 1): a number or a schedule of the step.
        scope: How the zeros are shared out.
        floor: What every layer keeps at least.
        mode: ``"projected"`` or ``"masked"``.
        sampler: Where given, its steps are counted instead of the calls.
        sliced: Whether whole slices ``weight[o]`` become zero.
        total: What the sparsity is a share of; by default all units of the weights.

    Attributes:
        unit: What becomes zero.
    """

    unit: ClassVar[str]

    def __init__(
        self,
        weights: dict[str, Tensor],
        sparsity: float | ScheduleLike,
        *,
        scope: str,
        floor: float,
        mode: str,
        sampler: Sampler | None,
        sliced: bool = False,
        total: int | None = None,
    ) -> None:
        super().__init__(weights, mode, sampler, sliced=sliced)
        self.scope = check_choice("scope", scope, SCOPES)
        self.schedule = sparsity if callable(sparsity) else constant(check_number("sparsity", sparsity, "[0, 1)"))
        self._sizes = [math.prod(shape) for shape in self._shapes()]
        self._keep = allocation.floors(self._sizes, floor)
        self._total = sum(self._sizes) if total is None else total
        if isinstance(self.schedule, Schedule):
            settings = dict(self.schedule.settings)
            self._zeros(settings.get("target", settings.get("value", 0.0)))

    def zeros(self, step: int) -> int:
        """How many are zero at ``step``: exactly round(S * total)."""
        return self._zeros(self.schedule(step))

    def _zeros(self, sparsity: object) -> int:
        sparsity = check_number("sparsity", sparsity, "[0, 1)")
        zeros, room = round(sparsity * self._total), sum(self._sizes) - sum(self._keep)
        if zeros > room:
            kept = f"{pluralize(len(self._sizes), 'layer')} must keep {pluralize(sum(self._keep), self.unit)} in all"
            raise ArgumentValueError(
                "sparsity",
                f"must be at most {room / self._total:.6g}, since {kept}",
                Phrase(f"got {sparsity:.6g}, which is {zeros} zeros of {self._total}"),
            )
        return zeros

    @torch.no_grad()
    def step(self) -> None:
        """Prune to the sparsity of this step."""
        zeros = self.zeros(max(self._tick(), 1))
        pruned = self._pruned_counts()
        if self._pruned and sum(pruned) >= zeros:
            self._zero(self._pruned)
            return
        scores = self._scores(self._importances())
        if self.scope == "global":
            self._zero(smallest_overall(scores, zeros, self._keep))
        else:
            self._zero(smallest_per_tensor(scores, self._allocate(zeros, pruned)))

    def _importances(self) -> list[Tensor]:
        """Of each unit; the least important go first."""
        return self._magnitudes()

    def _allocate(self, zeros: int, pruned: Sequence[int]) -> list[int]:
        """Zeros of each layer, never fewer than it has."""
        if self.scope == "layer":
            return allocation.per_layer(zeros, self._sizes, self._keep, pruned)
        shapes = [tuple(weight.shape) for weight in self.weights.values()]
        return allocation.erk(zeros, shapes, self._keep, pruned, self._sizes)
