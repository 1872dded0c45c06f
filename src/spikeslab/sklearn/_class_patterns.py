r"""Metropolis moves of the classes that use a feature, and of the feature itself, in a multinomial model.

Adding the same number to the coefficients of a feature in all classes changes no probability, so that
"class 1 differs" can be written as one non-zero coefficient or as non-zero coefficients in all other
classes. The prior prefers the first, but draws of one class at a time hardly ever get from one to the
other.

The move redraws the whole vector b of a feature's coefficients, indicators included. Let F be the log
likelihood as a function of b, everything else fixed, and f(b) = h'b - b'H b / 2 its expansion at the mode
of F(b) - |b|^2 / (2 s2), found by Newton steps from b = 0: it does not depend on the present b. Under f the
posterior of (pattern, b) is a mixture of normal laws, one per pattern; b' is drawn from it and accepted
with probability min(1, exp(F(b') - f(b') - F(b) + f(b))), which leaves the posterior invariant. The feature
is drawn among those in use and no pattern is empty, so that the choice of the feature is symmetric.

The exchange replaces feature j by k. With both left out, k is drawn with probability q(k) proportional to a power of
exp(score statistic), and b' from the mixture of k; q and both mixtures depend on the other features alone. With Z the
integral of a mixture, it is accepted with probability

    min(1, exp(F_k(b') - f_k(b') - F_j(b) + f_j(b)) Z_k q(j) / (Z_j q(k))).

An exchange given the Polya-Gamma variables would have to fit the linear predictors that belong to feature j. Where
many sets of features separate the classes, chains without this move stay with the first set that they find.
"""

from __future__ import annotations

from math import exp, lgamma, log
from typing import TYPE_CHECKING

import numpy as np

from spikeslab.kernels.compiling import compile_cached
from spikeslab.sklearn._sweep import REORDER, draw_index, draw_normal

if TYPE_CHECKING:
    from numpy.random import Generator

    from spikeslab.sklearn._sweep import Floats, Ints, PointMassPrior


TEMPER = 0.25  # power of the score weights, which are much more peaked than the integrals they stand for
NEWTON_STEPS = 8  # at most; separable classes need more than four
NEWTON_TOLERANCE = 0.01  # relative; the point of expansion need not be the mode for the move to be exact


def class_patterns(n_classes: int) -> Ints:
    """Return the patterns to move between as bit masks: all up to six classes, beyond those of one or two classes."""
    if n_classes <= 6:
        return np.arange(1, 2**n_classes)
    single = [1 << c for c in range(n_classes)]
    return np.array(single + [a | b for a in single for b in single if a < b])


@compile_cached()
def log_likelihood(labels: Ints, psi: Floats, factor: float, held: Floats) -> float:
    """Compute the log likelihood of the labels at the linear predictors held_c + factor * (psi_c - held_c)."""
    total = 0.0
    moved = np.empty(psi.shape[0])
    for i in range(labels.shape[0]):
        for c in range(psi.shape[0]):
            moved[c] = held[c] + factor * (psi[c, i] - held[c])
        top = moved.max()
        acc = 0.0
        for c in range(psi.shape[0]):
            acc += exp(moved[c] - top)
        total += moved[labels[i]] - top - log(acc)
    return total


@compile_cached()
def derivatives(x: Floats, labels: Ints, offsets: Floats, b: Floats, gradient: Floats, hessian: Floats) -> None:
    """Write the gradient and the negative Hessian of the log likelihood at psi = offsets + b x' with respect to b."""
    classes = b.shape[0]
    proba = np.empty(classes)
    gradient[:] = 0.0
    hessian[:] = 0.0
    for i in range(x.shape[0]):
        for c in range(classes):
            proba[c] = offsets[c, i] + b[c] * x[i]
        top = proba.max()
        for c in range(classes):
            proba[c] = exp(proba[c] - top)
        proba /= proba.sum()
        gradient[labels[i]] += x[i]
        for c in range(classes):
            gradient[c] -= proba[c] * x[i]
            hessian[c, c] += proba[c] * x[i] * x[i]
            for d in range(classes):
                hessian[c, d] -= proba[c] * proba[d] * x[i] * x[i]


