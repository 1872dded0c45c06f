"""Forward passes of many samples as one, for models so small that starting an operation costs more than running it."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Sequence
from itertools import chain
from typing import Any, NamedTuple, cast

import torch
from torch import Tensor, nn

from spikeslab.posterior.samples import Tensors, named_tensors

BUDGET = 1 << 23
"""Bytes that the weights and the activations of the samples in one pass may take."""
KEPT = 1 << 26
"""Bytes of stacked samples that are kept from one prediction to the next."""


class Stack(NamedTuple):
    """Stacked samples.

    Attributes:
        tensors: Their tensors, under all their names.
        samples: How many there are.
        size: Bytes of all.
        forward: Runs them, where the model has a method for it.
    """

    tensors: Tensors
    samples: int
    size: int
    forward: Callable[..., Tensor] | None


class BatchedForward:
    """Runs several samples of a model at once, as many as a budget of memory allows.

    ``torch.vmap`` does it; a model with a method ``stacked_forward`` (see ``StackedModel``) does it faster. A model
    that can do neither runs one sample at a time. Samples that have been stacked stay so, within a budget of their own:
    to stack those of a small network takes longer than to run it.

    Args:
        model: In the mode in which it shall run.
    """

    def __init__(self, model: nn.Module) -> None:
        self.model = model
        self.possible = True
        self._counts: dict[tuple[Any, ...], int] = {}
        self._stacks: dict[tuple[Any, ...], Stack] = {}

    def forget(self) -> None:
        """Drop the stacked samples, after one of them has changed or gone."""
        self._stacks.clear()

    def together(self, samples: int, inputs: tuple[Any, ...]) -> int:
        """How many of ``samples`` to run at once, so that all passes but the last are of one size, and it hardly less.

        The first call for inputs of some shapes runs the model to find out what it needs.
        """
        if not self.possible or not all(isinstance(item, Tensor) for item in inputs):
            return 1
        key = (BUDGET, *((item.shape, item.dtype) for item in inputs))
        if key not in self._counts:
            weights = sum(tensor.nbytes for _, tensor in named_tensors(self.model))
            self._counts = {key: max(1, BUDGET // max(1, weights + self._activation_bytes(inputs)))}
        passes = -(-samples // self._counts[key])
        return -(-samples // passes)

    def stack(self, keys: Sequence[int], read: Callable[[int], Tensors]) -> Stack:
        """Samples stacked along a new first dimension, where the model's tensors are and under all their names.

        Args:
            keys: Names of the samples; :meth:`forget` must be called when one of them names other tensors.
            read: Gives the tensors of a sample by its name.
        """
        device = next((tensor.device for _, tensor in named_tensors(self.model)), None)
        stack = self._stacks.get((device, *keys))
        if stack is None:
            samples = [read(key) for key in keys]
            places = _places(self.model).items()
            joined = {
                name: torch.stack([sample[name] for sample in samples]).to(own.device)
                for alias, (name, own) in places
                if alias == name
            }
            size = sum(tensor.nbytes for tensor in joined.values())
            stack = Stack({alias: joined[name] for alias, (name, _) in places}, len(keys), size, self._forward(joined))
            if stack.size + sum(other.size for other in self._stacks.values()) <= KEPT:
                self._stacks[(device, *keys)] = stack
        return stack

    def run(self, stack: Stack, inputs: tuple[Tensor, ...]) -> Tensor:
        """The outputs of each sample, (samples, batch, ...)."""
        if stack.forward is not None:
            return stack.forward(*(item.expand(stack.samples, *item.shape) for item in inputs))
        return torch.vmap(lambda tensors: _call(self.model, tensors, inputs), randomness="different")(stack.tensors)

    def run_one(self, sample: Tensors, inputs: tuple[Any, ...]) -> Tensor:
        """The outputs of one sample, (batch, ...)."""
        places = _places(self.model)
        return _call(self.model, {alias: sample[name].to(own.device) for alias, (name, own) in places.items()}, inputs)

    def _forward(self, joined: Tensors) -> Callable[..., Tensor] | None:
        """The method ``stacked_forward`` of a copy of the model that has the stacked tensors in place of its own.

        To put them into the model for one pass takes longer than the pass.
        """
        if not hasattr(self.model, "stacked_forward"):
            return None
        stacked = {id(own): joined[name] for alias, (name, own) in _places(self.model).items() if alias == name}
        return cast(Callable[..., Tensor], copy.deepcopy(self.model, cast(Any, stacked)).stacked_forward)

    def _activation_bytes(self, inputs: tuple[Any, ...]) -> int:
        """Bytes of what all modules return for these inputs: more than is alive at any time."""
        total = 0

        def count(module: nn.Module, _: Any, outputs: Any) -> None:
            nonlocal total
            total += outputs.nbytes if isinstance(outputs, Tensor) else 0

        handles = [module.register_forward_hook(count) for module in self.model.modules()]
        try:
            self.model(*inputs)
        finally:
            for handle in handles:
                handle.remove()
        return total


def _places(model: nn.Module) -> dict[str, tuple[str, Tensor]]:
    """Every name of every tensor, with the name of the same tensor in a sample, which knows a shared one once."""
    names: dict[int, str] = {}
    return {alias: (names.setdefault(id(tensor), alias), tensor) for alias, tensor in _aliases(model)}


def _aliases(model: nn.Module) -> Iterator[tuple[str, Tensor]]:
    return chain(model.named_parameters(remove_duplicate=False), model.named_buffers(remove_duplicate=False))


def _call(model: nn.Module, tensors: Tensors, inputs: tuple[Any, ...]) -> Tensor:
    # All names of shared tensors are there, so torch need not look for them at every call.
    outputs: Tensor = torch.func.functional_call(model, tensors, inputs, tie_weights=False)
    return outputs
