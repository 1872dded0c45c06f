r"""Exact Gibbs sampling for linear regression under a point-mass spike and slab.

    y = X beta + e,  e ~ N(0, sigma2 I),  prior of beta, s2 and sigma2 as in `PointMassPrior`,

with X standardised and y centred: a flat intercept, integrated out, leaves n - 1 degrees of freedom. A sweep
draws every (gamma_j, beta_j) with beta_j integrated out of the update of gamma_j, exchanges included for
excluded variables, draws the included coefficients jointly, and then

    sigma2 | beta ~ IG((noise_df + n - 1) / 2, (noise_df noise_scale^2 + |y - X beta|^2) / 2),
    s2 | beta ~ IG((slab_df + |gamma|) / 2, (slab_df slab_scale^2 + |beta|^2) / 2).

It leaves p(beta, gamma, sigma2, s2 | y) invariant. `GramChain` holds X'X and the correlations X'r, so that
a sweep costs O(p) plus O(p) per change of a coefficient, whatever n is; `ColumnChain` holds X, and a sweep
costs O(n p). The moves and their references are in `_sweep`.
"""

from __future__ import annotations

from math import exp, log1p, sqrt
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numba import njit

from spikeslab.sklearn._chains import GibbsChain, has_room, record
from spikeslab.sklearn._sweep import (
    JOINT_LIMIT,
    REORDER,
    coordinate_sweep,
    count_nonzero,
    draw_included,
    draw_index,
    draw_inverse_gamma,
    draw_normal,
    draw_slab,
    joint_draw,
    log_prior_odds,
    swap,
)

if TYPE_CHECKING:
    from numpy.random import Generator

    from spikeslab.sklearn._chains import Room
    from spikeslab.sklearn._sweep import Floats, PointMassPrior


class GramData(NamedTuple):
    """X'X of standardised columns (equal diagonal), X'y and y'y of a centred response, and the number of rows."""

    gram: Floats
    xty: Floats
    yty: float
    n: float


@njit(cache=True, nogil=True, fastmath=REORDER)
def _shift_correlations(corr: Floats, gram_row: Floats, change: float) -> None:
    for i in range(corr.shape[0]):
        corr[i] -= change * gram_row[i]


@njit(cache=True, nogil=True)
def _gram_coordinates(
    gram: Floats,
    corr: Floats,
    beta: Floats,
    noise: float,
    slab: float,
    a: float,
    b: float,
    rng: Generator,
    sums: Floats,
) -> None:
    """Update as `_sweep.coordinate_sweep`, for columns of equal norm, from corr = X'r."""
    p = beta.shape[0]
    if p == 0:
        return
    norm = gram[0, 0]
    precision = norm / noise + 1.0 / slab
    penalty = 0.5 * log1p(slab * norm / noise)
    spread = 1.0 / sqrt(precision)
    size = count_nonzero(beta)
    base = log_prior_odds(size, p, a, b) - penalty
    for j in range(p):
        old = beta[j]
        if old != 0.0:
            size -= 1
            base = log_prior_odds(size, p, a, b) - penalty
        c = (corr[j] + norm * old) / noise
        mean = c / precision
        log_odds = base + 0.5 * c * mean
        inclusion = 1.0 / (1.0 + exp(-log_odds)) if log_odds > -700.0 else 0.0
        sums[0, j] += inclusion
        sums[1, j] += inclusion * mean
        sums[2, j] += inclusion * (mean * mean + spread * spread)
        new = 0.0
        if rng.random() < inclusion:
            new = mean + spread * rng.standard_normal()
            size += 1
            base = log_prior_odds(size, p, a, b) - penalty
        if new != old:
            _shift_correlations(corr, gram[j], new - old)
            beta[j] = new


@njit(cache=True, nogil=True)
def _gram_swap(gram: Floats, corr: Floats, beta: Floats, noise: float, slab: float, rng: Generator) -> None:
    """Update as `_sweep.swap`, for columns of equal norm, from corr = X'r."""
    size = count_nonzero(beta)
    if size == 0:
        return
    leaving = draw_included(beta, size, rng)
    _shift_correlations(corr, gram[leaving], -beta[leaving])
    beta[leaving] = 0.0
    precision = gram[0, 0] / noise + 1.0 / slab
    gain = 0.5 / (noise * noise * precision)
    log_weights = np.empty(beta.shape[0])
    for j in range(beta.shape[0]):
        log_weights[j] = gain * corr[j] * corr[j] if beta[j] == 0.0 else -np.inf
    entering = draw_index(log_weights, rng)
    beta[entering] = corr[entering] / (noise * precision) + rng.standard_normal() / sqrt(precision)
    _shift_correlations(corr, gram[entering], beta[entering])


@njit(cache=True, nogil=True)
def _gram_joint(
    gram: Floats, xty: Floats, corr: Floats, beta: Floats, noise: float, slab: float, rng: Generator
) -> None:
    """Draw all included coefficients jointly, and compute X'r afresh so that rounding does not add up."""
    active = np.flatnonzero(beta)
    k = active.shape[0]
    if k <= JOINT_LIMIT:
        precision = np.empty((k, k))
        shift = np.empty(k)
        for i in range(k):
            for j in range(k):
                precision[i, j] = gram[active[i], active[j]] / noise
            precision[i, i] += 1.0 / slab
            shift[i] = xty[active[i]] / noise
        draw = draw_normal(precision, shift, rng)
        for i in range(k):
            beta[active[i]] = draw[i]
    corr[:] = xty
    for i in range(k):
        _shift_correlations(corr, gram[active[i]], beta[active[i]])


