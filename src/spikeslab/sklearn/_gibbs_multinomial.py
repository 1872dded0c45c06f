r"""Exact Gibbs sampling for multinomial logistic regression under a point-mass spike and slab.

    P(y_i = c) = exp(psi_ic) / sum_d exp(psi_id),  psi_c = b0_c + X beta_c,

with X standardised. The parametrisation is symmetric: every class has its own coefficients, each with its
own indicator, all of which share pi and s2, and its own intercept (prior as in `PointMassPrior`).
Given the other classes, class c is a logistic regression with offset -log sum_{d != c} exp(psi_id) (Holmes
and Held, 2006), so that the Polya-Gamma sweep of `_gibbs_logistic` applies to one class after the other. The
moves of `_class_patterns` then redraw a feature's coefficients in all classes together, and exchange features. The
likelihood does not depend on a common shift of the intercepts, whose normal prior makes it independent of their
differences and of everything else: it is drawn afresh before every sweep and taken out after it, which changes no
probability and leaves one dimension less. The Metropolis step on the common scale is that of
`_gibbs_logistic`, with and without the intercepts in turn, and the move of `_hamiltonian` takes all included
coefficients further than draws given the Polya-Gamma variables do. A sweep leaves p(b0, beta, gamma, s2 | y)
invariant and costs O(n p) per class.

A feature is included when any of its coefficients is: its inclusion probability is P(some gamma_cj = 1).

References:
    C. C. Holmes and L. Held (2006), Bayesian auxiliary variable models for binary and multinomial regression,
    Bayesian Analysis 1.
"""

from __future__ import annotations

from dataclasses import replace
from math import exp, log, sqrt
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from spikeslab.kernels.compiling import compile_cached
from spikeslab.sklearn._chains import ChainDraws, GibbsChain, has_room, record, share_with_any_class
from spikeslab.sklearn._class_patterns import class_patterns, exchange_feature, log_likelihood, move_pattern
from spikeslab.sklearn._gibbs_logistic import SCALE_STEPS, draw_factor, linear_predictor, log_scale_prior
from spikeslab.sklearn._hamiltonian import LEARNING, hamiltonian_move
from spikeslab.sklearn._polya_gamma import draw_polya_gamma
from spikeslab.sklearn._sweep import coordinate_sweep, count_nonzero, draw_slab, joint_draw, swap

if TYPE_CHECKING:
    from numpy.random import Generator

    from spikeslab.sklearn._chains import Room
    from spikeslab.sklearn._sweep import Floats, Ints, PointMassPrior


PATTERN_MOVES = 4  # features per sweep
EXCHANGES = 6  # of features per sweep, if there are many; few features need few


class MultinomialState(NamedTuple):
    """State of a chain, updated in place: linear predictors, coefficients, intercepts and (s2,)."""

    psi: Floats
    beta: Floats
    intercepts: Floats
    slab: Floats


@compile_cached()
def log_sum_others(psi: Floats, i: int, skip: int) -> float:
    """Return log sum_{c != skip} exp(psi[c, i])."""
    top = -np.inf
    for c in range(psi.shape[0]):
        if c != skip:
            top = max(top, psi[c, i])
    acc = 0.0
    for c in range(psi.shape[0]):
        if c != skip:
            acc += exp(psi[c, i] - top)
    return top + log(acc)


@compile_cached()
def sweep_class(
    columns: Floats,
    labels: Ints,
    state: MultinomialState,
    c: int,
    prior: PointMassPrior,
    swaps: int,
    rng: Generator,
    sums: Floats,
) -> None:
    """Draw the coefficients and the intercept of class c given the other classes."""
    psi, beta, intercepts, slab = state.psi, state.beta, state.intercepts, state.slab[0]
    n = labels.shape[0]
    w = np.empty(n)
    wr = np.empty(n)
    for i in range(n):
        offset = psi[c, i] - log_sum_others(psi, i, c)
        w[i] = draw_polya_gamma(offset, rng)
        wr[i] = (0.5 if labels[i] == c else -0.5) - w[i] * offset
    elsewhere = count_nonzero(beta.ravel()) - count_nonzero(beta[c])
    coordinate_sweep(columns, w, wr, beta[c], slab, prior.a, prior.b, elsewhere, beta.size, rng, sums)
    for _ in range(swaps):
        swap(columns, w, wr, beta[c], slab, rng)
    precision = 1.0 / prior.intercept_scale**2
    intercepts[c] += joint_draw(columns, w, wr, beta[c], slab, True, rng, intercepts[c], precision)
    linear_predictor(columns, beta[c], intercepts[c], psi[c])


@compile_cached()
def move_patterns(
    columns: Floats, labels: Ints, state: MultinomialState, prior: PointMassPrior, patterns: Ints, rng: Generator
) -> None:
    """Redraw the coefficients of a few features in use, each in all classes together."""
    beta = state.beta
    used = np.flatnonzero(np.abs(beta).sum(axis=0))
    for _ in range(min(PATTERN_MOVES, used.shape[0])):
        j = used[int(rng.random() * used.shape[0])]
        b = beta[:, j].copy()
        elsewhere = count_nonzero(beta.ravel()) - count_nonzero(b)
        move_pattern(columns[j], labels, state.psi, b, state.slab[0], prior, elsewhere, beta.size, patterns, rng)
        beta[:, j] = b


