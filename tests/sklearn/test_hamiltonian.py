import numpy as np
import pytest
from scipy.special import log_softmax

from spikeslab.sklearn._hamiltonian import hamiltonian_move, log_posterior, set_predictors


def _problem(rng, n=30, p=4, classes=3):
    columns = np.ascontiguousarray(rng.standard_normal((p, n)))
    labels = rng.integers(classes, size=n)
    active = np.array([0, 5, 6, 11])  # class * p + feature
    q = rng.standard_normal(active.size + classes)
    return columns, labels, active, q


def _exact(columns, labels, active, q, precisions):
    p, n = columns.shape
    beta = np.zeros((3, p))
    beta.ravel()[active] = q[: active.size]
    psi = beta @ columns + q[active.size :, None]
    return log_softmax(psi, axis=0)[labels, np.arange(n)].sum() - 0.5 * np.sum(precisions * q**2)


def test_value_and_gradient(rng):
    columns, labels, active, q = _problem(rng)
    precisions, gradient, psi = np.full(q.size, 0.3), np.empty(q.size), np.empty((3, columns.shape[1]))
    set_predictors(columns, active, q, psi)
    value = log_posterior(columns, labels, active, q, psi, precisions, gradient)
    assert value == pytest.approx(_exact(columns, labels, active, q, precisions))
    for m in range(q.size):
        step = np.zeros(q.size)
        step[m] = 1e-5
        ends = [_exact(columns, labels, active, q + sign * step, precisions) for sign in (1, -1)]
        assert gradient[m] == pytest.approx((ends[0] - ends[1]) / 2e-5, abs=1e-4)


def test_without_rows_the_move_leaves_the_prior(rng):
    """The law of q is then normal: standard deviation 0.5 of the coefficients and 2 of the intercepts."""
    columns, labels = np.empty((2, 0)), np.empty(0, np.int64)
    beta, intercepts, psi, pace = np.array([[0.1, 0.0], [0.2, 0.3]]), np.zeros(2), np.empty((2, 0)), np.array([0.3])
    draws = []
    for _ in range(20_000):
        hamiltonian_move(columns, labels, psi, beta, intercepts, 0.25, 0.25, pace, 0.0, rng)
        draws.append([*beta.ravel(), *intercepts])
    draws = np.array(draws)
    assert (draws[:, 1] == 0.0).all()
    assert pace[0] == 0.3
    assert draws[:, [0, 2, 3]].std(axis=0) == pytest.approx(0.5, rel=0.04)
    assert draws[:, 4:].std(axis=0) == pytest.approx(2.0, rel=0.1)


def test_the_step_size_is_learned_and_the_predictors_follow(rng):
    columns, labels, active, q = _problem(rng)
    beta, intercepts, psi, pace = np.zeros((3, 4)), q[4:].copy(), np.empty((3, 30)), np.array([1e3])
    beta.ravel()[active] = q[:4]
    set_predictors(columns, active, q, psi)
    for _ in range(300):
        hamiltonian_move(columns, labels, psi, beta, intercepts, 1.0, 0.01, pace, 0.1, rng)
    assert 0.05 < pace[0] < 5.0
    assert psi == pytest.approx(beta @ columns + intercepts[:, None])
