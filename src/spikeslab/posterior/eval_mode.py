"""Temporary evaluation mode of a model."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from torch import nn


@contextmanager
def eval_mode(model: nn.Module) -> Iterator[list[nn.Module]]:
    """Put a model into evaluation mode, then every module back into the mode it was in.

    Yields:
        All modules: to find them again takes as long as a forward pass of a small network.
    """
    modules = list(model.modules())
    modes = [module.training for module in modules]
    if any(modes):
        model.eval()
    try:
        yield modules
    finally:
        for module, training in zip(modules, modes, strict=True):
            if module.training is not training:
                module.training = training


@contextmanager
def uncompiled_eval_mode(model: nn.Module) -> Iterator[list[nn.Module]]:
    """Put a model into evaluation mode without the compiled forward passes of ``model.compile()``.

    The tensors of each sample would compile them again.
    """
    with eval_mode(model) as modules:
        compiled = [(module, module._compiled_call_impl) for module in modules if module._compiled_call_impl]
        for module, _ in compiled:
            module._compiled_call_impl = None
        try:
            yield modules
        finally:
            for module, call in compiled:
                module._compiled_call_impl = call
