"""Evaluation mode, with or without a compiler, for a while."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from torch import nn


@contextmanager
def evaluating(model: nn.Module) -> Iterator[None]:
    """Evaluation mode, and afterwards for every module the mode it was in."""
    modes = [(module, module.training) for module in model.modules()]
    if any(training for _, training in modes):
        model.eval()
    try:
        yield
    finally:
        for module, training in modes:
            if module.training is not training:
                module.training = training


@contextmanager
def predicting(model: nn.Module) -> Iterator[list[nn.Module]]:
    """The same without compiled forward passes of ``model.compile()``: with other tensors each is compiled again.

    Gives all modules: to look for them takes as long as a small network.
    """
    modules = list(model.modules())
    training = [module for module in modules if module.training]
    compiled = [(module, module._compiled_call_impl) for module in modules if module._compiled_call_impl]
    if training:
        model.eval()
    for module, _ in compiled:
        module._compiled_call_impl = None
    try:
        yield modules
    finally:
        for module in training:
            module.training = True
        for module, call in compiled:
            module._compiled_call_impl = call
