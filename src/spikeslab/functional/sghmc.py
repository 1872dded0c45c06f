r"""Stochastic gradient Hamiltonian Monte Carlo, in the form that shares its settings with SGD.

With U the negative log posterior, N the number of data, T the temperature, m the momentum and g the gradient of U/N,

.. math::
    b \leftarrow m\,b + g - \sqrt{2(1-m)\,T/(N\,\mathrm{lr})}\;\xi, \qquad w \leftarrow w - \mathrm{lr}\, b,

a semi-implicit Euler step of the underdamped Langevin equation with friction 1 - m, which leaves
:math:`\exp(-U/T)` invariant as lr tends to 0. At T = 0 it is ``torch.optim.SGD(momentum=m)``. On
:math:`U/N = \lambda w^2/2` the chain's exact stationary variance is
:math:`\frac{T}{N\lambda}\cdot\frac{2(1+m)}{2(1+m) - \mathrm{lr}\,\lambda}`.

References: Chen, Fox and Guestrin, "Stochastic Gradient Hamiltonian Monte Carlo", ICML 2014, eq. 15; Saatci and
Wilson, "Bayesian GAN", NeurIPS 2017.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from spikeslab.functional.tensors import Number, add_scaled_


def sghmc_noise_std(
    *, lr: float, momentum: float, temperature: float, num_data: int, gradient_noise: float = 0.0
) -> float:
    r"""Return the noise in the buffer, :math:`\sqrt{2(1-m)\,T/(N\,\mathrm{lr}) - V/N^2}`, a standard deviation >= 0.

    ``gradient_noise`` is V, the variance of a coordinate of the stochastic gradient of U; in the paper's terms it
    replaces the friction 1 - m in the noise by 1 - m - beta with beta = V lr / (2 N T).
    """
    if temperature == 0.0 or lr == 0.0:
        return 0.0
    injected = 2.0 * (1.0 - momentum) * temperature / (num_data * lr) - gradient_noise / num_data**2
    return math.sqrt(max(injected, 0.0))


def sghmc(
    params: list[Tensor],
    grads: list[Tensor],
    buffers: list[Tensor],
    noises: list[Tensor] | None,
    *,
    lr: Number,
    momentum: Number,
    noise_std: Number,
    foreach: bool = True,
) -> None:
    """Move ``buffers`` and ``params`` by one step; ``noises`` are standard normal, or ``None`` for no noise."""
    if foreach:
        torch._foreach_mul_(buffers, momentum)
    else:
        for buffer in buffers:
            buffer.mul_(momentum)
    add_scaled_(buffers, grads, 1.0, foreach=foreach)
    if noises is not None:
        add_scaled_(buffers, noises, -noise_std, foreach=foreach)
    add_scaled_(params, buffers, -lr, foreach=foreach)
