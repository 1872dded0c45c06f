"""Where tensors are."""

from __future__ import annotations

from torch import Tensor, nn


def beside(model: nn.Module, tensor: Tensor) -> Tensor:
    """The tensor on the device of the model, or itself if it is there or the model has no parameters."""
    first = next(model.parameters(), None)
    return tensor if first is None else tensor.to(first.device)
