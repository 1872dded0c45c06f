"""Evaluation mode, with or without a compiler, for a while."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from torch import nn


@contextmanager
def evaluating(model: nn.Module) -> Iterator[None]:
    """Evaluation mode, and afterwards for every module the mode it was in."""
    training = [module for module in model.modules() if module.training]
    if training:
        model.eval()
    try:
        yield
    finally:
        for module in training:
            module.training = True


@contextmanager
def predicting(model: nn.Module) -> Iterator[None]:
    """The same without compiled forward passes of ``model.compile()``: with other tensors each is compiled again."""
    compiled = [(module, module._compiled_call_impl) for module in model.modules() if module._compiled_call_impl]
    for module, _ in compiled:
        module._compiled_call_impl = None
    try:
        with evaluating(model):
            yield
    finally:
        for module, call in compiled:
            module._compiled_call_impl = call
