r"""Pruning of whole channels: what a compacted network can really leave out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import ClassVar

from torch import Tensor, nn

from spikeslab.errors import check_choice, check_count
from spikeslab.functional import groups
from spikeslab.pruning.channels import channel_layers
from spikeslab.pruning.masks import zero_units_
from spikeslab.pruning.scheduled import ScheduledPruner
from spikeslab.pruning.sparsity import Sparsity, measure_sparsity
from spikeslab.samplers.base import Sampler
from spikeslab.schedules import ScheduleLike


class ChannelPruner(ScheduledPruner):
    """Zero the least important output channels, following a schedule of the share that goes.

    A dead channel's filter, bias and the scale and shift of the batch normalisation behind it become zero, so that its
    output is zero for every input.

    >>> model = nn.Sequential(nn.Conv2d(1, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.Flatten(), nn.Linear(288, 10))
    >>> pruner = ChannelPruner(model, 0.5)
    >>> pruner.step()
    >>> pruner.living()
    {'0.weight': 4}

    In ``"projected"`` mode a dead channel may come back, but a rectifier passes it no gradient: only noise moves it.

    Args:
        model: The network.
        sparsity: Share of the channels that are dead, in [0, 1): a number or a schedule of the step.
        followers: From the name of each weight whose channels may go to the name of its batch normalisation, or to
            ``None``; by default those of :func:`~spikeslab.pruning.free_channel_layers`.
        scope: ``"layer"`` takes the same share of each layer, ``"global"`` ranks the channels of all layers together,
            ``"erk"`` takes more of large layers.
        min_channels: What every layer keeps at least: a number of channels, or a share of them below 1.
        by: What ranks the channels: ``"gate"`` is the scale of the normalisation, or without one the norm of the
            filter; ``"filter"`` is always the norm of the filter. Both are the standard deviation of the channel's
            output, the norm for uncorrelated inputs of unit variance, so that layers of any width compare.
        mode: ``"projected"`` or ``"masked"``.
        sampler: Where given, its steps are counted instead of the calls.
    """

    unit: ClassVar[str] = "channel"

    def __init__(
        self,
        model: nn.Module,
        sparsity: float | ScheduleLike,
        *,
        followers: Mapping[str, str | None] | None = None,
        scope: str = "layer",
        min_channels: float = 1,
        by: str = "gate",
        mode: str = "projected",
        sampler: Sampler | None = None,
    ) -> None:
        self._layers = channel_layers(model, followers)
        self._by_gate = check_choice("by", by, ("gate", "filter")) == "gate"
        self._model = model
        super().__init__(
            {name: layer.weight for name, layer in self._layers.items()},
            sparsity,
            scope=scope,
            floor=min_channels if isinstance(min_channels, float) else check_count("min_channels", min_channels),
            mode=mode,
            sampler=sampler,
            sliced=True,
        )

    def _importances(self) -> list[Tensor]:
        ranked = [layer.gate if self._by_gate else layer.weight for layer in self._layers.values()]
        return groups.norms([tensor.detach() for tensor in ranked])

    def _zero(self, masks: Sequence[Tensor]) -> None:
        super()._zero(masks)
        for layer, mask in zip(self._layers.values(), masks, strict=True):
            for tensor in layer.followers:
                zero_units_(tensor, mask)

    def living(self) -> dict[str, int]:
        """How many channels of each layer are not dead."""
        return {name: int(m.count_nonzero()) for name, m in zip(self.weights, self._magnitudes(), strict=True)}

    def sparsity(self) -> Sparsity:
        """Count the zeros now, weight by weight."""
        return measure_sparsity(self.weights, self._model)
