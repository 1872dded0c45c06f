"""Optimizers that the suite compares."""

from __future__ import annotations

import warnings
from collections.abc import Mapping

from torch import Tensor
from torch.optim import SGD, Optimizer

from spikeslab.bench.optimizers import LR, SGD_NAME
from spikeslab.errors import SpikeSlabWarning
from spikeslab.priors import SA, SpikeSlab
from spikeslab.samplers import SGHMC
from spikeslab.schedules import polynomial

PLAIN, OURS = "SGHMC", "SGHMC-SA"
NUM_DATA = 60_000


def build_optimizer(
    kind: str, params: Mapping[str, Tensor], sparse: Mapping[str, Tensor], seed: int, fused: bool | None = None
) -> Optimizer:
    """Return torch's SGD with momentum, or SGHMC without or with a prior over the ``sparse`` parameters."""
    if kind == SGD_NAME:
        return SGD(params.values(), lr=LR, momentum=0.9, foreach=True)
    prior = None
    if kind == OURS:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", SpikeSlabWarning)
            prior = SpikeSlab(sparse, v0=1e-3, v1=1.0, adapt=SA(polynomial(1.0, power=0.75, offset=1000)))
    return SGHMC(params.values(), lr=LR, momentum=0.9, num_data=NUM_DATA, prior=prior, seed=seed, fused=fused)
