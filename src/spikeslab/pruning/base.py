"""Bases of the pruners: masks of the zeros, and pruning on a schedule (algorithm 1 of the paper)."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from functools import cache
from importlib import import_module
from types import ModuleType
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from spikeslab.errors import ArgumentValueError, Phrase, check_choice, check_count, check_number, pluralize
from spikeslab.functional import groups
from spikeslab.functional.thresholds import smallest, smallest_overall
from spikeslab.priors.spike_slab import SpikeSlab
from spikeslab.pruning import allocation
from spikeslab.pruning.sparsity import Sparsity, measure_sparsity
from spikeslab.samplers.base import Sampler
from spikeslab.schedules import MAKERS, Schedule, ScheduleLike, constant, describe_schedule, parse_call
from spikeslab.shards import Reduction, local, part_of, wrap
from spikeslab.weights import WeightHolder

MODES = ("projected", "masked")
SCOPES = ("layer", "global", "erk")


@cache
def load_kernels() -> ModuleType | None:
    """Return the kernels that zero weights in memory, many times as fast as torch; ``None`` without a working numba."""
    try:
        return import_module("spikeslab.kernels.magnitudes")
    except (ImportError, RuntimeError):  # numba raises the latter if it can write its cache nowhere
        return None


class BasePruner(WeightHolder):
    """Base of the pruners, with a mask over the units of each weight: its entries, or its slices ``weight[o]``.

    Args:
        weights: Weights that may become zero.
        mode: ``"projected"`` (units may return) or ``"masked"``.
        sampler: If given, its steps are counted instead of the calls.
        network: If given, :meth:`sparsity` also counts over all of its parameters.
        sliced: If True, the units are slices.
    """

    def __init__(
        self,
        weights: dict[str, Tensor],
        mode: str,
        sampler: Sampler | None,
        network: nn.Module | None = None,
        sliced: bool = False,
    ) -> None:
        self.weights = weights
        self._ranks = Reduction(weights.values())
        if sliced and self._ranks:
            raise ArgumentValueError("weights", "must not be sharded to prune whole units", Phrase("got DTensors"))
        self._network = network
        self.mode = check_choice("mode", mode, MODES)
        self.steps = 0
        self._sampler = sampler
        self._sliced = sliced
        self._holds = mode == "masked"  # if True, the masks are kept and stay zero until others are chosen
        self._pruned: list[Tensor] = []
        self._counts: list[int] | None = None

    def sparsity(self) -> Sparsity:
        """Count the weights that are zero now."""
        return measure_sparsity(self.weights, self._network)

    def freeze(self) -> None:
        """Switch to masked mode: from now on the weights that are zero stay zero.

        Samples of a posterior that share their zeros are as sparse together as each of them is.
        """
        self.mode, self._holds = "masked", True
        self._pruned, self._counts = [magnitude == 0 for magnitude in self._magnitudes()], None

    def settings_dict(self) -> dict[str, Any]:
        """Return the settings as JSON values."""
        return {"type": type(self).__name__, "mode": self.mode}

    def load_settings(self, settings: Mapping[str, Any]) -> None:
        """Set attributes by their names."""
        for name, value in settings.items():
            setattr(self, name, value)

    def state_dict(self) -> dict[str, Any]:
        """Return the count of steps, the mode and the masks of the units that stay zero."""
        pruned = [wrap(mask, weight) for mask, weight in zip(self._pruned, self.weights.values(), strict=False)]
        return {"steps": self.steps, "names": list(self.weights), "mode": self.mode, "pruned": pruned}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Load a state.

        Raises:
            ValueError: If the state is of other weights; nothing changes then.
        """
        shapes, own = [tuple(mask.shape) for mask in state["pruned"]], self._shapes()
        if list(state["names"]) != list(self.weights) or (shapes and shapes != own):
            expectation = f"must be for the weights {list(self.weights)} of shapes {own}"
            got = Phrase(f"got {list(state['names'])} of shapes {shapes}")
            raise ArgumentValueError("state_dict", expectation, got)
        self.mode = check_choice("mode", state["mode"], MODES)
        self._holds |= self.mode == "masked"
        self.steps = int(state["steps"])
        self._pruned = [
            part_of(mask, weight).to(weight.device, torch.bool, copy=True)
            for mask, weight in zip(state["pruned"], self.weights.values(), strict=False)
        ]
        self._counts = None

    def _count_step(self) -> int:
        """Count a call, or read the sampler's count, which a step skipped by a GradScaler does not advance."""
        self.steps = self.steps + 1 if self._sampler is None else self._sampler.steps
        return self.steps

    def _shapes(self) -> list[tuple[int, ...]]:
        """Return the shape of each mask."""
        return [tuple(weight.shape[: 1 if self._sliced else None]) for weight in self.weights.values()]

    def _magnitudes(self) -> list[Tensor]:
        """Return the magnitude of each unit, 0 only if it is all zero."""
        weights = [local(weight).detach() for weight in self.weights.values()]
        return groups.norms(weights) if self._sliced else [weight.abs() for weight in weights]

    def _rank(self, scores: Sequence[Tensor]) -> list[Tensor]:
        """Return scores of which the smallest are pruned first; in masked mode, units pruned before come first."""
        if self.mode == "projected" or not self._pruned:
            return list(scores)
        return [score.masked_fill(pruned, -torch.inf) for score, pruned in zip(scores, self._pruned, strict=True)]

    def _hold(self, masks: Sequence[Tensor]) -> None:
        """Keep masks, if they hold until others are chosen."""
        if self._holds and masks is not self._pruned:
            self._pruned, self._counts = list(masks), None

    def _zero(self, masks: Sequence[Tensor]) -> None:
        """Zero the units that the masks mark, and keep the masks that hold."""
        self._hold(masks)
        kernels = None if self._sliced else load_kernels()
        for weight, mask in zip(map(local, self.weights.values()), masks, strict=True):
            if kernels is not None and kernels.can_zero(weight):
                kernels.zero_marked_(weight, mask)
            else:
                zero_units_(weight, mask)

    def _count_pruned(self) -> list[int]:
        """Return the number of units of each weight that are masked for good, counted once for each set of masks."""
        if self.mode == "projected" or not self._pruned:
            return [0] * len(self.weights)
        if self._counts is None:
            self._counts = self._count(self._pruned)
        return self._counts

    def _count(self, masks: Sequence[Tensor]) -> list[int]:
        """Return the number of units that each mask marks, over all ranks."""
        counts = torch.stack([mask.sum().cpu() for mask in masks]).tolist()
        return [int(count) for count in self._ranks.sum(self._ranks.own(counts))]


