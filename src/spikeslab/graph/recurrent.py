"""Units of recurrent layers: rows of all gates, columns of the recurrent matrices, in all layers and directions alike.

A module of torch has one width for all of its layers and directions, so that unit j of one goes with unit j of the
others. A unit whose candidate has weights and biases of zero is zero at every step, if it begins at zero.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

CANDIDATES = {nn.LSTM: (2, 4), nn.GRU: (2, 3), nn.RNN: (0, 1)}
"""For each class the place of the candidate of the new state among the gates, and their number."""


def can_lose_units(module: nn.Module) -> bool:
    """Return True for a recurrent layer of torch's own class without a projection."""
    return type(module) in CANDIDATES and not getattr(module, "proj_size", 0)


def suffixes(module: nn.RNNBase) -> list[tuple[int, str]]:
    """Return the layer and the end of the names of the parameters, for each layer and direction."""
    ends = ("", "_reverse") if module.bidirectional else ("",)
    return [(layer, f"_l{layer}{end}") for layer in range(module.num_layers) for end in ends]


def count_gates(module: nn.RNNBase) -> int:
    """Return the number of gates."""
    return CANDIDATES[type(module)][1]


def by_units(module: nn.RNNBase, name: str) -> Tensor:
    """Return a parameter with the gates first and the units second."""
    parameter: Tensor = getattr(module, name)
    return parameter.detach().cpu().view(count_gates(module), module.hidden_size, *parameter.shape[1:])


def reads(module: nn.RNNBase, kind: str) -> list[tuple[int, Tensor]]:
    """Return, for each layer and direction, which units read which inputs (``"ih"``) or units (``"hh"``)."""
    return [(layer, (by_units(module, f"weight_{kind}{end}") != 0).any(0)) for layer, end in suffixes(module)]


def zero_units(module: nn.RNNBase) -> Tensor:
    """Return which units are zero at every step, whatever the input is."""
    candidate, zero = CANDIDATES[type(module)][0], torch.ones(module.hidden_size, dtype=torch.bool)
    for _, end in suffixes(module):
        for kind in ("ih", "hh"):
            zero &= (by_units(module, f"weight_{kind}{end}")[candidate] == 0).all(1)
            if module.bias:
                zero &= by_units(module, f"bias_{kind}{end}")[candidate] == 0
    return zero


def cut_units(module: nn.RNNBase, units: Tensor, inputs: Tensor, constants: Tensor) -> None:
    """Keep some units and inputs, in place; inputs that go are constant or not read, and move into the biases."""
    rows = units.repeat(count_gates(module))
    directions = 2 if module.bidirectional else 1
    changed: dict[str, nn.Parameter] = {}
    for layer, end in suffixes(module):
        columns = units.repeat(directions) if layer else inputs
        for kind, kept in (("ih", columns), ("hh", units)):
            old = getattr(module, f"weight_{kind}{end}")
            changed[f"weight_{kind}{end}"] = _keep(old, old.detach()[rows.to(old.device)][:, kept.to(old.device)])
            if module.bias:
                bias = getattr(module, f"bias_{kind}{end}")
                shift = torch.zeros(len(bias), dtype=torch.float64)
                if kind == "ih" and not layer:
                    shift = old.detach().cpu().double() @ constants.nan_to_num(0.0).masked_fill(inputs, 0.0)
                values = bias.detach().double() + shift.to(bias.device)
                changed[f"bias_{kind}{end}"] = _keep(bias, values[rows.to(bias.device)].to(bias.dtype))
    module.input_size, module.hidden_size = int(inputs.sum()), int(units.sum())
    for name, parameter in changed.items():
        setattr(module, name, parameter)


def _keep(old: Tensor, value: Tensor) -> nn.Parameter:
    return nn.Parameter(value.clone(), old.requires_grad)
