r"""Gibbs update of the indicators of a block of variables, with all coefficients integrated out.

Given the indicators outside a block B, A of which are one, the law of the indicators in B is discrete:

    p(gamma_B | y, sigma2, s2) ~ p(gamma) |Q|^(-1/2) s2^(-m/2) exp(h'Q^-1 h / 2),    Q = X'X / sigma2 + I / s2,
                                 h = X'y / sigma2,  both restricted to A and the m variables of B with gamma = 1.

All 2^|B| terms are computed and one is drawn. A binary tree shares the work: after the elimination of A, a node decides
on one variable, either leaving out its row of Q or eliminating it, which costs six multiplications per term. Every path
is a Cholesky decomposition, so that nearly collinear columns do no harm.

Updates of one coordinate hold the other coefficients, and an exchange replaces one variable by one. Neither gets from
x1 to (x2, x3) if x1 is about x2 + x3, because what lies between is improbable; a block that holds the three does.
"""

from __future__ import annotations

from math import lgamma, log
from typing import TYPE_CHECKING

import numpy as np

from spikeslab.kernels.compiling import compile_cached
from spikeslab.sklearn._sweep import draw_index

if TYPE_CHECKING:
    from numpy.random import Generator

    from spikeslab.sklearn._sweep import Floats, Ints, PointMassPrior

BLOCK = 6
"""Variables of a block."""
SPREAD = 0.05
"""Weight of uncorrelated variables in the choice of a block, against 1 for a copy."""


@compile_cached()
def eliminate(matrix: Floats, shift: Floats, first: int, floor: float) -> None:
    """Eliminate the first variables of Q and h in place.

    Pivots are at least `floor`, the smallest eigenvalue that Q can have but for rounding.
    """
    size = shift.shape[0]
    for i in range(first):
        pivot = max(matrix[i, i], floor)
        for j in range(i + 1, size):
            factor = matrix[j, i] / pivot
            shift[j] -= factor * shift[i]
            for k in range(i + 1, j + 1):
                matrix[j, k] -= factor * matrix[k, i]


@compile_cached()
def log_pattern_weights(matrix: Floats, shift: Floats, slab: float, log_priors: Floats, log_odds: Floats) -> Floats:
    """Compute the log weights of all patterns of a block, up to a constant.

    Args:
        matrix: Lower triangle of Q, with all variables outside the block eliminated, shape (m, m).
        shift: h, likewise.
        slab: Variance of the slab.
        log_priors: Log prior probability of a model with 0, 1, ..., m variables of the block.
        log_odds: What each variable of the block adds to it.

    Returns:
        The log weights, shape (2^m,); variable i of the block is in if bit m - 1 - i is set.
    """
    m = shift.shape[0]
    matrices = np.empty((m + 1, m, m))
    shifts = np.empty((m + 1, m))
    scores = np.zeros(m + 1)
    sizes = np.zeros(m + 1, np.int64)
    matrices[0] = matrix
    shifts[0] = shift
    out = np.empty(1 << m)
    for pattern in range(1 << m):
        level = 0  # the first decision that differs from that of the pattern before
        while level < m - 1 and pattern & ((1 << (m - 1 - level)) - 1):
            level += 1
        for d in range(0 if pattern == 0 else level, m):
            left = m - d - 1
            if pattern >> left & 1:
                pivot = max(matrices[d, 0, 0], 1.0 / slab)
                first = shifts[d, 0]
                scores[d + 1] = scores[d] + 0.5 * (first * first / pivot - log(pivot * slab)) + log_odds[d]
                sizes[d + 1] = sizes[d] + 1
                for j in range(left):
                    factor = matrices[d, j + 1, 0] / pivot
                    shifts[d + 1, j] = shifts[d, j + 1] - factor * first
                    for k in range(j + 1):
                        matrices[d + 1, j, k] = matrices[d, j + 1, k + 1] - factor * matrices[d, k + 1, 0]
            else:
                scores[d + 1] = scores[d]
                sizes[d + 1] = sizes[d]
                for j in range(left):
                    shifts[d + 1, j] = shifts[d, j + 1]
                    for k in range(j + 1):
                        matrices[d + 1, j, k] = matrices[d, j + 1, k + 1]
        out[pattern] = scores[m] + log_priors[sizes[m]]
    return out


@compile_cached()
def draw_pattern(
    matrix: Floats,
    shift: Floats,
    outside: int,
    slab: float,
    total: int,
    prior: PointMassPrior,
    log_odds: Floats,
    rng: Generator,
) -> int:
    """Draw the indicators of a block as bits of a number, the last variable in the lowest bit.

    Args:
        matrix: Q of the included variables outside the block and then those of the block; overwritten.
        shift: h, likewise.
        outside: Number of included variables outside the block.
        slab: Variance of the slab.
        total: Number of all variables.
        prior: Prior of the indicators.
        log_odds: What each variable of the block adds to its log prior odds.
        rng: Source of randomness.
    """
    eliminate(matrix, shift, outside, 1.0 / slab)
    m = shift.shape[0] - outside
    log_priors = np.empty(m + 1)
    for size in range(m + 1):
        log_priors[size] = lgamma(prior.a + outside + size) + lgamma(prior.b + total - outside - size)
    weights = log_pattern_weights(matrix[outside:, outside:], shift[outside:], slab, log_priors, log_odds)
    return draw_index(weights, rng)


@compile_cached()
def choose_block(pulls: Floats, size: int, rng: Generator) -> Ints:
    """Draw `size` different indices, one after the other, with probability proportional to `pulls`."""
    keys = np.empty(pulls.shape[0])
    for i in range(pulls.shape[0]):
        keys[i] = rng.standard_exponential() / pulls[i]
    chosen = np.empty(size, np.int64)
    for k in range(size):
        chosen[k] = keys.argmin()
        keys[chosen[k]] = np.inf
    return chosen
