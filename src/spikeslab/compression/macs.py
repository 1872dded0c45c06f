"""Multiply-adds of convolutions and linear layers, counted in one forward pass.

Each weight of a layer is multiplied once at every position: of the output image in a convolution, of the input image in
a transposed one, and of what precedes the last dimension in a linear layer. So a layer takes

    multiply-adds = positions * weights        and, if zeros are skipped,        positions * non-zeros

for each example. Padding counts, as everyone counts it; biases, normalisation and activations do not.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.conv import _ConvNd, _ConvTransposeNd

from spikeslab.graph.tracing import ExampleInput, check_example_input
from spikeslab.posterior.eval_mode import eval_mode


@torch.no_grad()
def count_positions(model: nn.Module, example_input: ExampleInput) -> dict[str, int]:
    """At how many positions of one example each weight is multiplied, by the name of the parameter.

    Layers that the forward pass does not call, such as those whose weights another layer reads, are not listed.

    >>> model = nn.Sequential(nn.Conv2d(1, 4, 3), nn.Flatten(), nn.Linear(4 * 36, 10))
    >>> count_positions(model, torch.zeros(2, 1, 8, 8))
    {'0.weight': 36, '2.weight': 1}
    """
    inputs = check_example_input(example_input)
    names = {id(parameter): name for name, parameter in model.named_parameters()}
    positions: dict[str, int] = defaultdict(int)

    def counter(name: str, channels: int) -> Callable[[nn.Module, Any, Tensor], None]:
        def count(module: nn.Module, given: Any, output: Tensor) -> None:
            used = given[0] if isinstance(module, _ConvTransposeNd) else output
            positions[name] += used.numel() // channels // len(inputs[0])

        return count

    layers = [module for module in model.modules() if isinstance(module, _ConvNd | nn.Linear)]
    handles = [
        module.register_forward_hook(counter(names[id(module.weight)], len(module.weight)))
        for module in layers
        if id(module.weight) in names
    ]
    try:
        with eval_mode(model):
            model(*inputs)
    finally:
        for handle in handles:
            handle.remove()
    return dict(positions)
