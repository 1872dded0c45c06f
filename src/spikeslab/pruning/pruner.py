"""Pruning of single weights, by magnitude or by saliency."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from spikeslab.errors import ArgumentValueError, Phrase, check_choice, mark, quote
from spikeslab.functional.patterns import Pattern, keep_largest_inputs, parse_pattern
from spikeslab.priors.spike_slab import SpikeSlab
from spikeslab.pruning.base import ScheduledPruner, load_kernels
from spikeslab.samplers.base import Sampler
from spikeslab.schedules import ScheduleLike
from spikeslab.shards import Reduction
from spikeslab.weights import Weights, name_weights

RANKS = ("magnitude", "saliency")


class Pruner(ScheduledPruner):
    """Pruner that zeroes the smallest or least salient weights, following a schedule of the sparsity.

    >>> layer = nn.Linear(10, 10)
    >>> pruner = Pruner([layer.weight], 0.9)
    >>> pruner.step()
    >>> pruner.sparsity().sparse
    0.9

    Args:
        weights: Weights that may become zero.
        sparsity: Share of zeros in [0, 1): a number or a schedule of the step.
        scope: ``"layer"`` prunes each layer at the same rate, ``"global"`` ranks all weights together, ``"erk"`` leaves
            small layers denser (:mod:`spikeslab.pruning.allocation`).
        floor: Number of weights, or share of them below 1, that every layer keeps at least. No layer is ever emptied.
        mode: ``"projected"`` (weights may return) or ``"masked"``.
        every: Number of steps from one pruning to the next; in between, weights that are zero stay zero. End with
            ``freeze_at`` or :meth:`freeze`, which prune to the sparsity of their step.
        freeze_at: Step after which zeros stay zero, so that all later samples share them; ``None`` waits for
            :meth:`freeze`.
        prior: Spike-and-slab prior of these weights: it gets to know the share of zeros, by which it chooses scales
            that were not given, and is conditioned on the zeros when they freeze.
        rank: ``"magnitude"`` zeroes the smallest weights, ``"saliency"`` those without which the loss would rise least,
            by a ``prior`` with ``evidence="curvature"``. Before the sampler's first step, and once the zeros are frozen
            and the prior learns no more, magnitude decides in either case.
        pattern: ``"N:M"`` keeps at least N of every M neighbouring inputs of an output, those of channels in a filter:
            only the others may become zero, and at the sparsity 1 - N/M all of them are. ``"2:4"`` is what sparse
            tensor cores compute with.
        network: If given, sparsity counts over all of its parameters, so that the sparse layers are pruned harder.
        sampler: If given, its steps are counted instead of the calls, so that a step that a GradScaler skips does not
            count.
    """

    unit: ClassVar[str] = "weight"

    def __init__(
        self,
        weights: Weights,
        sparsity: float | ScheduleLike,
        *,
        scope: str = "layer",
        floor: float = 1,
        mode: str = "projected",
        every: int = 1,
        freeze_at: int | None = None,
        prior: SpikeSlab | None = None,
        rank: str = "magnitude",
        pattern: str | None = None,
        network: nn.Module | None = None,
        sampler: Sampler | None = None,
    ) -> None:
        named, total = name_weights(weights), None
        if network is not None:
            inside = {id(parameter) for parameter in network.parameters()}
            if any(id(weight) not in inside for weight in named.values()):
                raise ArgumentValueError("weights", "must be parameters of the network", Phrase("some are not"))
            total = sum(parameter.numel() for parameter in network.parameters())
        self.rank = check_choice("rank", rank, RANKS)
        if rank == "saliency":
            _check_evidence(named, prior)
        if pattern is not None and Reduction(named.values()):
            raise ArgumentValueError("pattern", "must be None for sharded weights", pattern)
        self.pattern = pattern
        self._groups = None if pattern is None else _check_groups(named, parse_pattern(pattern))
        super().__init__(
            named,
            sparsity,
            scope=scope,
            floor=floor,
            every=every,
            freeze_at=freeze_at,
            prior=prior,
            total=total,
            mode=mode,
            sampler=sampler,
            network=network,
        )

    def settings_dict(self) -> dict[str, Any]:
        """Return the settings, with what ranks the weights and their pattern."""
        return super().settings_dict() | {"rank": self.rank, "pattern": self.pattern}

    def load_settings(self, settings: Mapping[str, Any]) -> None:
        """Set some of the settings; a mask that is frozen stays so."""
        if settings.get("rank", self.rank) == "saliency":
            _check_evidence(self.weights, self._prior)
        super().load_settings(settings)
        self._groups = None if self.pattern is None else _check_groups(self.weights, parse_pattern(self.pattern))
        self._keep = self._raise_floors(self._keep)

    def _find_floors(self, floor: float) -> list[int]:
        return self._raise_floors(super()._find_floors(floor))

    def _raise_floors(self, floors: list[int]) -> list[int]:
        """Return the numbers of weights that the layers must keep, those of the pattern included."""
        if self._groups is None:
            return floors
        kept = 1.0 - self._groups.sparsity
        return [max(count, round(kept * size)) for count, size in zip(floors, self._sizes, strict=True)]

    def _importances(self) -> list[Tensor]:
        return self._spare(self._weigh())

    def _spare(self, scores: list[Tensor]) -> list[Tensor]:
        """Return the scores, infinite where the pattern keeps a weight."""
        if self._groups is None:
            return scores
        spared = [keep_largest_inputs(score.clamp_min(0.0), self._groups) for score in scores]
        return [score.masked_fill(mask, torch.inf) for score, mask in zip(scores, spared, strict=True)]

    def _weigh(self) -> list[Tensor]:
        """Return the size or the saliency of each weight."""
        if self.rank == "magnitude" or self._prior is None or (found := self._prior.saliency) is None:
            return super()._importances()
        names = {id(weight): name for name, weight in self._prior.weights.items()}
        # A weight that is zero after a step of the sampler has no gradient: it is not kept, so that counts are exact.
        return [
            found[names[id(weight)]].masked_fill(weight.detach() == 0, -torch.inf) for weight in self.weights.values()
        ]

    def _prune(self) -> None:
        if self.rank != "magnitude" or self._groups is not None or not self._prune_in_memory():
            super()._prune()

    def _prune_in_memory(self) -> bool:
        """Zero the smallest weights without a copy of them; return False, with as many zeros as before, if torch must.

        Torch is left with weights that the kernels cannot read, and with layers whose floor decides.
        """
        weights, zeros, pruned = list(self.weights.values()), self.zeros(max(self.steps, 1)), self._count_pruned()
        kernels = load_kernels()
        if self._ranks or kernels is None or not all(map(kernels.can_zero, weights)) or sum(pruned) >= zeros:
            return False
        if self.scope == "global" and len({weight.dtype for weight in weights}) > 1:
            return False
        if self.mode == "masked" and self._pruned:  # they rank first
            self._zero(self._pruned)
        if self.scope == "global":
            done = kernels.zero_smallest_(weights, zeros, self._keep)
        else:
            counts = self._allocate(zeros, pruned)
            done = all(
                kernels.zero_smallest_([weight], count, [keep])
                for weight, count, keep in zip(weights, counts, self._keep, strict=True)
                if count
            )
        if done and self._holds:
            self._pruned, self._counts = [weight.detach() == 0 for weight in weights], None
        return bool(done)


def _check_groups(weights: dict[str, Tensor], pattern: Pattern) -> Pattern:
    """Return the pattern.

    Raises:
        ValueError: If it does not divide the inputs of a layer.
    """
    for name, weight in weights.items():
        inputs = weight.shape[1] if weight.ndim > 1 else 0
        if not inputs or inputs % (pattern.group or 1):
            got = Phrase(f"{name!r} has {inputs:,}" if inputs else f"{name!r} has no inputs")
            raise ArgumentValueError("pattern", "must divide the inputs of every layer", got)
    return pattern


def _check_evidence(weights: dict[str, Tensor], prior: SpikeSlab | None) -> None:
    """Raise if a prior cannot tell the saliencies of these weights."""
    if prior is None or prior.evidence != "curvature":
        expectation = f"must be a SpikeSlab with {mark('evidence', 'curvature')} for {mark('rank', 'saliency')}"
        raise ArgumentValueError("prior", expectation, prior)
    missing = [name for name, weight in weights.items() if weight not in prior]
    if missing:
        got = Phrase(f"it lacks {quote(missing)}")
        raise ArgumentValueError("prior", f"must be over all weights that {mark('rank', 'saliency')} ranks", got)
