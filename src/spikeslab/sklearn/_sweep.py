r"""Gibbs moves for the coefficients of a weighted linear model under a point-mass spike and slab.

Every sampler of this package that looks at the columns of X reduces, given its other variables, to

    z | beta ~ N(b0 + X beta, W^-1),    W = diag(w),
    beta_j | gamma_j ~ (1 - gamma_j) delta_0 + gamma_j N(0, s2),
    gamma_j | pi ~ Bernoulli(pi),    pi ~ Beta(a, b).

pi is integrated out, so that given the other indicators, m of which are one, gamma_j has the prior odds
(a + m) / (b + p - 1 - m). With q_j = sum_i w_i x_ij^2 and c_j = sum_i w_i x_ij r_i, where r leaves out
column j, the coefficient is integrated out of the update of its indicator (Geweke, 1996):

    log BF_j = c_j^2 / (2 (q_j + 1/s2)) - log(1 + s2 q_j) / 2,
    beta_j | gamma_j = 1 ~ N(c_j / (q_j + 1/s2), 1 / (q_j + 1/s2)).

The moves share the state (`beta`, `wr`), where `wr` = w * (z - b0 - X beta) is kept up to date and
gamma_j = 1 is written as beta_j != 0. Each move leaves p(beta, gamma | w, z, s2) invariant.

References:
    J. Geweke (1996), Variable selection and model comparison in regression, Bayesian Statistics 5.
    E. I. George and R. E. McCulloch (1997), Approaches for Bayesian variable selection, Statistica Sinica 7.
"""

from __future__ import annotations

from math import exp, log, log1p, sqrt
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from spikeslab.kernels.compiling import compile_cached

if TYPE_CHECKING:
    from numpy.random import Generator
    from numpy.typing import NDArray

    Floats = NDArray[np.float64]
    Ints = NDArray[np.int64]

JOINT_LIMIT = 128  # a larger model draws its coefficients one at a time only; either way the law is the same

# Sums may be reordered, so that vector instructions can be used; NaN and infinities keep their meaning.
REORDER = {"reassoc", "contract", "nsz"}


class PointMassPrior(NamedTuple):
    """Point-mass spike-and-slab prior of a sparse linear predictor with standardised columns.

        gamma_j | pi ~ Bernoulli(pi),  pi ~ Beta(a, b),  beta_j | gamma_j = 1 ~ N(0, s2),
        s2 ~ IG(slab_df / 2, slab_df slab_scale^2 / 2),
        sigma2 ~ IG(noise_df / 2, noise_df noise_scale^2 / 2),
        b0_c ~ N(0, intercept_scale^2) for the intercepts of a logistic model, flat in a linear one.

    The slab does not depend on sigma2. An infinite noise_df says that sigma2 is known to be noise_scale^2, an
    infinite intercept_scale that the intercepts have a flat prior.

    A flat prior of the intercepts would be no limit of proper ones where hyperplanes separate C classes: the
    likelihood is then near one on a cone, in which the C - 1 free intercepts fill a volume proportional to
    s^(C-1) given the scale s of the slab. The posterior density of s would fall like s^(C-1) s^(-slab_df-1),
    which has no finite integral once C - 1 >= slab_df: four classes at slab_df = 3. With a proper prior the tail
    is that of the prior of s at any number of classes.
    """

    a: float
    b: float
    slab_df: float
    slab_scale: float
    noise_df: float = 1.0
    noise_scale: float = 1.0
    intercept_scale: float = 10.0


@compile_cached(fastmath=REORDER)
def weighted_moments(x: Floats, w: Floats, wr: Floats) -> tuple[float, float]:
    """Return q = sum w x^2 and c = sum x (w r) in one pass over a column."""
    q = 0.0
    c = 0.0
    for i in range(x.shape[0]):
        q += w[i] * x[i] * x[i]
        c += x[i] * wr[i]
    return q, c


@compile_cached(fastmath=REORDER)
def remove_effect(x: Floats, w: Floats, wr: Floats, change: float) -> None:
    """Subtract the effect of `change` in the coefficient of column x from the weighted residual."""
    for i in range(x.shape[0]):
        wr[i] -= change * w[i] * x[i]


@compile_cached()
def log_prior_odds(others: int, total: int, a: float, b: float) -> float:
    """Log prior odds of an indicator when `others` of the remaining total - 1 indicators are one."""
    return log((a + others) / (b + max(total - 1 - others, 0)))