@njit(cache=True, nogil=True)
def _draw_variances(
    beta: Floats, rss: float, n: float, variances: Floats, prior: PointMassPrior, rng: Generator, room: Room, row: int
) -> None:
    """Draw sigma2 and s2 given the coefficients and their residual sum of squares, and record the sweep."""
    if prior.noise_df < np.inf:
        rate = 0.5 * (prior.noise_df * prior.noise_scale**2 + rss)
        variances[0] = draw_inverse_gamma(0.5 * (prior.noise_df + n - 1.0), rate, rng)
    variances[1] = draw_slab(beta, prior.slab_df, prior.slab_scale**2, rng)
    room.scalars[row, 0] = sqrt(variances[0])
    room.scalars[row, 1] = sqrt(variances[1])
    room.scalars[row, 2] = record(beta, room, row)


@njit(cache=True, nogil=True)
def gram_sweeps(
    data: GramData,
    corr: Floats,
    beta: Floats,
    variances: Floats,
    prior: PointMassPrior,
    swaps: int,
    sweeps: int,
    rng: Generator,
    sums: Floats,
    room: Room,
) -> int:
    """Run up to `sweeps` sweeps, recording each; return how many fitted in the buffer.

    `variances` is (sigma2, s2); it, `corr` = X'r and `beta` are updated in place.
    """
    gram, xty = data.gram, data.xty
    for sweep in range(sweeps):
        if not has_room(beta, room, sweep):
            return sweep
        noise, slab = variances[0], variances[1]
        _gram_coordinates(gram, corr, beta, noise, slab, prior.a, prior.b, rng, sums)
        for _ in range(swaps):
            _gram_swap(gram, corr, beta, noise, slab, rng)
        _gram_joint(gram, xty, corr, beta, noise, slab, rng)
        rss = data.yty
        for j in range(beta.shape[0]):
            if beta[j] != 0.0:
                rss -= beta[j] * (xty[j] + corr[j])
        _draw_variances(beta, max(rss, 0.0), data.n, variances, prior, rng, room, sweep)
    return sweeps


@njit(cache=True, nogil=True)
def column_sweeps(
    columns: Floats,
    residual: Floats,
    beta: Floats,
    variances: Floats,
    prior: PointMassPrior,
    swaps: int,
    sweeps: int,
    rng: Generator,
    sums: Floats,
    room: Room,
) -> int:
    """Run up to `sweeps` sweeps from X itself (transposed); otherwise as `gram_sweeps`."""
    p, n = columns.shape
    for sweep in range(sweeps):
        if not has_room(beta, room, sweep):
            return sweep
        noise, slab = variances[0], variances[1]
        w = np.full(n, 1.0 / noise)
        wr = residual / noise
        coordinate_sweep(columns, w, wr, beta, slab, prior.a, prior.b, 0, p, rng, sums)
        for _ in range(swaps):
            swap(columns, w, wr, beta, slab, rng)
        joint_draw(columns, w, wr, beta, slab, False, rng)
        residual[:] = wr * noise
        _draw_variances(beta, np.dot(residual, residual), float(n), variances, prior, rng, room, sweep)
    return sweeps


class GramChain(GibbsChain):
    """Chain that works on X'X, for p up to a few thousand and any n.

    Args:
        data: Sums of squares and products.
        prior: Prior; this and the rest as in `GibbsChain`.
    """

    kernel = staticmethod(gram_sweeps)
    scalar_names = ("sigma", "slab_scale", "model_size")
    swaps = 2

    def __init__(self, data: GramData, prior: PointMassPrior, burn_in: int, rng: Generator) -> None:
        super().__init__(1, data.xty.shape[0], prior, burn_in, rng)
        self.data = data
        self.corr = data.xty.copy()
        noise = data.yty / data.n if prior.noise_df < np.inf else prior.noise_scale**2
        self.variances = np.array([max(noise, 1e-10), prior.slab_scale**2])

    def _arrays(self) -> tuple[Any, ...]:
        return self.data, self.corr, self.beta[0], self.variances


class ColumnChain(GibbsChain):
    """Chain that works on the columns of X, for p beyond what X'X allows.

    Args:
        columns: X transposed, standardised, shape (p, n), contiguous.
        y: Centred response.
        prior: Prior; this and the rest as in `GibbsChain`.
    """

    kernel = staticmethod(column_sweeps)
    scalar_names = GramChain.scalar_names

    def __init__(self, columns: Floats, y: Floats, prior: PointMassPrior, burn_in: int, rng: Generator) -> None:
        super().__init__(1, columns.shape[0], prior, burn_in, rng)
        self.columns = columns
        self.residual = y.copy()
        self.variances = np.array([max(float(y @ y) / y.shape[0], 1e-10), prior.slab_scale**2])

    def _arrays(self) -> tuple[Any, ...]:
        return self.columns, self.residual, self.beta[0], self.variances
