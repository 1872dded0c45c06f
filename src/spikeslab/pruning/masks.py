"""What all pruners share: the clock, zeroing, and the masks of what stays zero."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from spikeslab.errors import check_choice
from spikeslab.functional import groups
from spikeslab.samplers.base import Sampler

MODES = ("projected", "masked")


class Masks:
    """Base of the pruners, with a mask over the units of each weight: its numbers, or its slices ``weight[o]``.

    Args:
        weights: Weights that may become zero.
        mode: ``"projected"`` (units may return) or ``"masked"``.
        sampler: Where given, its steps are counted instead of the calls.
        sliced: Whether the units are slices.
    """

    def __init__(self, weights: dict[str, Tensor], mode: str, sampler: Sampler | None, *, sliced: bool = False) -> None:
        self.weights = weights
        self.mode = check_choice("mode", mode, MODES)
        self.steps = 0
        self._sampler = sampler
        self._sliced = sliced
        self._pruned: list[Tensor] = []
        self._counts: list[int] | None = None

    def _tick(self) -> int:
        """Count a call, or read the sampler's count, which a step skipped by a GradScaler does not advance."""
        self.steps = self.steps + 1 if self._sampler is None else self._sampler.steps
        return self.steps

    def _shapes(self) -> list[tuple[int, ...]]:
        """The shape of each mask."""
        return [tuple(weight.shape[: 1 if self._sliced else None]) for weight in self.weights.values()]

    def _magnitudes(self) -> list[Tensor]:
        """How large each unit is: 0 only where it is all zero."""
        weights = [weight.detach() for weight in self.weights.values()]
        return groups.norms(weights) if self._sliced else [weight.abs() for weight in weights]

    def _scores(self, scores: Sequence[Tensor]) -> list[Tensor]:
        """Scores of which the smallest go first: those pruned for good, before all."""
        if self.mode == "projected" or not self._pruned:
            return list(scores)
        return [score.masked_fill(pruned, -1.0) for score, pruned in zip(scores, self._pruned, strict=True)]

    def _zero(self, masks: Sequence[Tensor]) -> None:
        if self.mode == "masked" and masks is not self._pruned:
            self._pruned, self._counts = list(masks), None
        for weight, mask in zip(self.weights.values(), masks, strict=True):
            zero_units_(weight, mask)

    def _pruned_counts(self) -> list[int]:
        """How many units of each weight are pruned for good; a device is asked once for each set of masks."""
        if not self._pruned:
            return [0] * len(self.weights)
        if self._counts is None:
            self._counts = [int(count) for count in torch.stack([mask.sum().cpu() for mask in self._pruned])]
        return self._counts

    def freeze(self) -> None:
        """From now on the weights that are zero stay zero: masked mode, from the present zeros on.

        Samples of a posterior that share their zeros are as sparse together as each of them is.
        """
        self.mode = "masked"
        self._pruned, self._counts = [magnitude == 0 for magnitude in self._magnitudes()], None

    def state_dict(self) -> dict[str, Any]:
        """The count of steps, the mode and, in masked mode, which weights are pruned."""
        return {
            "steps": self.steps,
            "names": list(self.weights),
            "mode": self.mode,
            "pruned": list(self._pruned),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take over a state; one of other weights is refused and changes nothing."""
        shapes, own = [tuple(mask.shape) for mask in state["pruned"]], self._shapes()
        if list(state["names"]) != list(self.weights) or (shapes and shapes != own):
            raise ValueError(
                f"state_dict must be for the weights {list(self.weights)} of shapes {own}, "
                f"but got {list(state['names'])} of shapes {shapes}."
            )
        self.mode = check_choice("mode", state["mode"], MODES)
        self.steps = int(state["steps"])
        self._pruned = [
            mask.to(weight.device, torch.bool, copy=True)
            for mask, weight in zip(state["pruned"], self.weights.values(), strict=False)
        ]
        self._counts = None


def zero_units_(tensor: Tensor, mask: Tensor) -> None:
    """Zero what ``mask``, over the first dimensions of ``tensor``, marks.

    >>> rows = torch.ones(2, 3)
    >>> zero_units_(rows, torch.tensor([True, False]))
    >>> rows.tolist()
    [[0.0, 0.0, 0.0], [1.0, 1.0, 1.0]]
    """
    tensor.masked_fill_(mask.view(*mask.shape, *[1] * (tensor.ndim - mask.ndim)), 0.0)