@compile_cached()
def exchange_features(
    columns: Floats, labels: Ints, state: MultinomialState, prior: PointMassPrior, patterns: Ints, rng: Generator
) -> None:
    """Try to replace a few features in use by others."""
    beta = state.beta
    for _ in range(min(EXCHANGES, 1 + beta.shape[1] // 50)):
        used = np.flatnonzero(np.abs(beta).sum(axis=0))
        if used.shape[0] == 0:
            return
        j = used[int(rng.random() * used.shape[0])]
        elsewhere = count_nonzero(beta.ravel()) - count_nonzero(beta[:, j].copy())
        exchange_feature(columns, labels, state.psi, beta, state.slab[0], prior, elsewhere, patterns, j, rng)


@compile_cached()
def scale_moves(labels: Ints, state: MultinomialState, prior: PointMassPrior, rng: Generator) -> float:
    """Multiply (intercepts, beta, sqrt(s2)) by common factors in Metropolis steps; return the log likelihood.

    Large coefficients leave the intercepts to their prior, which a common factor would pull them out of: every other
    step holds them.
    """
    psi, beta, intercepts, slab = state.psi, state.beta, state.intercepts, state.slab
    nothing = np.zeros(beta.shape[0])
    fit = log_likelihood(labels, psi, 1.0, nothing)
    for step in range(2 * SCALE_STEPS):
        free = beta.shape[0] - 1 if step % 2 == 0 else 0
        held = nothing if free > 0 else intercepts
        squares = np.dot(intercepts, intercepts) if free > 0 else 0.0
        factor = draw_factor(rng)
        proposed = log_likelihood(labels, psi, factor, held)
        gain = proposed - fit + log_scale_prior(factor, slab[0], free, squares, prior)
        if log(1.0 - rng.random()) < gain:
            fit = proposed
            for c in range(beta.shape[0]):
                psi[c] = held[c] + factor * (psi[c] - held[c])
            beta *= factor
            slab *= factor * factor
            if free > 0:
                intercepts *= factor
    return fit


@compile_cached()
def multinomial_sweeps(
    columns: Floats,
    labels: Ints,
    state: MultinomialState,
    patterns: Ints,
    pace: Floats,
    learning: float,
    prior: PointMassPrior,
    swaps: int,
    sweeps: int,
    rng: Generator,
    sums: Floats,
    room: Room,
) -> int:
    """Run up to `sweeps` sweeps, recording each; return how many fitted in the buffer."""
    psi, beta, intercepts, slab = state.psi, state.beta, state.intercepts, state.slab
    classes = beta.shape[0]
    precision = 1.0 / prior.intercept_scale**2
    spread = prior.intercept_scale / sqrt(classes) if precision > 0.0 else 0.0  # a flat prior allows any shift
    for sweep in range(sweeps):
        if not has_room(beta, room, sweep):
            return sweep
        shift = spread * rng.standard_normal()
        intercepts += shift
        psi += shift
        for c in range(classes):
            sweep_class(columns, labels, state, c, prior, swaps, rng, sums[c])
        move_patterns(columns, labels, state, prior, patterns, rng)
        exchange_features(columns, labels, state, prior, patterns, rng)
        hamiltonian_move(columns, labels, psi, beta, intercepts, slab[0], precision, pace, learning, rng)
        shift = intercepts.mean()
        intercepts -= shift
        psi -= shift
        slab[0] = draw_slab(beta.ravel(), prior.slab_df, prior.slab_scale**2, rng)
        room.scalars[sweep, 2] = scale_moves(labels, state, prior, rng)
        room.scalars[sweep, 0] = sqrt(slab[0])
        room.scalars[sweep, 1] = record(beta.ravel(), np.flatnonzero(beta), room, sweep)
        room.scalars[sweep, 3:] = intercepts
    return sweeps


class MultinomialChain(GibbsChain):
    """Chain for three classes or more, `labels` 0, 1, ...; `columns` is standardised X, transposed and contiguous."""

    kernel = staticmethod(multinomial_sweeps)
    scalar_names = ("slab_scale", "model_size", "log_lik")

    def __init__(
        self, columns: Floats, labels: Ints, n_classes: int, prior: PointMassPrior, burn_in: int, rng: Generator
    ) -> None:
        super().__init__(n_classes, columns.shape[0], prior, burn_in, rng, intercepts=n_classes)
        start = np.log(np.bincount(labels, minlength=n_classes) + 0.5)
        start -= start.mean()
        psi = np.repeat(start[:, None], labels.shape[0], axis=1)
        self.columns, self.labels = columns, labels
        self.state = MultinomialState(psi, self.beta, start, np.array([prior.slab_scale**2]))
        self.patterns = class_patterns(n_classes)
        self.pace = np.array([1.0])

    def _arrays(self) -> tuple[Any, ...]:
        learning = LEARNING if self.done < self.burn_in else 0.0
        return self.columns, self.labels, self.state, self.patterns, self.pace, learning

    def collect(self) -> ChainDraws:
        """Return the draws; a feature's inclusion probability counts the draws where any class uses it."""
        draws = super().collect()
        return replace(draws, pip=share_with_any_class(draws.coef, self.beta.shape[1]))
