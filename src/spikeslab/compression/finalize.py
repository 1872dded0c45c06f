"""Finalising: a plain copy of a model, without masks, parametrizations, wrappers and hooks of training."""

from __future__ import annotations

import copy
from collections import OrderedDict
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils import parametrize, prune, remove_spectral_norm, remove_weight_norm
from torch.nn.utils.spectral_norm import SpectralNorm
from torch.nn.utils.weight_norm import WeightNorm

from spikeslab.graph.tracing import check_module
from spikeslab.weights import unwrap

HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
BAKED = (prune.BasePruningMethod, SpectralNorm, WeightNorm)


def finalize(model: nn.Module) -> nn.Module:
    """Return a plain dense copy in evaluation mode, with exact zeros.

    The masks of ``torch.nn.utils.prune``, all parametrizations and the older weight and spectral norms become part of
    the weights, under the ordinary names. -0.0, which a mask leaves for a negative weight, becomes 0.0. The wrappers of
    ``torch.compile`` and of data parallelism are removed. Hooks are dropped, also those that change outputs. The model
    itself stays as it is.

    Raises:
        TypeError: If ``model`` is not a module.

    >>> layer = prune.l1_unstructured(nn.Linear(4, 3), "weight", amount=6)
    >>> sorted(layer.state_dict()), sorted(finalize(layer).state_dict())
    (['bias', 'weight_mask', 'weight_orig'], ['bias', 'weight'])
    """
    model = unwrap(check_module(model))
    plain = copy.deepcopy(model, dict(_find_replacements(model))).eval()
    with torch.no_grad():
        for module in list(plain.modules()):
            _bake_hooks(module)
            _bake_parametrizations(module)
        for parameter in plain.parameters():
            parameter.grad = None
            if parameter.is_floating_point():
                parameter.masked_fill_(parameter == 0, 0.0)
    return plain


def _find_replacements(model: nn.Module) -> Iterator[tuple[int, Any]]:
    """Return, by id, replacements in the copy for objects that must not or cannot be copied."""
    for module in model.modules():
        for name in HOOKS:
            hooks = module.__dict__[name]
            yield id(hooks), OrderedDict((key, hook) for key, hook in hooks.items() if isinstance(hook, BAKED))
        for value in module.__dict__.values():
            if isinstance(value, Tensor) and not value.is_leaf:  # what a mask computed in the last forward pass
                yield id(value), value.detach().clone()


def _bake_hooks(module: nn.Module) -> None:
    for hook in list(module._forward_pre_hooks.values()):
        if isinstance(hook, prune.BasePruningMethod):
            prune.remove(module, hook._tensor_name)
        elif isinstance(hook, SpectralNorm):
            remove_spectral_norm(module, hook.name)
        elif isinstance(hook, WeightNorm):
            remove_weight_norm(module, hook.name)


def _bake_parametrizations(module: nn.Module) -> None:
    """Replace parametrizations by their values."""
    # remove_parametrizations would change a class that the copy shares with the model.
    if not parametrize.is_parametrized(module):
        return
    plain = parametrize.type_before_parametrizations(module)
    lists = module._modules.pop("parametrizations")
    module.__class__ = plain
    assert isinstance(lists, nn.ModuleDict)
    for name, steps in lists.items():
        value = steps().detach().clone()
        originals = list(steps.parameters(recurse=False))
        if originals:
            module.register_parameter(name, nn.Parameter(value, any(p.requires_grad for p in originals)))
        else:
            module.register_buffer(name, value)
