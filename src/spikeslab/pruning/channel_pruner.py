r"""Pruning of whole output channels, which compacting can then remove."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, NamedTuple

from torch import Tensor, nn

from spikeslab.errors import ArgumentValueError, Phrase, check_choice, check_count, quote
from spikeslab.functional import groups
from spikeslab.graph.free_channels import free_channel_layers, is_normalised_by
from spikeslab.priors.spike_slab import SpikeSlab
from spikeslab.pruning.base import ScheduledPruner, zero_units_
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

    In ``"projected"`` mode a dead channel may come back, but a rectifier passes it no gradient: only noise moves it.

    Args:
        model: The network.
        sparsity: Share of the channels that are dead, in [0, 1): a number or a schedule of the step.
        followers: From the name of each weight whose channels may go to the name of its batch normalisation, or to
            ``None``; by default those of :func:`~spikeslab.pruning.free_channel_layers`.
        scope: ``"layer"`` takes the same share of each layer, ``"global"`` ranks the channels of all layers together,
            ``"erk"`` takes more of large layers.
        min_channels: Number of channels, or share of them below 1, that every layer keeps at least.
        by: Score of a channel: ``"gate"`` is the scale of the normalisation, or without one the norm of the filter;
            ``"filter"`` is always the norm of the filter. Both are the standard deviation of the channel's output (the
            norm for uncorrelated inputs of unit variance), so that layers of any width compare.
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
        scope: str = "layer",
        min_channels: float = 1,
        by: str = "gate",
        mode: str = "projected",
        every: int = 1,
        freeze_at: int | None = None,
        prior: SpikeSlab | None = None,
        sampler: Sampler | None = None,
    ) -> None:
        self._layers = channel_layers(model, followers)
        self.by = check_choice("by", by, ("gate", "filter"))
        super().__init__(
            {name: layer.weight for name, layer in self._layers.items()},
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

    def _importances(self) -> list[Tensor]:
        ranked = [layer.gate if self.by == "gate" else layer.weight for layer in self._layers.values()]
        return groups.norms([tensor.detach() for tensor in ranked])

    def _zero(self, masks: Sequence[Tensor]) -> None:
        super()._zero(masks)
        for layer, mask in zip(self._layers.values(), masks, strict=True):
            for tensor in layer.followers:
                zero_units_(tensor, mask)

    def count_live_channels(self) -> dict[str, int]:
        """Return the number of channels of each layer that are not dead."""
        return {name: int(m.count_nonzero()) for name, m in zip(self.weights, self._magnitudes(), strict=True)}


class ChannelLayer(NamedTuple):
    """Layer whose channels may go.

    Attributes:
        weight: Its filters, one slice for each channel.
        gate: Parameter that scales each channel: the scale of the normalisation behind it, or else the filters.
        followers: Parameters that become zero with a filter: its bias, the scale and the shift of the normalisation.
    """

    weight: Tensor
    gate: Tensor
    followers: tuple[Tensor, ...]


def channel_layers(model: nn.Module, followers: Mapping[str, str | None] | None = None) -> dict[str, ChannelLayer]:
    """Return the layers that ``followers`` names, in the form of :func:`free_channel_layers`; by default the free ones.

    Raises:
        ValueError: If no channel is free, or a name is not that of a weight or of a fitting normalisation.
    """
    named = free_channel_layers(model) if followers is None else followers
    if not named:
        raise ArgumentValueError(
            "model",
            "must have a layer with free channels",
            Phrase("got none"),
            "name one in Python, as in {'conv1.weight': 'bn1'}",
        )
    parameters, modules = dict(model.named_parameters()), dict(model.named_modules())
    wrong = [name for name in named if name not in parameters or parameters[name].ndim < 2]
    if wrong:
        raise ArgumentValueError("followers", "must name weights of layers of the model", Phrase(f"got {quote(wrong)}"))
    layers = {}
    for name, follower in named.items():
        weight = gate = parameters[name]
        bias = parameters.get(name.removesuffix("weight") + "bias")
        zeroed = [] if bias is None else [bias]
        if follower is not None:
            if not is_normalised_by(weight, modules.get(follower)):
                raise ArgumentValueError(
                    "followers",
                    f"must give {name!r} a batch normalisation with a scale and a shift for each of its {len(weight)} "
                    "channels, or None",
                    follower,
                )
            gate = parameters[f"{follower}.weight"]
            zeroed += [gate, parameters[f"{follower}.bias"]]
        layers[name] = ChannelLayer(weight, gate, tuple(zeroed))
    return layers


def channel_gates(model: nn.Module, followers: Mapping[str, str | None] | None = None) -> dict[str, Tensor]:
    """Return the parameter that scales each output channel, by the name of the filters, for a ``GroupSpikeSlab``.

    Batch normalisation undoes the scale of the filters in front of it, so a prior on them has no effect. A prior should
    act on the scale of the normalisation; without a normalisation, on the filters.

    >>> model = nn.Sequential(nn.Conv2d(1, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.Flatten(), nn.Linear(288, 10))
    >>> channel_gates(model)["0.weight"] is model[1].weight
    True
    """
    return {name: layer.gate for name, layer in channel_layers(model, followers).items()}
