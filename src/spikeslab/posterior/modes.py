"""Evaluation mode, with or without a compiler, for a while."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from torch import nn


@contextmanager
def evaluating(model: nn.Module) -> Iterator[None]:
    """Evaluation mode, and afterwards for every module the mode it was in."""
    with _evaluating(model, list(model.modules())):
        yield


@contextmanager
def predicting(model: nn.Module) -> Iterator[list[nn.Module]]:
    """The same without compiled forward passes of ``model.compile()``: with other tensors each is compiled again.

    Gives all modules: to look for them takes as long as a small network.
    """
    modules = list(model.modules())
    compiled = [(module, module._compiled_call_impl) for module in modules if module._compiled_call_impl]
    for module, _ in compiled:
        module._compiled_call_impl = None
    try:
        with _evaluating(model, modules):
            yield modules
    finally:
        for module, call in compiled:
            module._compiled_call_impl = call


@contextmanager
def _evaluating(model: nn.Module, modules: list[nn.Module]) -> Iterator[None]:
    modes = [module.training for module in modules]
    if any(modes):
        model.eval()
    try:
        yield
    finally:
        for module, training in zip(modules, modes, strict=True):
            if module.training is not training:
                module.training = training
