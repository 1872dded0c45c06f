"""What belongs to an output channel: what decides how large it is, and what becomes zero with it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from torch import Tensor, nn

from spikeslab.errors import ArgumentValueError, Phrase, quote
from spikeslab.graph.free_channels import free_channel_layers, is_normalised_by


class ChannelLayer(NamedTuple):
    """A layer whose channels may go.

    Attributes:
        weight: Its filters, one slice for each channel.
        gate: What decides how large a channel is: the scale of the normalisation behind it, or else the filters.
        followers: What becomes zero with a filter: its bias, the scale and the shift of the normalisation.
    """

    weight: Tensor
    gate: Tensor
    followers: tuple[Tensor, ...]


def channel_layers(model: nn.Module, followers: Mapping[str, str | None] | None = None) -> dict[str, ChannelLayer]:
    """The layers that ``followers`` names, in the form of :func:`free_channel_layers`, or by default the free ones.

    Raises:
        ValueError: If there is no free channel, or a name is not that of a weight or of a fitting normalisation.
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
    return {name: _channel_layer(name, follower, parameters, modules) for name, follower in named.items()}


def channel_gates(model: nn.Module, followers: Mapping[str, str | None] | None = None) -> dict[str, Tensor]:
    """What decides how large the channels are, by the names of the filters: the weights for a ``GroupSpikeSlab``.

    Batch normalisation undoes the scale of the filters in front of it: a prior on them shrinks them all and says
    nothing. Its own scale is what a prior can act on; without a normalisation it is the filter itself.

    >>> model = nn.Sequential(nn.Conv2d(1, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.Flatten(), nn.Linear(288, 10))
    >>> channel_gates(model)["0.weight"] is model[1].weight
    True
    """
    return {name: layer.gate for name, layer in channel_layers(model, followers).items()}


def _channel_layer(
    name: str, follower: str | None, parameters: Mapping[str, Tensor], modules: Mapping[str, nn.Module]
) -> ChannelLayer:
    weight, bias = parameters[name], parameters.get(name.removesuffix("weight") + "bias")
    own = () if bias is None else (bias,)
    if follower is None:
        return ChannelLayer(weight, weight, own)
    normalisation = modules.get(follower)
    if not is_normalised_by(weight, normalisation):
        raise ArgumentValueError(
            "followers",
            f"must give {name!r} a batch normalisation with a scale and a shift for each of its {len(weight)} "
            "channels, or None",
            follower,
        )
    scale, shift = parameters[f"{follower}.weight"], parameters[f"{follower}.bias"]
    return ChannelLayer(weight, scale, (*own, scale, shift))
