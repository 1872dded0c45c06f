"""Forward passes of many samples as one, for models so small that starting an operation costs more than running it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, cast

import torch
from torch import Tensor, nn

from spikeslab.posterior.samples import Tensors, named_tensors

BUDGET = 1 << 21
"""Bytes that the weights and the activations of the samples in one pass may take: about what a core has as cache."""


class BatchedForward:
    """Runs several samples of a model at once, as many as a budget of memory allows.

    ``torch.vmap`` does it; a model with a method ``stacked_forward`` (see ``StackedModel``) does it faster. A model
    that can do neither runs one sample at a time.

    Args:
        model: In the mode in which it shall run.
    """

    def __init__(self, model: nn.Module) -> None:
        self.model = model
        self.possible = True
        self._stacked = _Stacked(model) if hasattr(model, "stacked_forward") else None
        self._bytes: dict[tuple[Any, ...], int] = {}

    def together(self, tensors: Tensors, inputs: tuple[Any, ...]) -> int:
        """How many samples may run at once; the first call for inputs of some shapes runs the model to find out."""
        if not self.possible or not all(isinstance(item, Tensor) for item in inputs):
            return 1
        key = tuple((item.shape, item.dtype) for item in inputs)
        if key not in self._bytes:
            self._bytes = {key: self._activation_bytes(tensors, inputs)}
        return max(1, BUDGET // max(1, self._bytes[key] + sum(tensor.nbytes for tensor in tensors.values())))

    def run(self, samples: Sequence[Tensors], inputs: tuple[Tensor, ...]) -> Tensor:
        """The outputs of each sample, (samples, batch, ...)."""
        stacked = self._placed({name: torch.stack([sample[name] for sample in samples]) for name in samples[0]})
        if self._stacked is not None:
            own = {f"network.{name}": tensor for name, tensor in stacked.items()}
            return _call(self._stacked, own, tuple(item.expand(len(samples), *item.shape) for item in inputs))
        return torch.vmap(lambda tensors: _call(self.model, tensors, inputs), randomness="different")(stacked)

    def run_one(self, sample: Tensors, inputs: tuple[Any, ...]) -> Tensor:
        """The outputs of one sample, (batch, ...)."""
        return _call(self.model, self._placed(sample), inputs)

    def _placed(self, tensors: Tensors) -> Tensors:
        """The tensors where those of the model are."""
        own = dict(named_tensors(self.model))
        return {name: tensor.to(own[name].device) for name, tensor in tensors.items()}

    def _activation_bytes(self, tensors: Tensors, inputs: tuple[Any, ...]) -> int:
        """Bytes of what all modules return for these inputs: more than is alive at any time."""
        total = 0

        def count(module: nn.Module, _: Any, outputs: Any) -> None:
            nonlocal total
            total += outputs.nbytes if isinstance(outputs, Tensor) else 0

        handles = [module.register_forward_hook(count) for module in self.model.modules()]
        try:
            self.run_one(tensors, inputs)
        finally:
            for handle in handles:
                handle.remove()
        return total


class _Stacked(nn.Module):
    """Calls the stacked forward pass of a network."""

    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.network = network

    def forward(self, *inputs: Tensor) -> Tensor:
        """Outputs with a leading dimension of samples."""
        return cast(Callable[..., Tensor], self.network.stacked_forward)(*inputs)


def _call(model: nn.Module, tensors: Tensors, inputs: tuple[Any, ...]) -> Tensor:
    outputs: Tensor = torch.func.functional_call(model, tensors, inputs)
    return outputs
