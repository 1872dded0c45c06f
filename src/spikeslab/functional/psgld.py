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


def psgld_noise_std(*, lr: float, temperature: float, num_data: int) -> float:
    r"""Standard deviation of the noise before preconditioning, :math:`\sqrt{2\,\mathrm{lr}\,T/N}`."""
    return math.sqrt(2.0 * lr * temperature / num_data)


def psgld(
    params: list[Tensor],
    grads: list[Tensor],
    loss_grads: list[Tensor],
    square_averages: list[Tensor],
    noises: list[Tensor] | None,
    *,
    lr: float,
    alpha: float,
    eps: float,
    noise_std: float,
    foreach: bool = True,
) -> None:
    """Move ``square_averages`` and ``params`` by one step; ``noises`` are standard normal, or ``None`` for no noise."""
    update = _multi_tensor_psgld if foreach else _single_tensor_psgld
    update(params, grads, loss_grads, square_averages, noises, lr, alpha, eps, noise_std)


def _single_tensor_psgld(
    params: list[Tensor],
    grads: list[Tensor],
    loss_grads: list[Tensor],
    square_averages: list[Tensor],
    noises: list[Tensor] | None,
    lr: float,
    alpha: float,
    eps: float,
    noise_std: float,
) -> None:
    for index, (param, grad) in enumerate(zip(params, grads, strict=True)):
        square_averages[index].mul_(alpha).addcmul_(loss_grads[index], loss_grads[index], value=1.0 - alpha)
        scale = square_averages[index].sqrt().add_(eps)
        param.addcdiv_(grad, scale, value=-lr)
        if noises is not None:
            param.addcdiv_(noises[index], scale.sqrt_(), value=noise_std)


def _multi_tensor_psgld(
    params: list[Tensor],
    grads: list[Tensor],
    loss_grads: list[Tensor],
    square_averages: list[Tensor],
    noises: list[Tensor] | None,
    lr: float,
    alpha: float,
    eps: float,
    noise_std: float,
) -> None:
    torch._foreach_mul_(square_averages, alpha)
    torch._foreach_addcmul_(square_averages, loss_grads, loss_grads, 1.0 - alpha)
    scales = torch._foreach_sqrt(square_averages)
    torch._foreach_add_(scales, eps)
    torch._foreach_addcdiv_(params, grads, scales, -lr)
    if noises is not None:
        torch._foreach_sqrt_(scales)
        torch._foreach_addcdiv_(params, noises, scales, noise_std)
