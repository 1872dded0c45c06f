"""The mean of samples, tensor by tensor."""

from __future__ import annotations

import warnings
from collections.abc import Iterable

import torch

from spikeslab.errors import SpikeSlabWarning
from spikeslab.posterior.samples import Tensors


def mean_tensors(samples: Iterable[tuple[Tensors, float]], last: Tensors) -> Tensors:
    """The weighted mean of samples, in double precision; of integers it is the last sample's.

    A warning says when zeros differ: the mean then has fewer than each sample.

    Args:
        samples: Tensors by name, and the weight of each; the weights sum to 1.
        last: Tensors of the last sample.
    """
    mean = {name: torch.zeros_like(tensor, dtype=torch.float64) for name, tensor in last.items()}
    ever_alive = {name: torch.zeros_like(tensor, dtype=torch.bool) for name, tensor in last.items()}
    zeros = []
    for tensors, weight in samples:
        for name, tensor in tensors.items():
            mean[name].add_(tensor, alpha=weight)
            ever_alive[name] |= tensor != 0
        zeros.append(sum(int((tensor == 0).sum()) for tensor in tensors.values()))
    common = sum(int((~alive).sum()) for alive in ever_alive.values())
    if common < min(zeros):
        warnings.warn(
            f"the samples have different zeros, so their mean has {common} where each sample has at least "
            f"{min(zeros)}: freeze the mask before collecting, or prune the mean again and recalibrate it.",
            SpikeSlabWarning,
            stacklevel=4,  # who called mean_model, behind torch.no_grad's wrapper
        )
    return {
        name: mean[name].to(tensor.dtype) if tensor.is_floating_point() else tensor for name, tensor in last.items()
    }
