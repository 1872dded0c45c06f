r"""Hamiltonian move of all included coefficients and intercepts of a multinomial model at once.

Given the indicators and s2 the log posterior of q = (included coefficients, intercepts) is

    L(q) = sum_i log P(y_i | psi_i) - |beta|^2 / (2 s2) - |b0|^2 / (2 intercept_scale^2),

and its gradient costs O(n) per included coefficient. Where hyperplanes separate the classes, the Polya-Gamma variables
hold every row's linear predictor near its present value although the likelihood hardly depends on it, and draws given
them take small steps. The move does without them: a normal momentum, leapfrog steps of a random size, and acceptance
with probability min(1, exp(H(start) - H(end))), H = |momentum|^2 / 2 - L, which leaves exp(L) invariant. The
columns are standardised, so that one step size serves all coordinates; it is learned during the burn-in and then kept.

References:
    R. M. Neal (2011), MCMC using Hamiltonian dynamics, Handbook of Markov Chain Monte Carlo.
"""

from __future__ import annotations

from math import exp, log
from typing import TYPE_CHECKING

import numpy as np

from spikeslab.kernels.compiling import compile_cached

if TYPE_CHECKING:
    from numpy.random import Generator

    from spikeslab.sklearn._sweep import Floats, Ints


LEAPFROGS = 20
ACCEPTANCE = 0.6  # what the burn-in aims at
LEARNING = 0.1  # change of the log step size per unit of acceptance


@compile_cached()
def set_predictors(columns: Floats, active: Ints, q: Floats, psi: Floats) -> None:
    """Compute psi from q; `active` holds class * p + feature of the included coefficients."""
    p = columns.shape[0]
    k = active.shape[0]
    for c in range(psi.shape[0]):
        psi[c] = q[k + c]
    for m in range(k):
        x = columns[active[m] % p]
        row = psi[active[m] // p]
        for i in range(x.shape[0]):
            row[i] += q[m] * x[i]


@compile_cached()
def log_posterior(
    columns: Floats, labels: Ints, active: Ints, q: Floats, psi: Floats, precisions: Floats, gradient: Floats
) -> float:
    """Return L(q) and write its gradient, given the linear predictors at q and the prior precisions of q.

    `active` holds class * p + feature of the included coefficients; q is these coefficients and then the intercepts.
    """
    p = columns.shape[0]
    classes, n = psi.shape
    k = active.shape[0]
    error = np.empty((classes, n))
    total = 0.0
    for i in range(n):
        top = psi[:, i].max()
        acc = 0.0
        for c in range(classes):
            error[c, i] = exp(psi[c, i] - top)
            acc += error[c, i]
        for c in range(classes):
            error[c, i] /= -acc
        error[labels[i], i] += 1.0
        total += psi[labels[i], i] - top - log(acc)
    for m in range(k):
        gradient[m] = np.dot(error[active[m] // p], columns[active[m] % p])
    for c in range(classes):
        gradient[k + c] = error[c].sum()
    for m in range(k + classes):
        total -= 0.5 * precisions[m] * q[m] * q[m]
        gradient[m] -= precisions[m] * q[m]
    return total


@compile_cached()
def hamiltonian_move(
    columns: Floats,
    labels: Ints,
    psi: Floats,
    beta: Floats,
    intercepts: Floats,
    slab: float,
    intercept_precision: float,
    pace: Floats,
    learning: float,
    rng: Generator,
) -> None:
    """Move `beta`, shape (classes, p) and contiguous, `intercepts` and `psi`, shape (classes, n), in place.

    `pace` holds the largest step size, which is learned at the rate `learning`; 0 keeps it.
    """
    flat = beta.ravel()
    active = np.flatnonzero(flat)
    k = active.shape[0]
    q = np.concatenate((flat[active], intercepts))
    precisions = np.full(q.shape[0], intercept_precision)
    precisions[:k] = 1.0 / slab
    gradient = np.empty(q.shape[0])
    trial = psi.copy()
    start = log_posterior(columns, labels, active, q, trial, precisions, gradient)
    momentum = rng.standard_normal(q.shape[0])
    start -= 0.5 * np.dot(momentum, momentum)
    step = pace[0] * 10.0 ** -rng.random()
    end = start
    for _ in range(LEAPFROGS):
        momentum += 0.5 * step * gradient
        q += step * momentum
        set_predictors(columns, active, q, trial)
        end = log_posterior(columns, labels, active, q, trial, precisions, gradient)
        momentum += 0.5 * step * gradient
    end -= 0.5 * np.dot(momentum, momentum)
    accepted = log(1.0 - rng.random()) < end - start
    pace[0] *= exp(learning * ((1.0 if accepted else 0.0) - ACCEPTANCE))
    if accepted:
        flat[active] = q[:k]
        intercepts[:] = q[k:]
        psi[:] = trial
