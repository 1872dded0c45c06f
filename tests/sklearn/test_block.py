import numpy as np
import pytest
from exact_posteriors import log_model_prior

from spikeslab.sklearn._block import choose_block, draw_pattern, eliminate, log_pattern_weights
from spikeslab.sklearn._sweep import PointMassPrior

PRIOR = PointMassPrior(a=1.0, b=3.0, slab_df=4.0, slab_scale=1.0)
SLAB, NOISE = 0.7, 0.5
EXTRA = np.array([0.0, 1.0, -0.5, 0.0, 2.0, 0.3, -1.0])


def _system(rng, p):
    X = rng.standard_normal((30, p))
    X[:, 1] = X[:, 0] + 1e-3 * X[:, 1]
    y = X[:, 0] - X[:, -1] + rng.standard_normal(30)
    return X, y, X.T @ X / NOISE + np.eye(p) / SLAB, X.T @ y / NOISE


def _log_model(X, y, active, p):
    """Log of p(gamma) N(y; 0, NOISE I + SLAB X_A X_A')."""
    covariance = NOISE * np.eye(y.size) + SLAB * X[:, active] @ X[:, active].T
    fit = -0.5 * (np.linalg.slogdet(covariance)[1] + y @ np.linalg.solve(covariance, y))
    return fit + log_model_prior(len(active), p, PRIOR.a, PRIOR.b) + EXTRA[active].sum()


def _bits(pattern, m):
    return [i for i in range(m) if pattern >> (m - 1 - i) & 1]


@pytest.mark.parametrize("outside", [0, 2])
def test_patterns_have_the_weights_of_their_models(outside, rng):
    p, m = 7, 7 - outside
    X, y, matrix, shift = _system(rng, p)
    sizes = np.arange(m + 1) + outside
    log_priors = np.array([log_model_prior(size, p, PRIOR.a, PRIOR.b) for size in sizes])
    eliminate(matrix, shift, outside, 1.0 / SLAB)
    found = log_pattern_weights(matrix[outside:, outside:], shift[outside:], SLAB, log_priors, EXTRA[outside:])
    models = [[*range(outside), *(outside + i for i in _bits(pattern, m))] for pattern in range(2**m)]
    exact = np.array([_log_model(X, y, model, p) for model in models])
    assert found - found[0] == pytest.approx(exact - exact[0], abs=1e-6)


def test_patterns_are_drawn_with_their_probabilities(rng):
    p, outside = 5, 1
    X, y, matrix, shift = _system(rng, p)
    drawn = [draw_pattern(matrix.copy(), shift.copy(), outside, SLAB, p, PRIOR, EXTRA[1:5], rng) for _ in range(20_000)]
    models = [[0, *(1 + i for i in _bits(pattern, 4))] for pattern in range(16)]
    logs = np.array([_log_model(X, y, model, p) for model in models])
    exact = np.exp(logs - logs.max())
    assert np.bincount(drawn, minlength=16) / 20_000 == pytest.approx(exact / exact.sum(), abs=0.015)


def test_blocks_hold_different_variables_chosen_by_their_weights(rng):
    pulls = np.array([1.0, 2.0, 4.0, 0.01])
    firsts = np.bincount([choose_block(pulls, 1, rng)[0] for _ in range(20_000)], minlength=4) / 20_000
    assert firsts == pytest.approx(pulls / pulls.sum(), abs=0.012)
    assert sorted(choose_block(pulls, 4, rng)) == [0, 1, 2, 3]
