"""A one-dimensional target with two modes far apart, of unequal weights and widths, and what to measure on it."""

from __future__ import annotations

import math

import numpy as np
import torch
from torch import Tensor

SECOND_MODE = 4.0
WEIGHTS = (0.3, 0.7)
MEANS = (-SECOND_MODE, SECOND_MODE)
STDS = (0.6, 0.8)
BURN_IN = 500
BATCHES = 10


def _logs(w: Tensor) -> Tensor:
    return torch.stack(
        [
            math.log(weight / std) - 0.5 * ((w - mean) / std) ** 2
            for weight, mean, std in zip(WEIGHTS, MEANS, STDS, strict=True)
        ]
    )


def energy(w: Tensor) -> Tensor:
    """The negative log density, up to a constant."""
    return -_logs(w).logsumexp(0)


def gradient(w: Tensor) -> Tensor:
    """Its derivative."""
    shares = _logs(w).softmax(0)
    return sum(share * (w - mean) / std**2 for share, mean, std in zip(shares, MEANS, STDS, strict=True))


def mode_weight(positions: list[float]) -> tuple[float, float, float]:
    """Share of the upper mode, its standard error from batch means, and the exact share."""
    batches = np.array_split(np.asarray(positions[BURN_IN:]) > 0, BATCHES)
    shares = np.array([batch.mean() for batch in batches])
    return float(shares.mean()), float(shares.std(ddof=1) / math.sqrt(BATCHES)), WEIGHTS[1]
