"""A network with batch normalisation and easy data, small enough to be compressed in a tenth of a second."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from spikeslab.training import TensorBatches

ROWS = 96


def network() -> nn.Module:
    """418 parameters, 256 of them in the one layer between the first and the last."""
    with torch.random.fork_rng():
        torch.manual_seed(3)
        return nn.Sequential(
            nn.Linear(4, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Linear(16, 16), nn.ReLU(), nn.Linear(16, 2)
        )


def data(seed: int = 1) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(ROWS, 4, generator=generator)
    return x, (x[:, 0] + x[:, 1] > 0).long()


def batches() -> TensorBatches:
    return TensorBatches(*data(), batch_size=16, seed=2)
