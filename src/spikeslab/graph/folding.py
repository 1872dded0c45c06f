r"""Folding of batch normalisation, which is affine in evaluation mode, into the layer next to it.

With scale a and shift b for each channel, and * the layer's product,

.. math::
    a\,(W * x + c) + b = (a W) * x + (a c + b), \qquad W * (a x + b) + c = (W a) * x + (W * b + c).

The first always holds. The second holds if W * b is a constant: not for a convolution that pads with zeros, since they
are added after the normalisation.
"""

from __future__ import annotations

from torch import Tensor, fx, nn

from spikeslab.errors import warn
from spikeslab.graph.layers import (
    BATCH_NORMS,
    LAYERS,
    Conv,
    get_bias,
    is_batched,
    kernel_sums,
    pads_with_zeros,
    scale_and_shift,
    set_weights,
)
from spikeslab.graph.tracing import ExampleInput, TracedModel, UntraceableError, copy_model, trace


def fold_batch_norm(model: nn.Module, example_input: ExampleInput) -> nn.Module:
    """Return a copy in evaluation mode, with batch normalisation folded into the layers next to it.

    A normalisation directly behind a convolution or linear layer always goes; one directly before it goes if that is
    exact. The others stay. A network that ``torch.fx`` cannot trace is copied as it is, with a warning.

    >>> import torch
    >>> network = nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU())
    >>> fold_batch_norm(network, torch.zeros(1, 3, 8, 8))
    Sequential(
      (0): Conv2d(3, 8, kernel_size=(3, 3), stride=(1, 1))
      (1): Identity()
      (2): ReLU()
    )

    Args:
        model: Any module; it is not changed.
        example_input: An input of the model, or a tuple or mapping of its inputs; only the shape matters.

    Raises:
        ValueError: If the model fails on the example.
    """
    folded = copy_model(model).eval()
    try:
        fold_traced(trace(folded, example_input))
    except UntraceableError as error:
        warn(error.note)
    return folded


def fold_traced(traced: TracedModel) -> dict[str, str]:
    """Fold in a traced network and its graph; return, by name, why a normalisation stays."""
    reasons = {}
    for node in list(traced.graph.nodes):
        norm = traced.module(node)
        if type(norm) not in BATCH_NORMS:
            continue
        assert isinstance(norm, nn.modules.batchnorm._BatchNorm)
        reason = _fold(traced, node, norm)
        if reason:
            reasons[str(node.target)] = reason
            continue
        traced.replace(node, node.all_input_nodes[0])
        parent, _, name = str(node.target).rpartition(".")
        setattr(traced.model.get_submodule(parent), name, nn.Identity().eval())
    return reasons


def _fold(traced: TracedModel, node: fx.Node, norm: nn.modules.batchnorm._BatchNorm) -> str | None:
    """Fold one normalisation into a layer next to it, or return why not."""
    if norm.running_mean is None:
        return "it keeps no running statistics"
    if not traced.is_owned(node):
        return "it is shared or has hooks"
    scale, shift = scale_and_shift(norm)
    (source,) = node.all_input_nodes
    before = changeable_layer(traced, source)
    if before is not None and len(source.users) == 1:
        set_weights(before, before.weight.detach().double() * _as_rows(scale, before), scale * get_bias(before) + shift)
        return None
    after = changeable_layer(traced, next(iter(node.users))) if len(node.users) == 1 else None
    if after is None or (not isinstance(after, nn.Linear) and after.groups > 1):
        return "no convolution or linear layer is directly before or behind it"
    if pads_with_zeros(after) and bool(shift.any()):
        return f"'{next(iter(node.users)).target}' behind it pads with zeros, which it would not have shifted"
    bias = get_bias(after) + kernel_sums(after.weight) @ shift
    set_weights(after, after.weight.detach().double() * _as_rows(scale, after).transpose(0, 1), bias)
    return None


def changeable_layer(traced: TracedModel, node: fx.Node) -> Conv | nn.Linear | None:
    """Return the convolution or linear layer that a node calls, if it may be changed."""
    module = traced.module(node)
    if type(module) not in LAYERS or not traced.is_owned(node):
        return None
    assert isinstance(module, LAYERS)
    return module if is_batched(module, traced.shapes[node]) else None


def _as_rows(values: Tensor, module: Conv | nn.Linear) -> Tensor:
    """Return one value for each output channel in a shape that broadcasts over the weight."""
    return values.view(-1, *[1] * (module.weight.dim() - 1))
