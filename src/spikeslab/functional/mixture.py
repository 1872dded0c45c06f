r"""The spike-and-slab mixture: responsibilities, penalty weights and the maxima of Q (eqs. 12-15).

A weight :math:`\beta_j` of a sparse layer :math:`l` follows

.. math::
    \beta_j \mid \sigma, \gamma_j \sim (1 - \gamma_j)\, f_0(\beta_j; \sigma, v_0)
    + \gamma_j\, f_1(\beta_j; \sigma, v_1), \qquad \gamma_j \sim \mathrm{Bernoulli}(\delta_l),

with densities :math:`f_c \propto \exp(-\varphi_c(\beta)/v_c)`: a Laplace component has
:math:`\varphi = |\beta|/\sigma`, a Gaussian one :math:`\varphi = \beta^2/(2\sigma^2)`. The paper's SSGL prior
has a Laplace spike and a Gaussian slab. Given the expected indicators
:math:`\kappa_0 = (1-\rho)/v_0` and :math:`\kappa_1 = \rho/v_1`, the negative expected log prior is an elastic net

.. math:: \sum_j \kappa_{0j}\, \varphi_0(\beta_j) + \kappa_{1j}\, \varphi_1(\beta_j).

Both kappas are affine in one smoothed rho, which is why :class:`Affine` stands for them: a sparse weight needs
one tensor for the two of them.

Reference: Deng, Zhang, Liang and Lin, "An Adaptive Empirical Bayesian Method for Sparse Deep Learning",
NeurIPS 2019, equations 12 to 15.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple, TypeVar

import torch
from torch import Tensor

# One number for one chain, or a tensor with one for each of many.
Scalar = TypeVar("Scalar", float, Tensor)

TINY = 1e-12  # keeps logit(delta) finite where the layer is all spike or all slab


class Component(NamedTuple):
    """One density of the mixture, with scale ``sigma * v`` (power 1) or variance ``sigma**2 * v`` (power 2)."""

    name: str
    power: int

    def log_normaliser(self, v: float, size: int = 1) -> float:
        """Return the log of the normalising constant in ``size`` dimensions, without the factor ``sigma**size``."""
        if self.power == 2:
            return size * (0.5 * math.log(2.0 * math.pi * v))
        if size == 1:
            return math.log(2.0 * v)
        log_sphere = math.log(2.0) + 0.5 * size * math.log(math.pi) - math.lgamma(0.5 * size)
        return log_sphere + math.lgamma(size) + size * math.log(v / norm_weight(size))

    def standard_deviation(self, v: float) -> float:
        """Return the standard deviation in units of ``sigma``: sqrt(2) v for the Laplace, sqrt(v) for the Gaussian."""
        return math.sqrt(2.0) * v if self.power == 1 else math.sqrt(v)

    def from_standard_deviation(self, deviation: float) -> float:
        """Return the v of a standard deviation in units of ``sigma``."""
        return deviation / math.sqrt(2.0) if self.power == 1 else deviation**2

    def coefficients(self, v: float, sigma: float, size: int = 1) -> tuple[float, float]:
        r"""Return the energy :math:`\varphi(\beta)/v` as ``(linear, quadratic)`` coefficients of :math:`|\beta|`."""
        return (norm_weight(size) * (1.0 / (sigma * v)), 0.0) if self.power == 1 else (0.0, 0.5 / (sigma * sigma * v))


def norm_weight(size: int) -> float:
    """Return the factor k of the norm that gives the spike the same standard deviation in groups of any size.

    >>> norm_weight(1), norm_weight(7)
    (1.0, 2.0)
    """
    return math.sqrt(0.5 * (size + 1))


LAPLACE = Component("laplace", 1)
GAUSSIAN = Component("gaussian", 2)


class Affine(NamedTuple):
    """``base + slope * s`` for a smoothed rho ``s`` of every weight."""

    base: float
    slope: float

    def scale(self, factor: float) -> Affine:
        """Return both coefficients times ``factor``."""
        return Affine(self.base * factor, self.slope * factor)

    def of_sums(self, plain: Scalar, smoothed: Scalar) -> Scalar:
        """Return the sum of ``(base + slope * s) * x``, given those of ``x`` and of ``s * x``."""
        return self.base * plain + self.slope * smoothed

    def __bool__(self) -> bool:
        return self.base != 0.0 or self.slope != 0.0


def rho(
    betas: list[Tensor],
    *,
    v0: float,
    v1: float,
    sigma: float,
    deltas: Sequence[float],
    sizes: Sequence[int] | None = None,
    spike: Component = LAPLACE,
    slab: Component = GAUSSIAN,
    foreach: bool = True,
) -> list[Tensor]:
    r"""Return the responsibility of the slab for every weight, by Bayes' rule in log space (eq. 12).

    .. math::
        \tilde\rho_j = \mathrm{sigmoid}\!\left(\varphi_0(\beta_j)/v_0 - \varphi_1(\beta_j)/v_1
        + \log Z_0 - \log Z_1 + \mathrm{logit}\,\delta_l\right),

    which for SSGL is :math:`-\beta^2/(2\sigma^2 v_1) + |\beta|/(\sigma v_0) + \tfrac12\log(2v_0^2/(\pi v_1)) +
    \mathrm{logit}\,\delta`. The ratio of two exponentials, as the formula is usually coded, is 0/0 for large weights.
    """
    odds = log_odds(v0=v0, v1=v1, sigma=sigma, deltas=deltas, sizes=sizes, spike=spike, slab=slab)
    if foreach and odds and sizes is None:
        return _multi_tensor_rho(betas, odds[0].linear, odds[0].quadratic, [o.offset for o in odds])
    return [slab_probability(beta, *o) for beta, o in zip(betas, odds, strict=True)]


class LogOdds(NamedTuple):
    """Log odds of the slab, ``|beta| * (linear + quadratic * |beta|) + offset``."""

    linear: float
    quadratic: float
    offset: float


def log_odds(
    *,
    v0: float,
    v1: float,
    sigma: float,
    deltas: Sequence[float],
    sizes: Sequence[int] | None = None,
    spike: Component = LAPLACE,
    slab: Component = GAUSSIAN,
) -> list[LogOdds]:
    """Return the log odds in eq. 12 for each layer; ``sizes`` are those of its groups, 1 by default.

    The normalisers grow with the size: the larger a group, the sharper rho is and the less delta counts.
    """

    def of_size(size: int) -> LogOdds:
        (linear0, quadratic0), (linear1, quadratic1) = (
            component.coefficients(v, sigma, size) for component, v in ((spike, v0), (slab, v1))
        )
        constant = spike.log_normaliser(v0, size) - slab.log_normaliser(v1, size)
        return LogOdds(linear0 - linear1, quadratic0 - quadratic1, constant)

    sizes = sizes or [1] * len(deltas)
    common = {size: of_size(size) for size in set(sizes)}
    return [
        LogOdds(linear, quadratic, offset + logit(delta))
        for delta, (linear, quadratic, offset) in zip(deltas, map(common.__getitem__, sizes), strict=True)
    ]


def logit(delta: float) -> float:
    """Return the log odds of a probability that is first kept away from 0 and 1."""
    clamped = min(max(delta, TINY), 1.0 - TINY)
    return math.log(clamped) - math.log1p(-clamped)


# |b| (linear + quadratic |b|) rather than a completed square: v1 / v0 may be 1e5, and the square would cancel.
def slab_probability(beta: Tensor, linear: float, quadratic: float, offset: float | Tensor) -> Tensor:
    """Return eq. 12 for one tensor, given its log odds; ``offset`` may differ along its dimensions."""
    magnitude = beta.abs()
    log_odds = magnitude.mul(quadratic).add_(linear).mul_(magnitude).add_(offset)
    return log_odds.sigmoid_()


def _multi_tensor_rho(betas: list[Tensor], linear: float, quadratic: float, offsets: Sequence[float]) -> list[Tensor]:
    magnitudes = torch._foreach_abs(betas)
    log_odds = torch._foreach_mul(magnitudes, quadratic)
    torch._foreach_add_(log_odds, linear)
    torch._foreach_mul_(log_odds, magnitudes)
    torch._foreach_add_(log_odds, offsets)
    torch._foreach_sigmoid_(log_odds)
    return list(log_odds)


def kappa(rhos: list[Tensor], *, v0: float, v1: float) -> tuple[list[Tensor], list[Tensor]]:
    r"""Return the expected penalty weights :math:`\kappa_0 = (1-\rho)/v_0` and :math:`\kappa_1 = \rho/v_1` (eq. 13).

    The paper writes :math:`E[1/(v_0(1-\gamma))]`, which is infinite; what enters Q is
    :math:`E[(1-\gamma)/v_0]`.
    """
    return [(1.0 - r) / v0 for r in rhos], [r / v1 for r in rhos]


def elastic_net(
    kappa0: Affine, kappa1: Affine, spike: Component = LAPLACE, slab: Component = GAUSSIAN
) -> tuple[Affine, Affine]:
    """Return the total weight of ``|beta|`` and of ``beta**2 / 2`` in the penalty, at ``sigma = 1``."""
    l1, l2 = Affine(0.0, 0.0), Affine(0.0, 0.0)
    for component, weight in ((spike, kappa0), (slab, kappa1)):
        if component.power == 1:
            l1 = Affine(l1.base + weight.base, l1.slope + weight.slope)
        else:
            l2 = Affine(l2.base + weight.base, l2.slope + weight.slope)
    return l1, l2


def add_elastic_net_gradient_(
    outs: list[Tensor],
    betas: list[Tensor],
    smoothed: list[Tensor] | None,
    l1: Affine,
    l2: Affine,
    *,
    foreach: bool = True,
) -> None:
    r"""Add :math:`l_1 \,\mathrm{sign}(\beta) + l_2 \,\beta` to ``outs``, with ``l1`` and ``l2`` affine in ``smoothed``.

    The subgradient of :math:`|\beta|` at 0 is 0, so a pruned weight is not pushed. ``smoothed`` may be ``None``
    where both slopes are zero.
    """
    if not foreach:
        for index, (out, beta) in enumerate(zip(outs, betas, strict=True)):
            s = None if smoothed is None else [smoothed[index]]
            add_elastic_net_gradient_([out], [beta], s, l1, l2)
        return
    # base * direction + slope * s * direction, not (base + slope * s) * direction: one temporary less for each weight.
    for weight, directions in ((l1, torch._foreach_sign(betas) if l1 else betas), (l2, betas)):
        if weight.base:
            torch._foreach_add_(outs, directions, alpha=weight.base)
        if weight.slope and smoothed is not None:
            torch._foreach_addcmul_(outs, smoothed, directions, weight.slope)


def elastic_net_sums(betas: list[Tensor], smoothed: list[Tensor] | None, l1: Affine, l2: Affine) -> tuple[float, float]:
    r"""Return the sums :math:`B = \sum l_1 |\beta|` and :math:`J = \sum l_2 \beta^2` of the sigma update (eq. 14).

    The negative expected log prior is :math:`B/\sigma + J/(2\sigma^2)` up to a constant.
    """
    sums = torch.stack([moments(beta, smoothed[i] if smoothed else None) for i, beta in enumerate(betas)])
    # One transfer for all sums: on a GPU each .item() would wait for the device.
    plain1, plain2, smoothed1, smoothed2 = sums.sum(0).tolist()
    return l1.of_sums(plain1, smoothed1), l2.of_sums(plain2, smoothed2)


def moments(beta: Tensor, s: Tensor | None, dim: int | None = None) -> Tensor:
    r"""Return the sums of :math:`|\beta|, \beta^2, s|\beta|` and :math:`s\beta^2`, over all or along ``dim``."""

    def total(x: Tensor) -> Tensor:
        return x.sum() if dim is None else x.sum(dim)

    scratch = beta.abs()  # the one temporary tensor
    plain1 = total(scratch)
    plain2 = total(scratch.mul_(scratch))
    if s is None:
        return torch.stack([plain1, plain2, torch.zeros_like(plain1), torch.zeros_like(plain1)])
    smoothed2 = total(scratch.mul_(s))
    smoothed1 = total(torch.mul(beta, s, out=scratch).abs_())
    return torch.stack([plain1, plain2, smoothed1, smoothed2])


def sigma_classification(*, b: Scalar, j: Scalar, num_weights: int, nu: float, lam: float) -> Scalar:
    r"""Return the sigma that maximises Q1 for classification (eq. 14): the positive root of

    .. math:: (p + \nu + 2)\,\sigma^2 - B\,\sigma - (J + \nu\lambda) = 0.
    """  # noqa: D415
    return _positive_root(num_weights + nu + 2.0, b, j + nu * lam)


def sigma_regression(
    *,
    b: Scalar,
    j: Scalar,
    squares: Scalar,
    num_targets: float,
    num_weights: int,
    nu: float,
    lam: float,
    printed: bool = False,
) -> Scalar:
    r"""Return the sigma that maximises Q1 for regression (eq. 14): the positive root of

    .. math:: (N + p + \nu + 2)\,\sigma^2 - B\,\sigma - (I + J + \nu\lambda) = 0,

    with the residual sum of squares I. The paper prints N + p + nu, which ``printed`` gives. The inverse-gamma density
    of sigma^2 carries :math:`(\sigma^2)^{-\nu/2-1}`, whose :math:`-1` gives the 2 that eq. 14 has for classification;
    without it sigma is the maximum in terms of :math:`\log\sigma^2`.
    """  # noqa: D415
    return _positive_root(num_targets + num_weights + nu + (0.0 if printed else 2.0), b, squares + j + nu * lam)


def sigma_independent(*, squares: Scalar, num_targets: float, nu: float, lam: float) -> Scalar:
    r"""Return the sigma of the noise if the prior of the weights does not scale with it: B = J = 0 and no p in R_a.

    Moran, Rockova and George (2018) show that the conjugate version underestimates the noise when p >> n.
    """
    return _positive_root(num_targets + nu + 2.0, 0.0 * squares, squares + nu * lam)


def _positive_root(a: float, b: Scalar, c: Scalar) -> Scalar:
    return (b + square_root(b * b + 4.0 * a * c)) / (2.0 * a)


def square_root(value: Scalar) -> Scalar:
    """Return the square root of a number or of each entry of a tensor."""
    return value.sqrt() if isinstance(value, Tensor) else math.sqrt(value)


def clamp(value: Scalar, low: float, high: float = math.inf) -> Scalar:
    """Return a number, or each entry of a tensor, kept between ``low`` and ``high``."""
    return value.clamp(low, high) if isinstance(value, Tensor) else min(max(value, low), high)


def delta(*, rho_sum: Scalar, num_weights: int, a: float, b: float) -> Scalar:
    r"""Return the delta of a layer that maximises Q2 (eq. 15): :math:`(\sum\rho + a - 1)/(a + b + p_l - 2)`.

    With a and b of at least 1, Q2 is concave and the root lies in [0, 1]; it is kept off the ends.
    """
    return clamp((rho_sum + a - 1.0) / (a + b + num_weights - 2.0), TINY, 1.0 - TINY)


def log_marginal(
    beta: Tensor,
    *,
    v0: float,
    v1: float,
    sigma: float,
    delta: float,
    size: int = 1,
    spike: Component = LAPLACE,
    slab: Component = GAUSSIAN,
) -> Tensor:
    r"""Return the log density of a weight with its indicator summed out, :math:`\log((1-\delta) f_0 + \delta f_1)`.

    For groups of ``size`` weights, ``beta`` is their norm. By Fisher's identity the gradient is minus that of the
    elastic net at :math:`\rho = \tilde\rho(\beta)`.
    """
    magnitude = beta.abs()

    def log_density(component: Component, v: float) -> Tensor:
        linear, quadratic = component.coefficients(v, sigma, size)
        constant = component.log_normaliser(v, size) + size * math.log(sigma)
        return -magnitude * (linear + quadratic * magnitude) - constant

    return torch.logaddexp(log_density(spike, v0) + math.log1p(-delta), log_density(slab, v1) + math.log(delta))
