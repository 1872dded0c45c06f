"""Sparsity of a network."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from torch import Tensor, nn

from spikeslab.shards import Reduction, local
from spikeslab.weights import Weights, name_weights


@dataclass(frozen=True)
class Sparsity:
    """Counts of zeros, over the sparse layers and over the whole network.

    Attributes:
        layers: Share of zeros in each sparse layer.
        sparse_zeros: Zeros in the sparse layers.
        sparse_total: Weights in the sparse layers.
        network_zeros: Zeros among all parameters, if the network is known.
        network_total: All parameters of the network, if it is known.
    """

    layers: dict[str, float]
    sparse_zeros: int
    sparse_total: int
    network_zeros: int | None = None
    network_total: int | None = None

    @property
    def sparse(self) -> float:
        """Share of zeros in the sparse layers."""
        return self.sparse_zeros / self.sparse_total

    @property
    def network(self) -> float | None:
        """Share of zeros in the whole network, if it is known."""
        if self.network_zeros is None or self.network_total is None:
            return None
        return self.network_zeros / self.network_total


def measure_sparsity(weights: Weights, network: nn.Module | None = None) -> Sparsity:
    """Count the zeros of weights and, if given, of a whole network.

    >>> import torch
    >>> measure_sparsity([torch.tensor([0.0, 1.0, 0.0, 2.0])]).sparse
    0.5
    """
    named = name_weights(weights)
    zeros = dict(zip(named, _count_zeros(named.values()), strict=True))
    parameters = None if network is None else list(network.parameters())
    return Sparsity(
        layers={name: zeros[name] / weight.numel() for name, weight in named.items()},
        sparse_zeros=sum(zeros.values()),
        sparse_total=sum(weight.numel() for weight in named.values()),
        network_zeros=None if parameters is None else sum(_count_zeros(parameters)),
        network_total=None if parameters is None else sum(p.numel() for p in parameters),
    )


def _count_zeros(tensors: Iterable[Tensor]) -> list[int]:
    """Return the number of zeros of each tensor, over all ranks that share it."""
    tensors = list(tensors)
    ranks, parts = Reduction(tensors), map(local, tensors)
    counts = [float(part.numel() - int(part.count_nonzero())) for part in parts]
    return [int(count) for count in ranks.sum(ranks.own(counts))]
