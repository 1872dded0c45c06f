r"""Learning rate of a compression, found by short trials on the training data.

A high lr heals a pruned network faster, until it destroys it. The search takes the highest lr of 1, 2 and 5 times the
powers of ten at which the network holds. In a trial a copy of it is trained by SGD with momentum at a constant lr; with
:math:`l` the mean loss over the second half of the trial, :math:`l_1` the loss at the start and :math:`l_0` that of the
network without its weights, it holds if

.. math:: l \le l_1 + \tfrac3{10}\,(l_0 - l_1),

if it keeps seven tenths of what it knows. The search goes down from 1, or up where 1 holds; a trial at an lr that is
far too high ends after a few steps.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Sequence
from typing import Any, TypeAlias

import torch
from torch import Tensor, nn

from spikeslab.compression.settings import UNKNOWN_LR
from spikeslab.errors import NonFiniteError
from spikeslab.training.batches import TensorBatches, repeat_epochs
from spikeslab.training.loop import Loss, autocast

STEPS, BATCHES = 50, 5
"""Steps of a trial, and batches on which the losses at the start and without weights are measured."""
LOST, EXPLODED = 0.3, 2.0
"""Share of what the network knows that it may lose in a trial, and the one at which a trial ends early."""
LOWEST, HIGHEST = -30, 12
"""Powers of the lr that are tried: three to a factor of ten."""

NextLoss: TypeAlias = Callable[[nn.Module], Tensor]


def find_lr(
    model: nn.Module,
    loss: Loss,
    data: TensorBatches | Iterable[Any],
    weights: Sequence[str],
    *,
    momentum: float,
    weight_decay: float,
    precision: str,
) -> float:
    """Return the lr of a compression; the model that is given stays as it is.

    A network that holds at no lr, as one whose loss is not finite, or at any, as one without a gradient, gets
    ``settings.UNKNOWN_LR``.

    Args:
        model: The trained network.
        loss: Function from (model, batch) to the mean loss.
        data: Training batches, run through from the start and again if there are few.
        weights: Names of the weights that will be pruned.
        momentum: Momentum of SGD.
        weight_decay: Weight decay of SGD.
        precision: Precision of the forward pass.
    """
    batches = repeat_epochs(data)

    def next_loss(network: nn.Module) -> Tensor:
        with autocast(network, precision):
            return loss(network, next(batches))

    start, without = _evaluate(model, next_loss), _evaluate(model, next_loss, weights)
    known = max(0.0, without - start)

    def holds(power: int) -> bool:
        twin = copy.deepcopy(model).train()
        trained = [parameter for parameter in twin.parameters() if parameter.requires_grad]
        optimizer = torch.optim.SGD(trained, lr=grid_lr(power), momentum=momentum, weight_decay=weight_decay)
        found = _train(twin, optimizer, next_loss, start + EXPLODED * max(known, abs(start)))
        return found is not None and found <= start + LOST * known

    if holds(0):
        return next((grid_lr(power - 1) for power in range(1, HIGHEST) if not holds(power)), UNKNOWN_LR)
    return next((grid_lr(power) for power in range(-1, LOWEST, -1) if holds(power)), UNKNOWN_LR)


def grid_lr(power: int) -> float:
    """Return the lr of a place in the grid of 1, 2 and 5 times the powers of ten; 0 is 1.

    >>> [grid_lr(power) for power in (1, 0, -1, -2, -3, -4)]
    [2.0, 1.0, 0.5, 0.2, 0.1, 0.05]
    """
    tens, place = divmod(power, 3)
    return float(f"{(1, 2, 5)[place]}e{tens}")


@torch.no_grad()
def _evaluate(model: nn.Module, next_loss: NextLoss, without: Sequence[str] = ()) -> float:
    """Return the mean training loss of a network, or of that with some of its weights at zero."""
    twin = copy.deepcopy(model).train()
    parameters = dict(twin.named_parameters())
    for name in without:
        parameters[name].zero_()
    return sum(float(next_loss(twin)) for _ in range(BATCHES)) / BATCHES


def _train(model: nn.Module, optimizer: torch.optim.Optimizer, next_loss: NextLoss, limit: float) -> float | None:
    """Return the mean loss over the second half of a trial, or ``None`` if a loss is beyond the limit."""
    total = 0.0
    for step in range(STEPS):
        optimizer.zero_grad()
        try:
            loss = next_loss(model)
        except NonFiniteError:
            return None
        value = float(loss.detach())
        if not value <= limit:  # NaN too
            return None
        loss.backward()
        optimizer.step()
        total += value if step >= STEPS // 2 else 0.0
    return total / (STEPS - STEPS // 2)