class ScheduledPruner(BasePruner):
    """Base of the pruners that follow a schedule: after step k, a share s(k) of the units is zero.

    Args:
        weights: Weights that may become zero.
        sparsity: Share of zeros in [0, 1): a number or a schedule of the step.
        scope: How the zeros are shared out, one of ``SCOPES``.
        floor: Number or share of the units that every layer keeps at least.
        every: Number of steps from one pruning to the next; until then, the units that are zero stay zero.
        freeze_at: Step after which zeros stay zero; ``None`` waits for :meth:`freeze`.
        prior: Spike-and-slab prior of what is pruned: it gets to know the share of zeros, and is conditioned on the
            zeros when they freeze.
        total: Number that the sparsity is a share of; by default all units of the weights.
        **base: Arguments of :class:`BasePruner`.

    Attributes:
        unit: Name of a unit in errors.
    """

    unit: ClassVar[str]

    def __init__(
        self,
        weights: dict[str, Tensor],
        sparsity: float | ScheduleLike,
        *,
        scope: str,
        floor: float,
        every: int = 1,
        freeze_at: int | None = None,
        prior: SpikeSlab | None = None,
        total: int | None = None,
        **base: Any,
    ) -> None:
        super().__init__(weights, **base)
        self.freeze_at = None if freeze_at is None else check_count("freeze_at", freeze_at)
        self._prior = prior
        self.scope = check_choice("scope", scope, SCOPES)
        self.schedule = sparsity if callable(sparsity) else constant(check_number("sparsity", sparsity, "[0, 1)"))
        self._sizes = [math.prod(shape) for shape in self._shapes()]
        self._keep = self._find_floors(floor)
        self.every = check_count("every", every)
        self._holds |= self.every > 1
        self._total = sum(self._sizes) if total is None else total
        zeros = self._count_zeros(self._target)
        if prior is not None and zeros:
            prior.aim(zeros / self.units)

    def _find_floors(self, floor: float) -> list[int]:
        """Return the number of units that each layer must keep."""
        return allocation.floors(self._sizes, floor)

    @property
    def units(self) -> int:
        """Number of units that may become zero."""
        return sum(self._sizes)

    @property
    def _target(self) -> float:
        """Share of zeros at the end, 0 if the schedule does not tell."""
        settings: dict[str, Any] = dict(self.schedule.settings) if isinstance(self.schedule, Schedule) else {}
        return float(settings.get("target", settings.get("value", 0.0)))

    def settings_dict(self) -> dict[str, Any]:
        """Return the settings; ``floor`` is the number of units that each layer keeps."""
        own = {"scope": self.scope, "floor": list(self._keep), "every": self.every, "total": self._total}
        times = {"freeze_at": self.freeze_at, "sparsity": describe_schedule(self.schedule)}
        return super().settings_dict() | own | times

    def load_settings(self, settings: Mapping[str, Any]) -> None:
        """Set some of the settings; a mask that is frozen stays so."""
        own, settings = self.settings_dict(), dict(settings)
        freeze_at = settings.get("freeze_at")
        if freeze_at is not None and freeze_at <= self.steps:
            expectation = f"must be later than the step of the checkpoint, {self.steps}"
            raise ArgumentValueError("freeze_at", expectation, freeze_at)
        text = settings.pop("sparsity", own["sparsity"])
        self.schedule = self.schedule if text == own["sparsity"] else parse_call(text, MAKERS)
        self._keep, self._total = settings.pop("floor", self._keep), settings.pop("total", self._total)
        super().load_settings(settings)

    @property
    def highest(self) -> float:
        """Largest sparsity that leaves every layer what it must keep."""
        return (sum(self._sizes) - sum(self._keep)) / self._total

    def zeros(self, step: int) -> int:
        """Return the number of zeros at ``step``: exactly round(S * total)."""
        return self._count_zeros(self.schedule(step))

    def _count_zeros(self, sparsity: object) -> int:
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
        """Prune to the sparsity of this step, if it is one of every ``every``, else hold the zeros; freeze in time."""
        self._move(max(self._count_step(), 1))
        if self.freeze_at is not None and self.steps >= self.freeze_at and self.mode != "masked":
            self.freeze()

    def _move(self, step: int) -> None:
        """Prune or hold the zeros at a step."""
        if step % self.every == 0:
            self._prune()
        elif self._pruned:
            self._zero(self._pruned)

    @torch.no_grad()
    def freeze(self) -> None:
        """Prune to the sparsity of this step, and switch to masked mode: from now on zeros stay zero.

        A prior that was given is conditioned on the zeros.
        """
        if self.steps % self.every:
            self._prune()
        super().freeze()
        if self._prior is not None:
            self._prior.condition_on_zeros()

    def _prune(self) -> None:
        zeros, pruned = self.zeros(max(self.steps, 1)), self._count_pruned()
        if self.mode == "masked" and self._pruned and sum(pruned) >= zeros:
            self._zero(self._pruned)
        else:
            self._zero(self._choose(self._rank(self._importances()), zeros, pruned))

    def _importances(self) -> list[Tensor]:
        """Return one importance score per unit; the lowest are pruned first."""
        return self._magnitudes()

    def _choose(self, scores: list[Tensor], zeros: int, pruned: Sequence[int]) -> list[Tensor]:
        """Return masks of the units with the smallest scores, in each layer no fewer than it has pruned."""
        if self.scope == "global":
            if self._ranks:
                return self._smallest_over_ranks(scores, zeros)
            return smallest_overall(scores, zeros, self._keep)
        each = zip(self.weights.values(), scores, self._allocate(zeros, pruned), strict=True)
        if self._ranks:
            return [Reduction([weight]).smallest([score], count)[0] for weight, score, count in each]
        return [smallest(score, count) for _, score, count in each]

    def _smallest_over_ranks(self, scores: list[Tensor], zeros: int) -> list[Tensor]:
        """Return :func:`smallest_overall` of scores of which this rank has a part."""
        masks = self._ranks.smallest(scores, zeros)
        left = [size - count for size, count in zip(self._sizes, self._count(masks), strict=True)]
        if all(number >= least for number, least in zip(left, self._keep, strict=True)):
            return masks
        spared = []
        for weight, score, size, least in zip(self.weights.values(), scores, self._sizes, self._keep, strict=True):
            (rest,) = Reduction([weight]).smallest([score], size - least)
            spared.append(score.masked_fill(~rest, torch.inf))
        return self._ranks.smallest(spared, zeros)

    def _allocate(self, zeros: int, pruned: Sequence[int]) -> list[int]:
        """Return the number of zeros of each layer, no fewer than it has pruned."""
        if self.scope == "layer":
            return allocation.per_layer(zeros, self._sizes, self._keep, pruned)
        shapes = [tuple(weight.shape) for weight in self.weights.values()]
        return allocation.erk(zeros, shapes, self._keep, pruned, self._sizes)


def zero_units_(tensor: Tensor, mask: Tensor) -> None:
    """Zero the units of a tensor that ``mask``, over its first dimensions, marks.

    >>> rows = torch.ones(2, 3)
    >>> zero_units_(rows, torch.tensor([True, False]))
    >>> rows.tolist()
    [[0.0, 0.0, 0.0], [1.0, 1.0, 1.0]]
    """
    tensor.masked_fill_(mask.view(*mask.shape, *[1] * (tensor.ndim - mask.ndim)), 0.0)
