r"""The dense network as a teacher: what it says about a batch is learnt beside the targets.

With :math:`\alpha` the share of the teacher, s the softening, and :math:`q_s, p_s` the probabilities of the dense
and of the sparse network from logits divided by s, the loss of a classification is

.. math::

    (1 - \alpha)\,\operatorname{CE}(y, p_1) + \alpha\, s^2 \operatorname{KL}(q_s \,\|\, p_s) ,

where :math:`s^2` keeps the gradient's size as s grows. That of a regression is the mean squared error from y and from
the dense network's output, in the same shares. N times this loss takes the place of the negative log-likelihood, so
what is sampled is the posterior given the labels and the teacher's opinion, not the labels alone.

References:
    G. Hinton, O. Vinyals and J. Dean. Distilling the knowledge in a neural network. arXiv:1503.02531, 2015.
"""

from __future__ import annotations

import copy
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from spikeslab.compression.tasks import CLASSIFICATION, Task, pair, shaped
from spikeslab.errors import ArgumentValueError

UNLABELLED = -100
"""The label of what has none, by ``F.cross_entropy``'s default."""


def taught(task: Task, dense: nn.Module, share: float, softening: float) -> Task:
    """The task with the dense network as a teacher, whose copy stays as it is now; the same task if its share is 0.

    Raises:
        ValueError: If the user gave the loss: only they know how a teacher would enter it.
    """
    if share == 0.0:
        return task
    if task.own_loss:
        raise ArgumentValueError(
            "distillation", "must be 0 where a {loss} is given, which decides what is learnt", share
        )
    teacher = copy.deepcopy(dense).eval().requires_grad_(False)

    def loss(model: nn.Module, batch: Any) -> Tensor:
        x, y = pair(model, batch)
        output = model(x)
        with torch.no_grad():
            told = teacher(x)
        if task.kind == CLASSIFICATION:
            labelled = y != UNLABELLED
            divergence = (softened_divergences(output, told, softening) * labelled).sum() / labelled.sum()
            return (1.0 - share) * F.cross_entropy(output, y) + share * divergence
        return (1.0 - share) * F.mse_loss(output, shaped(y, output)) + share * F.mse_loss(output, told)

    return Task(task.kind, loss)


def softened_divergences(logits: Tensor, told: Tensor, softening: float) -> Tensor:
    """s^2 KL(softmax(told / s) || softmax(logits / s)) of each row, and of all that has a label within a row.

    >>> softened_divergences(torch.tensor([[0.0, 0.0]]), torch.tensor([[0.0, 0.0]]), 4.0)
    tensor([0.])
    """
    wide = torch.promote_types(logits.dtype, torch.float32)  # under autocast log_softmax would stay as it gets them
    learnt, target = (F.log_softmax(each.to(wide) / softening, dim=1) for each in (logits, told))
    return softening**2 * F.kl_div(learnt, target, reduction="none", log_target=True).sum(dim=1)
