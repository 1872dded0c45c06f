"""Where the first number that is not finite comes from."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn


@torch.no_grad()
def first_nonfinite(model: nn.Module, forward: Callable[[], object]) -> str:
    """Say which tensor is the first that is not finite: a weight, a buffer, or the output of a module.

    Args:
        model: The model.
        forward: Runs it as it was run when the loss was not finite.
    """
    for name, parameter in model.named_parameters():
        if _bad(parameter):
            return f"the weight {name} is not finite; try a lower lr"
    buffers = [name for name, buffer in model.named_buffers() if _bad(buffer)]
    found: list[str] = []
    inputs_finite = True

    def look(module: nn.Module, inputs: Any) -> None:
        nonlocal inputs_finite
        inputs_finite = all(not _bad(item) for item in inputs if isinstance(item, Tensor))

    def watch(name: str) -> Callable[[nn.Module, Any, Any], None]:
        def hook(module: nn.Module, inputs: Any, output: Any) -> None:
            if not found and isinstance(output, Tensor) and _bad(output):
                found.append(f"{type(module).__name__} {name}".strip())

        return hook

    handles = [module.register_forward_hook(watch(name)) for name, module in model.named_modules()]
    handles.append(model.register_forward_pre_hook(look))
    try:
        forward()
    finally:
        for handle in handles:
            handle.remove()
    if not inputs_finite:
        return "the input of the model is not finite, so look at the data"
    if buffers:
        return f"the buffer {buffers[0]} is not finite; try a lower lr"
    if found:
        return f"all weights are finite, and the first output that is not is that of {found[0]}; try a lower lr"
    return "all weights and all outputs are finite, so look at the loss and at the targets"


def _bad(tensor: Tensor) -> bool:
    return tensor.is_floating_point() and not bool(tensor.isfinite().all())
