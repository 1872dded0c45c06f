r"""Stochastic gradient Langevin dynamics.

With U the negative log posterior, N the number of data, T the temperature and g the gradient of U/N,

.. math:: w \leftarrow w - \mathrm{lr}\, g + \sqrt{2\,\mathrm{lr}\,T/N}\;\xi, \qquad \xi \sim N(0, I),

which leaves :math:`\exp(-U/T)` invariant as lr tends to 0. On :math:`U/N = \lambda w^2/2` the chain's exact
stationary variance is :math:`\frac{T}{N\lambda}\cdot\frac{2}{2 - \mathrm{lr}\,\lambda}`.

Reference: Welling and Teh, "Bayesian Learning via Stochastic Gradient Langevin Dynamics", ICML 2011.
"""

from __future__ import annotations

import math

from torch import Tensor

from spikeslab.functional.tensors import Number, add_scaled_


def sgld_noise_std(*, lr: float, temperature: float, num_data: int, gradient_noise: float = 0.0) -> float:
    r"""Return the noise in w, :math:`\sqrt{2\,\mathrm{lr}\,T/N - \mathrm{lr}^2 V/N^2}`, a standard deviation >= 0.

    ``gradient_noise`` is V, the variance of a coordinate of the stochastic gradient of U: what the mini-batch
    already injects is not injected again.
    """
    if temperature == 0.0:
        return 0.0
    injected = 2.0 * lr * temperature / num_data - (lr / num_data) ** 2 * gradient_noise
    return math.sqrt(max(injected, 0.0))


def sgld(
    params: list[Tensor],
    grads: list[Tensor],
    noises: list[Tensor] | None,
    *,
    lr: Number,
    noise_std: Number,
    foreach: bool = True,
) -> None:
    """Move ``params`` by one step; ``noises`` are standard normal, or ``None`` for no noise."""
    add_scaled_(params, grads, -lr, foreach=foreach)
    if noises is not None:
        add_scaled_(params, noises, noise_std, foreach=foreach)