@compile_cached()
def expand_at_mode(x: Floats, labels: Ints, offsets: Floats, slab: float, slope: Floats, hessian: Floats) -> None:
    """Write h and H of the expansion at the conditional mode."""
    classes = slope.shape[0]
    mode = np.zeros(classes)
    for _ in range(NEWTON_STEPS):
        derivatives(x, labels, offsets, mode, slope, hessian)
        step = np.linalg.solve(hessian + np.eye(classes) / slab, slope - mode / slab)
        mode += step
        if np.abs(step).max() < NEWTON_TOLERANCE * np.abs(mode).max():
            break
    derivatives(x, labels, offsets, mode, slope, hessian)
    slope += hessian @ mode


@compile_cached()
def restrict(mask: int, slope: Floats, hessian: Floats, slab: float) -> tuple[Ints, Floats, Floats]:
    """Return the classes of a pattern, and h and H + 1/s2 restricted to them."""
    chosen = np.array([c for c in range(slope.shape[0]) if mask >> c & 1])
    precision = hessian[chosen][:, chosen] + np.eye(chosen.shape[0]) / slab
    return chosen, precision, slope[chosen]


@compile_cached()
def find_pattern(b: Floats) -> int:
    """Return the bit mask of the classes whose coefficient is not zero."""
    mask = 0
    for c in np.flatnonzero(b):
        mask |= 1 << int(c)
    return mask


@compile_cached()
def propose(
    x: Floats,
    labels: Ints,
    offsets: Floats,
    slab: float,
    prior: PointMassPrior,
    elsewhere: int,
    total: int,
    patterns: Ints,
    rng: Generator,
) -> tuple[Floats, float, Floats, Floats]:
    """Draw the coefficients of a feature from its mixture and return them, the log of its integral, h and H.

    The integral is NaN if the expansion failed; the rest is then not to be used.
    """
    classes = offsets.shape[0]
    slope = np.empty(classes)
    hessian = np.empty((classes, classes))
    proposal = np.zeros(classes)
    expand_at_mode(x, labels, offsets, slab, slope, hessian)
    if not np.all(np.isfinite(hessian)):
        return proposal, np.nan, slope, hessian
    log_weights = np.empty(patterns.shape[0])
    for m in range(patterns.shape[0]):
        chosen, precision, shift = restrict(patterns[m], slope, hessian, slab)
        size = chosen.shape[0]
        log_weights[m] = (
            0.5 * np.dot(shift, np.linalg.solve(precision, shift))
            - 0.5 * log(np.linalg.det(precision))
            - 0.5 * size * log(slab)
            + lgamma(prior.a + elsewhere + size)
            + lgamma(prior.b + total - elsewhere - size)
        )
    top = log_weights.max()
    integral = top + log(np.exp(log_weights - top).sum())
    chosen, precision, shift = restrict(patterns[draw_index(log_weights, rng)], slope, hessian, slab)
    proposal[chosen] = draw_normal(precision, shift, rng)
    return proposal, integral, slope, hessian


@compile_cached()
def expansion_error(labels: Ints, psi: Floats, b: Floats, slope: Floats, hessian: Floats) -> float:
    """Compute F(b) - f(b), given the linear predictors at b."""
    quadratic = np.dot(slope, b) - 0.5 * np.dot(b, hessian @ b)
    return log_likelihood(labels, psi, 1.0, np.zeros(b.shape[0])) - quadratic


