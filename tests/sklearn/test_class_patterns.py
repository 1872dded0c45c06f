import numpy as np
import pytest
from exact_posteriors import log_model_prior

from spikeslab.sklearn._class_patterns import (
    class_patterns,
    derivatives,
    exchange_feature,
    log_likelihood,
    move_pattern,
    restrict,
)
from spikeslab.sklearn._sweep import PointMassPrior


def test_class_patterns():
    assert class_patterns(3).tolist() == [1, 2, 3, 4, 5, 6, 7]
    assert class_patterns(8).size == 8 + 28


def test_derivatives_are_those_of_the_log_likelihood(rng):
    x, labels, offsets = rng.standard_normal(30), rng.integers(0, 3, 30), rng.standard_normal((3, 30))
    b, gradient, hessian = rng.standard_normal(3), np.empty(3), np.empty((3, 3))

    def value(b):
        return log_likelihood(labels, offsets + b[:, None] * x, 1.0, np.zeros(3))

    derivatives(x, labels, offsets, b, gradient, hessian)
    step = 1e-4 * np.eye(3)
    assert gradient == pytest.approx([(value(b + e) - value(b - e)) / 2e-4 for e in step], rel=1e-5)
    for e, row in zip(step, hessian, strict=True):
        ends = np.empty((2, 3))
        for end, sign in zip(ends, (1.0, -1.0), strict=True):
            derivatives(x, labels, offsets, b + sign * e, end, np.empty((3, 3)))
        assert row == pytest.approx((ends[1] - ends[0]) / 2e-4, rel=1e-5)


def test_a_pattern_restricts_the_expansion_to_its_classes():
    slope, hessian = np.array([1.0, 2.0, 3.0]), np.arange(9.0).reshape(3, 3)
    chosen, precision, shift = restrict(0b101, slope, hessian, 0.5)
    assert chosen.tolist() == [0, 2]
    assert precision.tolist() == [[2.0, 2.0], [6.0, 10.0]]
    assert shift.tolist() == [1.0, 3.0]


def test_exchanges_leave_the_law_of_feature_pattern_and_coefficients(rng):
    """One of two features is in use, in one or both of two classes: six cases, whose probabilities are integrals."""
    X = rng.standard_normal((25, 2))
    X[:, 1] += 0.7 * X[:, 0]
    labels = (X[:, 0] + X[:, 1] + 1.5 * rng.standard_normal(25) > 0).astype(np.int64)
    columns, slab, patterns = np.ascontiguousarray(X.T), 1.7, np.array([1, 2, 3])
    prior = PointMassPrior(a=1.0, b=2.0, slab_df=3.0, slab_scale=1.0)
    grid = np.linspace(-8.0, 8.0, 321)
    width = grid[1] - grid[0]
    exact = []
    for x in columns:
        for pattern, size in ((1, 1), (2, 1), (3, 2)):
            first, second = np.meshgrid(grid if pattern & 1 else [0.0], grid if pattern & 2 else [0.0])
            psi = np.stack([first.ravel(), second.ravel()])[:, :, None] * x
            fit = (psi[labels, :, np.arange(25)].T - np.logaddexp(*psi)).sum(axis=1)
            squares = (first**2 + second**2).ravel()
            density = np.exp(fit - squares / (2 * slab)) * (width / np.sqrt(2 * np.pi * slab)) ** size
            exact.append(density.sum() * np.exp(log_model_prior(size, 4, prior.a, prior.b)))
    beta = np.array([[0.5, 0.0], [0.0, 0.0]])
    psi = beta @ columns
    seen = np.zeros(6)
    exchanged = 0
    for _ in range(12_000):
        j = int(np.flatnonzero(beta.any(axis=0))[0])
        exchanged += exchange_feature(columns, labels, psi, beta, slab, prior, 0, patterns, j, rng)
        j = int(np.flatnonzero(beta.any(axis=0))[0])
        b = beta[:, j].copy()
        move_pattern(columns[j], labels, psi, b, slab, prior, 0, 4, patterns, rng)
        beta[:, j] = b
        seen[3 * j + int((b != 0) @ [1, 2]) - 1] += 1
    assert psi == pytest.approx(beta @ columns, abs=1e-9)
    assert seen / seen.sum() == pytest.approx(np.array(exact) / sum(exact), abs=0.025)
    assert exchanged > 500
