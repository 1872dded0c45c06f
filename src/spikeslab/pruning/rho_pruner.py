"""Pruning by probability: weights that are probably in the spike become zero."""

from __future__ import annotations

from typing import Any

import torch

from spikeslab.errors import ArgumentValueError, Phrase, check_count, check_number, mark
from spikeslab.priors.group_spike_slab import GroupSpikeSlab
from spikeslab.priors.spike_slab import SpikeSlab
from spikeslab.pruning.base import BasePruner
from spikeslab.samplers.base import Sampler


class RhoPruner(BasePruner):
    """Pruner that zeroes the weights whose probability of being in the slab is below a threshold.

    Under a group prior it zeroes whole groups. The largest probability of each layer always stays.

    Args:
        prior: A spike-and-slab prior whose spike is narrower than its slab.
        threshold: Weights with a smaller rho become zero.
        start: First step that prunes, since rho means little before the latents have moved.
        mode: ``"projected"`` (weights may return) or ``"masked"``.
        sampler: If given, its steps are counted instead of the calls.
    """

    def __init__(
        self,
        prior: SpikeSlab,
        threshold: float = 0.5,
        *,
        start: int = 1,
        mode: str = "projected",
        sampler: Sampler | None = None,
    ) -> None:
        super().__init__(dict(prior.weights), mode, sampler, sliced=isinstance(prior, GroupSpikeSlab))
        self.threshold = check_number("threshold", threshold, "(0, 1)")
        self.start = check_count("start", start)
        if self._ranks:
            raise ArgumentValueError("prior", "must be over whole weights", Phrase("they are sharded"), "use Pruner")
        if prior.inverted:
            raise ArgumentValueError(
                "prior",
                "must have a spike narrower than its slab",
                Phrase(f"got {mark('v0', prior.v0)} and {mark('v1', prior.v1)}: a large rho means a small weight"),
            )
        self._prior = prior

    def settings_dict(self) -> dict[str, Any]:
        """Return mode, threshold and first step."""
        return super().settings_dict() | {"threshold": self.threshold, "start": self.start}

    @torch.no_grad()
    def step(self) -> None:
        """Zero the weights that are probably in the spike now."""
        if self._count_step() < self.start:
            return
        scores = self._rank(list(self._prior.rho.values()))
        masks = []
        for score in scores:
            # Flat and contiguous: a channels_last score has no flat view to write through.
            flat = score.reshape(-1)
            mask = flat < self.threshold
            mask[flat.argmax()] = False
            masks.append(mask.view(score.shape))
        self._zero(masks)
