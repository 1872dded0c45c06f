"""Families of units to prune, and the prior on them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from spikeslab.errors import ArgumentValueError, Phrase, quote
from spikeslab.functional.groups import GroupPart
from spikeslab.graph.free_channels import free_channel_layers, is_normalised_by
from spikeslab.graph.units import UnitFamily, find_units
from spikeslab.priors.group_spike_slab import GroupSpikeSlab

__all__ = ["channel_gates", "channel_units", "find_units", "unit_prior"]


def channel_units(model: nn.Module, followers: Mapping[str, str | None] | None = None) -> dict[str, UnitFamily]:
    """Return the channels of the layers that ``followers`` names, in the form of :func:`free_channel_layers`.

    By default they are those of the free ones.

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
    families = {}
    for name, follower in named.items():
        weight, gate = parameters[name], name
        members = [name, name.removesuffix("weight") + "bias"]
        if follower is not None:
            if not is_normalised_by(weight, modules.get(follower)):
                raise ArgumentValueError(
                    "followers",
                    f"must give {name!r} a batch normalisation with a scale and a shift for each of its {len(weight)} "
                    "channels, or None",
                    follower,
                )
            gate = f"{follower}.weight"
            members += [gate, f"{follower}.bias"]
        places = torch.arange(len(weight))[:, None]
        parts = tuple(GroupPart(member, 0, places) for member in members if member in parameters)
        families[name] = UnitFamily(len(weight), (GroupPart(gate, 0, places),), parts)
    return families


def channel_gates(model: nn.Module, followers: Mapping[str, str | None] | None = None) -> dict[str, Tensor]:
    """Return the parameter that scales each output channel, by the name of the filters, for a ``GroupSpikeSlab``.

    Batch normalisation undoes the scale of the filters in front of it, so a prior on them has no effect. A prior should
    act on the scale of the normalisation; without a normalisation, on the filters.

    >>> model = nn.Sequential(nn.Conv2d(1, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.Flatten(), nn.Linear(288, 10))
    >>> channel_gates(model)["0.weight"] is model[1].weight
    True
    """
    parameters = dict(model.named_parameters())
    return {name: parameters[units.gates[0].name] for name, units in channel_units(model, followers).items()}


def unit_prior(model: nn.Module, units: Mapping[str, UnitFamily], **arguments: Any) -> GroupSpikeSlab:
    """Return a spike-and-slab prior with one indicator for each unit, on the gates of the units.

    >>> model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2))
    >>> unit_prior(model, find_units(model, torch.zeros(2, 4)), v0=0.01, v1=1.0).rho["0.weight"].shape
    torch.Size([8])

    Args:
        model: The network.
        units: Families of :func:`find_units`.
        **arguments: Arguments of :class:`~spikeslab.priors.GroupSpikeSlab`.
    """
    parameters = dict(model.named_parameters())
    if all(_is_whole(family, parameters) for family in units.values()):
        return GroupSpikeSlab({name: parameters[family.gates[0].name] for name, family in units.items()}, **arguments)
    names = dict.fromkeys(gate.name for family in units.values() for gate in family.gates)
    gates = {name: family.gates for name, family in units.items()}
    return GroupSpikeSlab({name: parameters[name] for name in names}, groups=gates, **arguments)


def _is_whole(family: UnitFamily, parameters: Mapping[str, Tensor]) -> bool:
    """Return True if the gates of a family are the slices of one parameter, in order."""
    (gate, *others) = family.gates
    return not others and gate.dim == 0 and gate.places.flatten().tolist() == list(range(len(parameters[gate.name])))