@compile_cached()
def count_nonzero(beta: Floats) -> int:
    """Count the included coefficients."""
    size = 0
    for j in range(beta.shape[0]):
        if beta[j] != 0.0:
            size += 1
    return size


@compile_cached()
def coordinate_sweep(
    columns: Floats,
    w: Floats,
    wr: Floats,
    beta: Floats,
    slab: float,
    a: float,
    b: float,
    elsewhere: int,
    total: int,
    rng: Generator,
    sums: Floats,
) -> None:
    """Draw each (gamma_j, beta_j) in turn from its conditional law.

    Args:
        columns: X transposed, shape (p, n), so that a column of X is contiguous.
        w: Weights of the rows.
        wr: Weighted residual, updated in place.
        beta: Coefficients, updated in place.
        slab: Variance of the slab, s2.
        a: First parameter of the Beta prior of pi.
        b: Second parameter of the Beta prior of pi.
        elsewhere: Number of indicators outside `beta` that share pi and are one (those of other classes).
        total: Number of indicators that share pi.
        rng: Source of randomness.
        sums: Shape (3, p); the conditional expectations of gamma_j, beta_j and beta_j^2 are added to its
            rows (Rao-Blackwell estimates of the inclusion probability and of the first two moments).
    """
    size = count_nonzero(beta) + elsewhere
    for j in range(beta.shape[0]):
        old = beta[j]
        q, c = weighted_moments(columns[j], w, wr)
        c += q * old
        others = size - 1 if old != 0.0 else size
        precision = q + 1.0 / slab
        mean = c / precision
        log_odds = log_prior_odds(others, total, a, b) + 0.5 * (c * mean - log1p(slab * q))
        inclusion = 1.0 / (1.0 + exp(-log_odds)) if log_odds > -700.0 else 0.0
        sums[0, j] += inclusion
        sums[1, j] += inclusion * mean
        sums[2, j] += inclusion * (mean * mean + 1.0 / precision)
        new = 0.0
        size = others
        if rng.random() < inclusion:
            new = mean + rng.standard_normal() / sqrt(precision)
            size += 1
        if new != old:
            remove_effect(columns[j], w, wr, new - old)
            beta[j] = new


@compile_cached()
def draw_index(log_weights: Floats, rng: Generator) -> int:
    """Draw an index with probability proportional to exp(log_weights); overwrites its argument."""
    top = log_weights.max()
    acc = 0.0
    for j in range(log_weights.shape[0]):
        acc += exp(log_weights[j] - top)
        log_weights[j] = acc
    at = np.searchsorted(log_weights, rng.random() * acc, side="right")
    return int(min(at, log_weights.shape[0] - 1))


@compile_cached()
def draw_included(beta: Floats, rng: Generator) -> int:
    """Draw one of the included coefficients uniformly; return -1 if there is none."""
    size = count_nonzero(beta)
    if size == 0:
        return -1
    rank = int(rng.random() * size)
    for j in range(beta.shape[0]):
        if beta[j] != 0.0:
            if rank == 0:
                return j
            rank -= 1
    return -1


@compile_cached()
def swap(columns: Floats, w: Floats, wr: Floats, beta: Floats, slab: float, rng: Generator) -> None:
    """Replace a random included variable by a draw among itself and all excluded variables.

    Given the other included variables A, the law of "exactly one more is included, and which" is discrete
    and known up to a constant: p(A + j | ...) is proportional to the Bayes factor of j. The variable that
    leaves is chosen with the same probability 1 / |A + 1| on both sides, so this is a Gibbs update of the
    identity of one effect; it moves between correlated variables without passing through a worse model.
    """
    leaving = draw_included(beta, rng)
    if leaving < 0:
        return
    remove_effect(columns[leaving], w, wr, -beta[leaving])
    beta[leaving] = 0.0
    p = beta.shape[0]
    log_weights = np.empty(p)
    for j in range(p):
        if beta[j] != 0.0:
            log_weights[j] = -np.inf
        else:
            q, c = weighted_moments(columns[j], w, wr)
            log_weights[j] = 0.5 * (c * c / (q + 1.0 / slab) - log1p(slab * q))
    entering = draw_index(log_weights, rng)
    q, c = weighted_moments(columns[entering], w, wr)
    precision = q + 1.0 / slab
    beta[entering] = c / precision + rng.standard_normal() / sqrt(precision)
    remove_effect(columns[entering], w, wr, beta[entering])


