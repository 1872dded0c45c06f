r"""Pruning of whole channels and other units, which compacting can then remove."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from torch import Tensor, nn

from spikeslab.errors import ArgumentValueError, Phrase, check_choice, check_count, mark
from spikeslab.functional import groups
from spikeslab.functional.thresholds import smallest
from spikeslab.graph.units import UnitFamily
from spikeslab.priors.spike_slab import SpikeSlab
from spikeslab.pruning.base import ScheduledPruner
from spikeslab.pruning.sparsity import Sparsity, measure_sparsity
from spikeslab.pruning.units import channel_units
from spikeslab.samplers.base import Sampler
from spikeslab.schedules import ScheduleLike


class ChannelPruner(ScheduledPruner):
    """Pruner that zeroes the least important output channels, following a schedule of their share.

    The filter and bias of a dead channel become zero, and so do the scale and shift of the batch normalisation behind
    it, so that its output is zero for every input.

    >>> model = nn.Sequential(nn.Conv2d(1, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.Flatten(), nn.Linear(288, 10))
    >>> pruner = ChannelPruner(model, 0.5)
    >>> pruner.step()
    >>> pruner.count_live_channels()
    {'0.weight': 4}

    With ``units`` of :func:`~spikeslab.pruning.find_units` it prunes all that compacting can remove: feed-forward
    units, heads, groups of a convolution, channels of a residual stage.

    In ``"projected"`` mode a dead channel may come back, but a rectifier passes it no gradient: only noise moves it.

    Args:
        model: The network.
        sparsity: Share of the channels that are dead, in [0, 1): a number or a schedule of the step.
        followers: From the name of each weight whose channels may go to the name of its batch normalisation, or to
            ``None``; by default those of :func:`~spikeslab.pruning.free_channel_layers`.
        units: Families of units, in place of ``followers``. One with a ``multiple`` keeps the number nearest to its
            share, so that the shares of all are not exact then.
        scope: ``"layer"`` takes the same share of each layer, ``"global"`` ranks the channels of all layers together,
            ``"erk"`` takes more of large layers.
        min_channels: Number of channels, or share of them below 1, that every layer keeps at least.
        by: Score of a channel: ``"gate"`` is the scale of the normalisation, or without one the norm of the filter, of
            a head that of all of its weights; ``"filter"`` is always the norm of the filters. Both are the standard
            deviation of the channel's output (the norm for uncorrelated inputs of unit variance), so that layers of any
            width compare.
        mode: ``"projected"`` or ``"masked"``.
        every: Number of steps from one pruning to the next; in between, channels that are dead stay dead.
        freeze_at: Step after which dead channels stay dead; ``None`` waits for :meth:`freeze`.
        prior: Prior of the channels' gates: it gets to know the share of dead channels, and is conditioned on them when
            they freeze.
        sampler: If given, its steps are counted instead of the calls.
    """

    unit: ClassVar[str] = "channel"

    def __init__(
        self,
        model: nn.Module,
        sparsity: float | ScheduleLike,
        *,
        followers: Mapping[str, str | None] | None = None,
        units: Mapping[str, UnitFamily] | None = None,
        scope: str = "layer",
        min_channels: float = 1,
        by: str = "gate",
        mode: str = "projected",
        every: int = 1,
        freeze_at: int | None = None,
        prior: SpikeSlab | None = None,
        sampler: Sampler | None = None,
    ) -> None:
        if followers is not None and units is not None:
            raise ArgumentValueError("units", f"must not go with {mark('followers')}", Phrase("got both"))
        self._families = channel_units(model, followers) if units is None else dict(units)
        self._tensors = dict(model.named_parameters())
        self.by = check_choice("by", by, ("gate", "filter"))
        super().__init__(
            {name: self._tensors[family.filters(self._tensors)[0].name] for name, family in self._families.items()},
            sparsity,
            scope=scope,
            floor=min_channels if isinstance(min_channels, float) else check_count("min_channels", min_channels),
            every=every,
            freeze_at=freeze_at,
            prior=prior,
            mode=mode,
            sampler=sampler,
            network=model,
            sliced=True,
        )

    def settings_dict(self) -> dict[str, Any]:
        """Return the settings, with the score of a channel."""
        return super().settings_dict() | {"by": self.by}

    def sparsity(self) -> Sparsity:
        """Count the weights that are zero now, of all filters that write a unit."""
        names = [part.name for family in self._families.values() for part in family.filters(self._tensors)]
        return measure_sparsity({name: self._tensors[name] for name in names}, self._network)

    def _shapes(self) -> list[tuple[int, ...]]:
        return [(family.count,) for family in self._families.values()]

    def _magnitudes(self) -> list[Tensor]:
        return [groups.joint_norms(family.filters(self._tensors), self._tensors) for family in self._families.values()]

    def _importances(self) -> list[Tensor]:
        if self.by == "filter":
            return self._magnitudes()
        return [groups.joint_norms(family.gates, self._tensors) for family in self._families.values()]

    def _choose(self, scores: list[Tensor], zeros: int, pruned: Sequence[int]) -> list[Tensor]:
        """Return masks of the units with the smallest scores; families with a multiple keep the nearest number."""
        masks = super()._choose(scores, zeros, pruned)
        chosen = []
        for family, score, mask, least, gone in zip(
            self._families.values(), scores, masks, self._keep, pruned, strict=True
        ):
            if family.multiple > 1:
                kept = family.nearest(family.count - int(mask.sum()), least)
                mask = smallest(score, max(family.count - kept, gone))
            chosen.append(mask)
        return chosen

    def _zero(self, masks: Sequence[Tensor]) -> None:
        self._hold(masks)
        for family, mask in zip(self._families.values(), masks, strict=True):
            for part in family.members:
                part.zero_(self._tensors[part.name], mask)

    def count_live_channels(self) -> dict[str, int]:
        """Return the number of channels of each layer that are not dead."""
        return {name: int(m.count_nonzero()) for name, m in zip(self.weights, self._magnitudes(), strict=True)}
