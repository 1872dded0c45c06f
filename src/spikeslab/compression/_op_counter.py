"""Weights, non-zeros and multiply-adds of each layer.

Each weight of a layer is multiplied once at every position: of the output image in a convolution, of the input image in
a transposed one, and over all dimensions but the last in a linear layer. So one example takes

    multiply-adds = positions * weights,        and if zeros are skipped        positions * non-zeros

in a layer. Padding counts, as usual; biases, normalisation and activations do not.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.conv import _ConvNd, _ConvTransposeNd

from spikeslab.errors import ArgumentValueError, Phrase, quote
from spikeslab.forward_pass import run
from spikeslab.graph.attention import HeadAttention
from spikeslab.graph.layers import is_transposed
from spikeslab.graph.tracing import ExampleInput, check_example_input
from spikeslab.posterior.eval_mode import eval_mode


@dataclass(frozen=True)
class LayerCount:
    """A parameter of two or more dimensions.

    Attributes:
        name: Its name.
        shape: Its shape.
        sparse: True if it is one of the sparse layers.
        nonzeros: Weights that are not zero.
        empty_channels: Rows of the first dimension that are all zero.
        positions: Number of positions at which each weight is multiplied in one example; ``None`` if not known.
    """

    name: str
    shape: tuple[int, ...]
    sparse: bool
    nonzeros: int
    empty_channels: int
    positions: int | None = None

    @property
    def weights(self) -> int:
        """Number of weights."""
        return torch.Size(self.shape).numel()

    @property
    def macs(self) -> int | None:
        """Multiply-adds of one example."""
        return None if self.positions is None else self.positions * self.weights

    @property
    def nonzero_macs(self) -> int | None:
        """Multiply-adds of one example if zeros are skipped."""
        return None if self.positions is None else self.positions * self.nonzeros


def count_layers(
    parameters: Mapping[str, Tensor], sparse: Sequence[str] | None = None, positions: Mapping[str, int] | None = None
) -> tuple[LayerCount, ...]:
    """Count the parameters of two or more dimensions; by default every layer with a zero is ``sparse``."""
    layers = {name: tensor for name, tensor in parameters.items() if tensor.ndim >= 2}
    if unknown := [name for name in sparse or () if name not in layers]:
        raise ArgumentValueError(
            "weights", "must be names of weight matrices of the model", Phrase(f"got {quote(unknown)}")
        )
    counts = []
    for name, tensor in layers.items():
        nonzeros = int(tensor.count_nonzero())
        rows = int((tensor.flatten(1) != 0).any(dim=1).sum())
        chosen = nonzeros < tensor.numel() if sparse is None else name in sparse
        place = (positions or {}).get(name)
        counts.append(LayerCount(name, tuple(tensor.shape), chosen, nonzeros, len(tensor) - rows, place))
    return tuple(counts)


def add_known(counts: Sequence[int | None]) -> int | None:
    """Return the sum of the counts that are known; ``None`` if none is."""
    known = [count for count in counts if count is not None]
    return sum(known) if known else None


@torch.no_grad()
def count_positions(model: nn.Module, example_input: ExampleInput) -> dict[str, int]:
    """Count the positions of one example at which each weight is multiplied, by the name of the parameter.

    Layers that the forward pass does not call are left out.

    >>> model = nn.Sequential(nn.Conv2d(1, 4, 3), nn.Flatten(), nn.Linear(4 * 36, 10))
    >>> count_positions(model, torch.zeros(2, 1, 8, 8))
    {'0.weight': 36, '2.weight': 1}
    """
    inputs = check_example_input(example_input)
    names = {id(parameter): name for name, parameter in model.named_parameters()}
    positions: dict[str, int] = defaultdict(int)

    def count(module: Any, given: Any, output: Tensor) -> None:
        used = given[0] if isinstance(module, _ConvTransposeNd) else output
        width = module.nf if is_transposed(module) else len(module.weight)
        positions[names[id(module.weight)]] += used.numel() // width // len(inputs[0])

    def count_attention(module: nn.MultiheadAttention, given: Any, keywords: Any, output: Any) -> None:
        query = given[0] if given else keywords["query"]
        tokens = query.numel() // query.shape[-1] // len(inputs[0])
        own: list[Tensor] = [
            parameter for parameter in module._parameters.values() if parameter is not None and parameter.ndim > 1
        ]
        if not isinstance(module, HeadAttention):
            own.append(module.out_proj.weight)  # it is read, not called
        for parameter in own:
            positions[names[id(parameter)]] += tokens

    handles = [
        module.register_forward_hook(count_attention, with_kwargs=True)
        if isinstance(module, nn.MultiheadAttention)
        else module.register_forward_hook(count)
        for module in model.modules()
        if isinstance(module, nn.MultiheadAttention)
        or ((isinstance(module, _ConvNd | nn.Linear) or is_transposed(module)) and id(module.weight) in names)
    ]
    try:
        with eval_mode(model):
            run(model, example_input)
    finally:
        for handle in handles:
            handle.remove()
    return dict(positions)