@compile_cached()
def draw_normal(precision: Floats, shift: Floats, rng: Generator) -> Floats:
    """Draw from N(Q^-1 h, Q^-1) for a positive definite precision Q; overwrites both arguments."""
    k = shift.shape[0]
    for i in range(k):  # Q = L L', in place
        for j in range(i + 1):
            acc = precision[i, j]
            for m in range(j):
                acc -= precision[i, m] * precision[j, m]
            precision[i, j] = sqrt(max(acc, 1e-300)) if i == j else acc / precision[j, j]
    for i in range(k):  # L u = h
        for m in range(i):
            shift[i] -= precision[i, m] * shift[m]
        shift[i] /= precision[i, i]
    for i in range(k):
        shift[i] += rng.standard_normal()
    for i in range(k - 1, -1, -1):  # L' draw = u + noise
        for m in range(i + 1, k):
            shift[i] -= precision[m, i] * shift[m]
        shift[i] /= precision[i, i]
    return shift


@compile_cached()
def joint_system(
    columns: Floats,
    w: Floats,
    wr: Floats,
    beta: Floats,
    active: Ints,
    slab: float,
    with_intercept: bool,
    intercept: float,
    intercept_precision: float,
) -> tuple[Floats, Floats]:
    """Return Q and h of the joint law N(Q^-1 h, Q^-1) of the active coefficients and the change of the intercept."""
    k = active.shape[0]
    dim = k + 1 if with_intercept else k
    precision = np.empty((dim, dim))
    shift = np.empty(dim)
    weighted = np.empty(w.shape[0])
    for i in range(k):
        x = columns[active[i]]
        for m in range(w.shape[0]):
            weighted[m] = w[m] * x[m]
        for j in range(i + 1):
            precision[i, j] = precision[j, i] = np.dot(weighted, columns[active[j]])
        if with_intercept:
            precision[i, k] = precision[k, i] = weighted.sum()
        shift[i] = np.dot(wr, x)
    if with_intercept:
        precision[k, k] = w.sum() + intercept_precision
        shift[k] = wr.sum() - intercept_precision * intercept
    for i in range(dim):  # the residual is that at the present coefficients
        for j in range(k):
            shift[i] += precision[i, j] * beta[active[j]]
    for i in range(k):
        precision[i, i] += 1.0 / slab
    return precision, shift


@compile_cached()
def joint_draw(
    columns: Floats,
    w: Floats,
    wr: Floats,
    beta: Floats,
    slab: float,
    with_intercept: bool,
    rng: Generator,
    intercept: float = 0.0,
    intercept_precision: float = 0.0,
) -> float:
    """Draw all included coefficients, and the intercept, from their joint law.

    Args:
        columns: X transposed, shape (p, n).
        w: Weights of the rows.
        wr: Weighted residual, updated in place.
        beta: Coefficients, updated in place.
        slab: Variance of the slab.
        with_intercept: If True, the model has an intercept.
        rng: Source of randomness.
        intercept: Present value of the intercept.
        intercept_precision: Precision of the intercept's normal prior of mean 0; 0 is the flat prior.

    Returns:
        The change of the intercept (0 without one).
    """
    active = np.flatnonzero(beta)
    if active.shape[0] > JOINT_LIMIT:
        active = active[:0]
    k = active.shape[0]
    if k == 0 and not with_intercept:
        return 0.0
    precision, shift = joint_system(columns, w, wr, beta, active, slab, with_intercept, intercept, intercept_precision)
    draw = draw_normal(precision, shift, rng)
    for i in range(k):
        remove_effect(columns[active[i]], w, wr, draw[i] - beta[active[i]])
        beta[active[i]] = draw[i]
    if not with_intercept:
        return 0.0
    for m in range(w.shape[0]):
        wr[m] -= w[m] * draw[k]
    return float(draw[k])


@compile_cached()
def draw_inverse_gamma(shape: float, rate: float, rng: Generator) -> float:
    """Draw from the inverse gamma law with density proportional to x^(-shape-1) exp(-rate/x)."""
    return rate / max(rng.standard_gamma(shape), 1e-300)


@compile_cached()
def draw_slab(beta: Floats, df: float, scale2: float, rng: Generator) -> float:
    """Draw the slab's variance, whose prior is IG(df/2, df scale2/2), given the included coefficients."""
    size = 0
    squares = 0.0
    for j in range(beta.shape[0]):
        if beta[j] != 0.0:
            size += 1
            squares += beta[j] * beta[j]
    return draw_inverse_gamma(0.5 * (df + size), 0.5 * (df * scale2 + squares), rng)
