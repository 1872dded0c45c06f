r"""Exact Gibbs sampling for logistic regression under a point-mass spike and slab.

    P(y_i = 1) = 1 / (1 + exp(-psi_i)),  psi = b0 + X beta,  prior of b0, beta and s2 as in `PointMassPrior`,

with X standardised. Given Polya-Gamma variables omega_i | psi_i ~ PG(1, psi_i) the likelihood is that of a
linear model with weights omega and weighted residual (y - 1/2) - omega psi, to which the moves of `_sweep`
apply; the intercept is drawn jointly with the included coefficients. When the classes are nearly separable,
the data hardly bound the length of (b0, beta), and a walk of one coordinate at a time is slow along it; a
Metropolis step that multiplies (b0, beta, sqrt(s2)) by a common factor, with omega integrated out, moves
there at a cost of O(n). A sweep leaves p(b0, beta, gamma, s2 | y) invariant and costs O(n p).

References:
    N. G. Polson, J. G. Scott and J. Windle (2013), Bayesian inference for logistic models using Pólya-Gamma
    latent variables, Journal of the American Statistical Association 108.
"""

from __future__ import annotations

from math import exp, log, log1p, sqrt
from typing import TYPE_CHECKING, Any

import numpy as np

from spikeslab.kernels.compiling import compile_cached
from spikeslab.sklearn._chains import GibbsChain, has_room, record
from spikeslab.sklearn._polya_gamma import draw_polya_gamma
from spikeslab.sklearn._sweep import coordinate_sweep, draw_slab, joint_draw, swap

if TYPE_CHECKING:
    from numpy.random import Generator

    from spikeslab.sklearn._chains import Room
    from spikeslab.sklearn._sweep import Floats, PointMassPrior


SCALE_STEPS = 2  # Metropolis steps on the common scale per sweep


@compile_cached()
def linear_predictor(columns: Floats, beta: Floats, intercept: float, out: Floats) -> None:
    """Compute out = intercept + X beta from the non-zero coefficients."""
    out[:] = intercept
    for j in range(beta.shape[0]):
        if beta[j] != 0.0:
            x = columns[j]
            for i in range(out.shape[0]):
                out[i] += beta[j] * x[i]


@compile_cached()
def softplus(x: float) -> float:
    """Compute log(1 + e^x) without overflow."""
    return max(x, 0.0) + log1p(exp(-abs(x)))


@compile_cached()
def log_likelihood(y: Floats, psi: Floats, factor: float) -> float:
    """Compute the log likelihood of the classes 0 and 1 at the linear predictor factor * psi."""
    total = 0.0
    for i in range(y.shape[0]):
        total += factor * y[i] * psi[i] - softplus(factor * psi[i])
    return total


@compile_cached()
def log_scale_prior(factor: float, slab: float, intercepts: int, squares: float, prior: PointMassPrior) -> float:
    """Compute the log ratio of the prior, Jacobian included, when (b0, beta, sqrt(s2)) is multiplied by `factor`.

    The density of the coefficients and its Jacobian cancel; the inverse gamma density of s2 = `slab` with its Jacobian
    factor^2, and the normal density of the free intercepts, whose squares sum to `squares`, with its own are left.
    """
    rate = 0.5 * prior.slab_df * prior.slab_scale**2
    scale = (intercepts - prior.slab_df) * log(factor) - rate / slab * (1.0 / (factor * factor) - 1.0)
    return scale - 0.5 * squares / prior.intercept_scale**2 * (factor * factor - 1.0)


@compile_cached()
def draw_factor(rng: Generator) -> float:
    """Propose a factor from a law that is symmetric on the log scale and has many sizes of steps."""
    return exp(rng.standard_normal() * 10.0 ** (-2.0 * rng.random()))


@compile_cached()
def logistic_sweeps(
    columns: Floats,
    y: Floats,
    psi: Floats,
    beta: Floats,
    level: Floats,
    prior: PointMassPrior,
    swaps: int,
    sweeps: int,
    rng: Generator,
    sums: Floats,
    room: Room,
) -> int:
    """Run up to `sweeps` sweeps, recording each; return how many fitted in the buffer.

    `level` is (s2, b0); `psi`, `beta` and `level` are updated in place.
    """
    p, n = columns.shape
    w = np.empty(n)
    wr = np.empty(n)
    for sweep in range(sweeps):
        if not has_room(beta, room, sweep):
            return sweep
        for i in range(n):
            w[i] = draw_polya_gamma(psi[i], rng)
            wr[i] = y[i] - 0.5 - w[i] * psi[i]
        slab = level[0]
        coordinate_sweep(columns, w, wr, beta, slab, prior.a, prior.b, 0, p, rng, sums)
        for _ in range(swaps):
            swap(columns, w, wr, beta, slab, rng)
        level[1] += joint_draw(columns, w, wr, beta, slab, True, rng, level[1], 1.0 / prior.intercept_scale**2)
        level[0] = draw_slab(beta, prior.slab_df, prior.slab_scale**2, rng)
        linear_predictor(columns, beta, level[1], psi)
        fit = log_likelihood(y, psi, 1.0)
        for _ in range(SCALE_STEPS):
            factor = draw_factor(rng)
            proposed = log_likelihood(y, psi, factor)
            gain = proposed - fit + log_scale_prior(factor, level[0], 1, level[1] ** 2, prior)
            if log(1.0 - rng.random()) < gain:
                fit = proposed
                psi *= factor
                beta *= factor
                level[1] *= factor
                level[0] *= factor * factor
        room.scalars[sweep, 0] = sqrt(level[0])
        room.scalars[sweep, 1] = record(beta, np.flatnonzero(beta), room, sweep)
        room.scalars[sweep, 2] = fit
        room.scalars[sweep, 3] = level[1]
    return sweeps


class LogisticChain(GibbsChain):
    """Chain for two classes, `y` 0.0 and 1.0; `columns` is standardised X, transposed and contiguous."""

    kernel = staticmethod(logistic_sweeps)
    scalar_names = ("slab_scale", "model_size", "log_lik")

    def __init__(self, columns: Floats, y: Floats, prior: PointMassPrior, burn_in: int, rng: Generator) -> None:
        super().__init__(1, columns.shape[0], prior, burn_in, rng, intercepts=1)
        start = np.log((y.sum() + 0.5) / (y.size - y.sum() + 0.5))
        self.columns, self.y = columns, y
        self.psi = np.full(y.shape[0], start)
        self.level = np.array([prior.slab_scale**2, start])

    def _arrays(self) -> tuple[Any, ...]:
        return self.columns, self.y, self.psi, self.beta[0], self.level
