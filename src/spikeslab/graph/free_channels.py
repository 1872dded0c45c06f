r"""Free output channels of a network, found by following each layer's output through the graph.

Channel o of a convolution or linear layer is the filter ``weight[o]``. If the filter, its bias and the scale and shift
of a batch normalisation behind it are zero, the channel's output is zero, and it stays zero through rectifiers,
poolings and dropout. A layer's channels are *free* if all that reads them is such operations and then other layers'
weights: no sum with another branch ties them, as in the stream of a residual network, and they are not the network's
output.
"""

from __future__ import annotations

import torch
from torch import Tensor, fx, nn

from spikeslab.errors import ArgumentValueError, Phrase, first_line
from spikeslab.graph.layers import BATCH_NORMS, LAYERS, Conv
from spikeslab.graph.operations import find_effect, reads_other_sizes
from spikeslab.graph.tracing import TracedModel, UntraceableError, trace


def free_channel_layers(model: nn.Module) -> dict[str, str | None]:
    """Return the layers whose output channels are free, by the name of their weight, with the normalisation behind.

    >>> model = nn.Sequential(nn.Conv2d(1, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.Flatten(), nn.Linear(288, 10))
    >>> free_channel_layers(model)
    {'0.weight': '1'}

    Left out are grouped and transposed convolutions, layers that are called twice, share their weight, compute it by a
    parametrization or have hooks, layers behind which a normalisation has no scale and shift, and layers that lead
    into an operation that is not known to keep channels apart.

    Raises:
        ValueError: If ``torch.fx`` cannot trace the model.
    """
    try:
        traced = trace(model)
    except UntraceableError as error:
        raise ArgumentValueError(
            "model",
            "must be one that torch.fx can trace",
            Phrase(f"tracing stopped with {first_line(error.__cause__ or error)!r}"),
            "name its layers in Python, as in {'conv1.weight': 'bn1'}",
        ) from error
    free: dict[str, str | None] = {}
    for node in traced.graph.nodes:
        layer = _plain_layer(traced, node)
        if layer is None or "weight" not in layer._parameters or not traced.is_owned(node):
            continue
        norms = _find_norms(traced, node, None if isinstance(layer, nn.Linear) else layer.weight.ndim)
        if norms is None or len(norms) > 1:
            continue
        if all(traced.is_owned(norm) and is_normalised_by(layer.weight, traced.module(norm)) for norm in norms):
            free[f"{node.target}.weight"] = str(norms[0].target) if norms else None
    return free


def is_normalised_by(weight: Tensor, module: nn.Module | None) -> bool:
    """Return True if ``module`` is a batch normalisation with a scale and a shift for each channel of the filters."""
    return isinstance(module, BATCH_NORMS) and module.affine and len(module.weight) == len(weight)


def _plain_layer(traced: TracedModel, node: fx.Node) -> Conv | nn.Linear | None:
    module = traced.module(node)
    return module if isinstance(module, LAYERS) and getattr(module, "groups", 1) == 1 else None


def _find_norms(traced: TracedModel, node: fx.Node, rank: int | None) -> list[fx.Node] | None:
    """Return the normalisations between a tensor and the layers that read it; ``None`` if its channels are not free.

    ``rank`` is its number of dimensions, with channels in dimension 1; ``None`` behind a linear layer, whose features
    are in the last of any number of dimensions.
    """
    norms: list[fx.Node] = []
    for user in node.users:
        reader = _plain_layer(traced, user)
        if reader is not None:
            # Not a linear layer over the width of an image, or a convolution that takes an image for a batch.
            if rank not in (None, 2 if isinstance(reader, nn.Linear) else reader.weight.ndim):
                return None
            continue
        if reads_other_sizes(user, rank):
            continue
        behind = rank
        if isinstance(traced.module(user), BATCH_NORMS):
            norms.append(user)
        else:
            effect = find_effect(traced, user, [node], rank)
            if effect is None or effect.map_constants(torch.zeros(1, dtype=torch.float64)) != 0:
                return None
            behind = effect.rank
        further = _find_norms(traced, user, behind)
        if further is None:
            return None
        norms += further
    return norms if node.users else None
