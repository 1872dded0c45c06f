"""The example on which a network is traced, counted and timed."""

from __future__ import annotations

from typing import TypeAlias

from torch import Tensor

ExampleInput: TypeAlias = Tensor | tuple[Tensor, ...]


def arguments(example_input: ExampleInput) -> tuple[Tensor, ...]:
    """The arguments of a forward pass, whose first dimension is the batch."""
    tensors = (example_input,) if isinstance(example_input, Tensor) else example_input
    if not isinstance(tensors, tuple) or not tensors or not all(isinstance(t, Tensor) and t.ndim for t in tensors):
        raise TypeError(f"example_input must be a batch or a tuple of batches, but got {type(example_input).__name__}.")
    if any(len(tensor) != len(tensors[0]) or len(tensor) == 0 for tensor in tensors):
        raise ValueError(f"example_input must have rows, as many in each part, but got {[len(t) for t in tensors]}.")
    return tensors