@compile_cached()
def move_pattern(
    x: Floats,
    labels: Ints,
    psi: Floats,
    b: Floats,
    slab: float,
    prior: PointMassPrior,
    elsewhere: int,
    total: int,
    patterns: Ints,
    rng: Generator,
) -> None:
    """Redraw the coefficients `b`, not all zero, of the feature `x` in all classes; `psi` and `b` change in place.

    `elsewhere` counts the non-zero coefficients of the other features, `total` all coefficients, and `patterns` holds
    the bit masks of the allowed patterns.
    """
    if not np.any(patterns == find_pattern(b)):
        return
    offsets = psi - b.reshape(-1, 1) * x
    proposal, integral, slope, hessian = propose(x, labels, offsets, slab, prior, elsewhere, total, patterns, rng)
    if np.isnan(integral):
        return
    moved = offsets + proposal.reshape(-1, 1) * x
    gain = expansion_error(labels, moved, proposal, slope, hessian) - expansion_error(labels, psi, b, slope, hessian)
    if log(1.0 - rng.random()) < gain:
        b[:] = proposal
        psi[:] = moved


@compile_cached(fastmath=REORDER)
def log_score_weights(columns: Floats, labels: Ints, offsets: Floats, slab: float) -> Floats:
    """Compute the tempered log weight of each feature from its score statistics at the linear predictors `offsets`."""
    p, n = columns.shape
    classes = offsets.shape[0]
    error = np.empty((classes, n))
    weight = np.empty((classes, n))
    for i in range(n):
        top = offsets[0, i]
        for c in range(1, classes):
            top = max(top, offsets[c, i])
        acc = 0.0
        for c in range(classes):
            error[c, i] = exp(offsets[c, i] - top)
            acc += error[c, i]
        for c in range(classes):
            proba = error[c, i] / acc
            weight[c, i] = proba * (1.0 - proba)
            error[c, i] = -proba
        error[labels[i], i] += 1.0
    out = np.empty(p)
    for j in range(p):
        x = columns[j]
        total = 0.0
        for c in range(classes):
            score = 0.0
            curvature = 1.0 / slab
            for i in range(n):
                score += error[c, i] * x[i]
                curvature += weight[c, i] * x[i] * x[i]
            total += score * score / curvature
        out[j] = TEMPER * 0.5 * total
    return out


@compile_cached()
def exchange_feature(
    columns: Floats,
    labels: Ints,
    psi: Floats,
    beta: Floats,
    slab: float,
    prior: PointMassPrior,
    elsewhere: int,
    patterns: Ints,
    leaving: int,
    rng: Generator,
) -> bool:
    """Try to replace the feature `leaving` by another one that is not in use; `psi` and `beta` change in place.

    `elsewhere` counts the non-zero coefficients of the other features. Returns True if the features were exchanged.
    """
    b = beta[:, leaving].copy()
    if not np.any(patterns == find_pattern(b)):
        return False
    offsets = psi - b.reshape(-1, 1) * columns[leaving]
    log_weights = log_score_weights(columns, labels, offsets, slab)
    for j in range(beta.shape[1]):
        if j != leaving and np.any(beta[:, j] != 0.0):
            log_weights[j] = -np.inf
    kept = log_weights.copy()
    entering = draw_index(log_weights, rng)
    if entering == leaving:
        return False
    total = beta.size
    _, old, slope, hessian = propose(columns[leaving], labels, offsets, slab, prior, elsewhere, total, patterns, rng)
    proposal, new, new_slope, new_hessian = propose(
        columns[entering], labels, offsets, slab, prior, elsewhere, total, patterns, rng
    )
    if np.isnan(old) or np.isnan(new):
        return False
    moved = offsets + proposal.reshape(-1, 1) * columns[entering]
    gain = new - old + kept[leaving] - kept[entering]
    gain += expansion_error(labels, moved, proposal, new_slope, new_hessian)
    gain -= expansion_error(labels, psi, b, slope, hessian)
    if log(1.0 - rng.random()) >= gain:
        return False
    beta[:, leaving] = 0.0
    beta[:, entering] = proposal
    psi[:] = moved
    return True
