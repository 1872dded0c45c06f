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
    for kind, named in (("weight", model.named_parameters()), ("buffer", model.named_buffers())):
        for name, tensor in named:
            if _bad(tensor):
                return f"the {kind} {name} is not finite"
    found: list[str] = []

    def watch(name: str) -> Callable[[nn.Module, Any, Any], None]:
        def hook(module: nn.Module, inputs: Any, output: Any) -> None:
            if not found and isinstance(output, Tensor) and _bad(output):
                finite = all(not _bad(item) for item in inputs if isinstance(item, Tensor))
                found.append(f"{type(module).__name__} {name or 'itself'}" + ("" if finite else ", whose input is not"))

        return hook

    handles = [module.register_forward_hook(watch(name)) for name, module in model.named_modules()]
    try:
        forward()
    finally:
        for handle in handles:
            handle.remove()
    if found:
        return f"all weights are finite, and the first output that is not is that of {found[0]}"
    return "all weights and all outputs are finite, so look at the loss and at the targets"


def _bad(tensor: Tensor) -> bool:
    return tensor.is_floating_point() and not bool(tensor.isfinite().all())
