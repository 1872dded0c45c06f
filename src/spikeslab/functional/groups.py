r"""The spike-and-slab mixture on groups of weights, such as the filters of a convolution (eqs. 12-15, lifted).

A group :math:`w` of m weights, one slice ``weight[o]``, has one indicator. Both densities depend on its norm alone:

.. math::
    f_0(w) \propto \exp\!\Big(-\frac{k_m \lVert w\rVert}{\sigma v_0}\Big), \qquad
    f_1(w) = N(w; 0, \sigma^2 v_1 I_m), \qquad k_m = \sqrt{(m+1)/2}.

In polar coordinates :math:`\int e^{-\lVert w\rVert/c}\,dw = 2\pi^{m/2}\,\Gamma(m)\,c^m / \Gamma(m/2)`, here with
:math:`c = \sigma v_0/k_m`, and the norm under the spike is :math:`\mathrm{Gamma}(m, c)`. Both normalisers carry
:math:`\sigma^m`: it cancels in rho, and the p of eq. 14 is the number of weights. That of eq. 15 is the number of
groups.

Why :math:`k_m`: with :math:`\exp(-\lVert w\rVert/(\sigma v_0))` each weight would have the variance
:math:`(m+1)\sigma^2 v_0^2`, so that the spike of a wide layer is wider than that of a narrow one, and soon wider than
the slab. With :math:`k_m` every weight has the variance :math:`2\sigma^2 v_0^2` of a Laplace density of scale
:math:`\sigma v_0`, whatever m is. One v0 then serves layers of any fan-in: the root mean square
:math:`\lVert w\rVert/\sqrt m` at which rho is 1/2 tends to the same number for all large groups, the first root of
:math:`r/s_0 - r^2/(2 s_1^2) + \log(s_0/s_1) = 1/2` with the standard deviations :math:`s_0 = \sqrt2\,\sigma v_0` and
:math:`s_1 = \sigma\sqrt{v_1}`. The penalty grows as :math:`\sqrt m \lVert w\rVert`, as in the group lasso, and for
m = 1 all is that of :mod:`~spikeslab.functional.mixture`.

References: Yuan and Lin, "Model Selection and Estimation in Regression with Grouped Variables", JRSS B 2006; Kyung,
Gill, Ghosh and Casella, "Penalized Regression, Standard Errors, and Bayesian Lassos", Bayesian Analysis 2010.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from spikeslab.functional import mixture
from spikeslab.functional.mixture import GAUSSIAN, LAPLACE, Affine, Component, LogOdds

SMALLEST = 1e-30  # norms below it count as it: w / 0 is then 0, and 1 / norm is finite in float32


def norms(betas: Sequence[Tensor]) -> list[Tensor]:
    """Euclidean norm of every group, a slice along the first dimension; of a vector, every number is a group.

    >>> norms([torch.tensor([[3.0, 4.0], [0.0, 0.0]]), torch.tensor([-2.0])])
    [tensor([5., 0.]), tensor([2.])]
    """
    # By dimensions, not by a view of rows, which a channels_last weight does not have.
    return [
        beta.abs() if beta.ndim < 2 else torch.linalg.vector_norm(beta, dim=tuple(range(1, beta.ndim)))
        for beta in betas
    ]


def group_size(beta: Tensor) -> int:
    """Number of weights in a group of ``beta``.

    >>> group_size(torch.zeros(8, 3, 5, 5)), group_size(torch.zeros(8))
    (75, 1)
    """
    return math.prod(beta.shape[1:])


def norm_weight(size: int) -> float:
    """The factor k of the norm, which gives the spike the same standard deviation for all sizes of a group.

    >>> norm_weight(1), norm_weight(7)
    (1.0, 2.0)
    """
    return math.sqrt(0.5 * (size + 1))


def log_normaliser(component: Component, v: float, size: int) -> float:
    """Log of the normalising constant in ``size`` dimensions, without the factor ``sigma**size``."""
    if component.power == 2:
        return size * component.log_normaliser(v)
    log_sphere = math.log(2.0) + 0.5 * size * math.log(math.pi) - math.lgamma(0.5 * size)
    return log_sphere + math.lgamma(size) + size * math.log(v / norm_weight(size))


def log_odds(
    *,
    v0: float,
    v1: float,
    sigma: float,
    deltas: Sequence[float],
    sizes: Sequence[int],
    spike: Component = LAPLACE,
    slab: Component = GAUSSIAN,
) -> list[LogOdds]:
    r"""The log odds of the slab in eq. 12 for each layer, of the norm of a group.

    :math:`k_m n/(\sigma v_0) - n^2/(2\sigma^2 v_1) + \log Z_0 - \log Z_1 + \mathrm{logit}\,\delta`, where the
    normalisers grow with m: the larger a group, the sharper rho is and the less delta counts.
    """
    spike_linear, spike_quadratic = spike.coefficients(v0, sigma)
    slab_linear, slab_quadratic = slab.coefficients(v1, sigma)
    linear, quadratic = spike_linear - slab_linear, spike_quadratic - slab_quadratic
    return [
        LogOdds(
            linear * norm_weight(size),
            quadratic,
            log_normaliser(spike, v0, size) - log_normaliser(slab, v1, size) + mixture.logit(delta),
        )
        for delta, size in zip(deltas, sizes, strict=True)
    ]


def rho(group_norms: Sequence[Tensor], odds: Sequence[LogOdds]) -> list[Tensor]:
    """Responsibility of the slab for every group (eq. 12), from :func:`norms` and :func:`log_odds`."""
    return [mixture.slab_probability(norm, *o) for norm, o in zip(group_norms, odds, strict=True)]


def add_gradient_(
    outs: Sequence[Tensor],
    betas: Sequence[Tensor],
    group_norms: Sequence[Tensor],
    smoothed: Sequence[Tensor] | None,
    l1: Affine,
    l2: Affine,
) -> None:
    r"""Add :math:`l_1 k_m w/\lVert w\rVert + l_2 w` to ``outs``, with ``l1`` and ``l2`` affine in ``smoothed``.

    At w = 0 the gradient of the norm is taken as 0, an element of its subdifferential (the ball of radius 1). A
    pruned group is not pushed; but no step of a sampler lands on 0 either. What makes a group exactly zero is the
    pruner, as for single weights.
    """
    for index, (out, beta, norm) in enumerate(zip(outs, betas, group_norms, strict=True)):
        s = torch.zeros_like(norm) if smoothed is None else smoothed[index]
        factor = (l1.base + l1.slope * s).mul_(norm_weight(group_size(beta))).div_(norm.clamp_min(SMALLEST))
        factor += l2.base + l2.slope * s
        out.addcmul_(factor.view(-1, *[1] * (beta.ndim - 1)) if beta.ndim else factor, beta)


def penalty_sums(
    group_norms: list[Tensor], smoothed: list[Tensor] | None, sizes: Sequence[int], l1: Affine, l2: Affine
) -> tuple[float, float]:
    r"""The sums :math:`B = \sum l_1 k_m\lVert w\rVert` and :math:`J = \sum l_2\lVert w\rVert^2` of eq. 14."""
    weighted = [norm * norm_weight(size) for norm, size in zip(group_norms, sizes, strict=True)]
    return (
        mixture.elastic_net_sums(weighted, smoothed, l1, l2)[0],
        mixture.elastic_net_sums(group_norms, smoothed, l1, l2)[1],
    )


def log_marginal(
    norm: Tensor,
    *,
    v0: float,
    v1: float,
    sigma: float,
    delta: float,
    size: int,
    spike: Component = LAPLACE,
    slab: Component = GAUSSIAN,
) -> Tensor:
    r"""Log density of a group with its indicator summed out, as a function of its norm.

    By Fisher's identity its gradient is minus that of the penalty at :math:`\rho = \tilde\rho(w)`.
    """

    def log_density(component: Component, v: float) -> Tensor:
        linear, quadratic = component.coefficients(v, sigma)
        energy = norm * (linear * norm_weight(size) + quadratic * norm)
        return -energy - log_normaliser(component, v, size) - size * math.log(sigma)

    return torch.logaddexp(log_density(spike, v0) + math.log1p(-delta), log_density(slab, v1) + math.log(delta))
