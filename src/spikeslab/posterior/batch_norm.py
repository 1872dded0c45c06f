"""Recalibration of batch normalisation."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch import nn

from spikeslab.forward_pass import run, split_batch, to_device_of
from spikeslab.posterior.eval_mode import eval_mode


@torch.no_grad()
def recalibrate(model: nn.Module, batches: Iterable[Any]) -> None:
    """Re-estimate the statistics of batch normalisation as plain averages over ``batches``.

    Everything else, dropout included, is in evaluation mode meanwhile.

    Args:
        model: Its batch-normalisation buffers are replaced.
        batches: Inputs, augmented as in training, with or without targets
            (:func:`~spikeslab.forward_pass.split_batch`).
    """
    norms = [
        module
        for module in model.modules()
        if isinstance(module, nn.modules.batchnorm._BatchNorm) and module.track_running_stats
    ]
    momenta = [norm.momentum for norm in norms]
    with eval_mode(model):
        for norm in norms:
            norm.reset_running_stats()
            norm.momentum = None  # None is a cumulative average in torch
            norm.train()
        try:
            for batch in batches:
                run(model, to_device_of(model, split_batch(batch)[0]))
        finally:
            for norm, momentum in zip(norms, momenta, strict=True):
                norm.momentum = momentum
