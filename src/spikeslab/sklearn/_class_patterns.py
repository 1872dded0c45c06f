r"""Metropolis move of the set of classes that use a feature in a multinomial model.

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
"""

from __future__ import annotations

from math import exp, lgamma, log
from typing import TYPE_CHECKING

import numpy as np

from spikeslab.kernels.compiling import compile_cached
from spikeslab.sklearn._sweep import draw_index, draw_normal

if TYPE_CHECKING:
    from numpy.random import Generator

    from spikeslab.sklearn._sweep import Floats, Ints, PointMassPrior


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
    classes = b.shape[0]
    present = 0
    for c in np.flatnonzero(b):
        present |= 1 << int(c)
    if not np.any(patterns == present):
        return
    offsets = psi - b.reshape(-1, 1) * x
    slope = np.empty(classes)
    hessian = np.empty((classes, classes))
    expand_at_mode(x, labels, offsets, slab, slope, hessian)
    if not np.all(np.isfinite(hessian)):
        return
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
    chosen, precision, shift = restrict(patterns[draw_index(log_weights, rng)], slope, hessian, slab)
    proposal = np.zeros(classes)
    proposal[chosen] = draw_normal(precision, shift, rng)
    moved = offsets + proposal.reshape(-1, 1) * x
    nothing = np.zeros(classes)
    gain = log_likelihood(labels, moved, 1.0, nothing) - log_likelihood(labels, psi, 1.0, nothing)
    gain -= np.dot(slope, proposal) - 0.5 * np.dot(proposal, hessian @ proposal)
    gain += np.dot(slope, b) - 0.5 * np.dot(b, hessian @ b)
    if log(1.0 - rng.random()) < gain:
        b[:] = proposal
        psi[:] = moved
