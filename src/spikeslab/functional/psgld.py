r"""Preconditioned SGLD: Langevin dynamics in the metric of RMSprop.

With U the negative log posterior, N the number of data, T the temperature, h the gradient of the mean loss and
g = h + (gradient of the prior)/N,

.. math::
    V \leftarrow \alpha V + (1-\alpha)\, h^2, \quad G = 1/(\sqrt V + \mathrm{eps}), \quad
    w \leftarrow w - \mathrm{lr}\, G\, g + \sqrt{2\,\mathrm{lr}\,T\,G/N}\;\xi.

For constant G this leaves :math:`\exp(-U/T)` invariant as lr tends to 0. The term with the derivative of G is left
out, as by its authors; the bias that this causes vanishes as alpha tends to 1 (their corollary 2). At T = 0 and
without a prior it is ``torch.optim.RMSprop``.

Reference: Li, Chen, Carlson and Carin, "Preconditioned Stochastic Gradient Langevin Dynamics for Deep Neural
Networks", AAAI 2016.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from spikeslab.functional.tensors import Number, add_ratio_


def psgld_noise_std(*, lr: float, temperature: float, num_data: int) -> float:
    r"""Return the standard deviation of the noise before preconditioning, :math:`\sqrt{2\,\mathrm{lr}\,T/N}`."""
    return math.sqrt(2.0 * lr * temperature / num_data)


def psgld(
    params: list[Tensor],
    grads: list[Tensor],
    loss_grads: list[Tensor],
    square_averages: list[Tensor],
    noises: list[Tensor] | None,
    *,
    lr: Number,
    alpha: float,
    eps: float,
    noise_std: Number,
    foreach: bool = True,
) -> None:
    """Move ``square_averages`` and ``params`` by one step; ``noises`` are standard normal, or ``None`` for no noise."""
    if foreach:
        torch._foreach_mul_(square_averages, alpha)
        torch._foreach_addcmul_(square_averages, loss_grads, loss_grads, 1.0 - alpha)
        scales = list(torch._foreach_sqrt(square_averages))
        torch._foreach_add_(scales, eps)
    else:
        scales = []
        for average, grad in zip(square_averages, loss_grads, strict=True):
            average.mul_(alpha).addcmul_(grad, grad, value=1.0 - alpha)
            scales.append(average.sqrt().add_(eps))
    add_ratio_(params, grads, scales, -lr, foreach=foreach)
    if noises is not None:
        roots = scales  # in their place
        torch._foreach_sqrt_(roots)
        add_ratio_(params, noises, roots, noise_std, foreach=foreach)
