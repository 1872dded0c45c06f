"""Network of the paper's regressions (appendix D)."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import cast

import torch
from torch import Tensor, nn

from spikeslab.errors import check_count


class MLP(nn.Module):
    """Multilayer perceptron with ReLU; its prior covers ``layers.*.weight``.

    >>> sum(parameter.numel() for parameter in MLP(13).parameters())
    751

    Args:
        inputs: Number of features.
        hidden: Units of each hidden layer; the paper has one layer of 50.
        outputs: Number of outputs.
    """

    def __init__(self, inputs: int, hidden: Sequence[int] = (50,), outputs: int = 1) -> None:
        super().__init__()
        sizes = [check_count("inputs", inputs), *hidden, check_count("outputs", outputs)]
        self.layers = nn.ModuleList(
            nn.Linear(fan_in, check_count("hidden", fan_out)) for fan_in, fan_out in pairwise(sizes)
        )

    def forward(self, x: Tensor) -> Tensor:
        """Return outputs of shape (batch, outputs)."""
        *hidden, last = self.layers
        for layer in hidden:
            x = layer(x).relu()
        outputs: Tensor = last(x)
        return outputs

    def stacked_forward(self, x: Tensor) -> Tensor:
        """Return outputs of shape (chains, batch, outputs) for parameters with a leading dimension of chains.

        One batched product for each layer takes half the time of ``torch.vmap``. Examples are the last dimension
        inside, so that no weight is transposed; a batch that all chains share meets the first layer in one product,
        which pays where no gradient is wanted.
        """
        shared = x.stride(0) == 0 and not torch.is_grad_enabled()
        x = x.transpose(1, 2)
        for index, layer in enumerate(self.layers):
            bias, weight = cast(Tensor, layer.bias).unsqueeze(2), cast(Tensor, layer.weight)
            if shared and index == 0:
                x = torch.addmm(bias.flatten(0, 1), weight.flatten(0, 1), x[0]).unflatten(0, weight.shape[:2])
            else:
                x = torch.baddbmm(bias, weight, x)
            if index < len(self.layers) - 1:
                x = x.relu_()  # in place: the product is ours, and needs no second memory
        return x.transpose(1, 2)
