import numpy as np
import pytest

from spikeslab.sklearn._sweep import draw_included, draw_index, draw_inverse_gamma, draw_normal, joint_draw


def test_draw_normal_has_the_mean_and_covariance_of_its_precision(rng):
    root = rng.standard_normal((3, 3))
    precision, shift = root @ root.T + np.eye(3), rng.standard_normal(3)
    draws = np.array([draw_normal(precision.copy(), shift.copy(), rng) for _ in range(20_000)])
    covariance = np.linalg.inv(precision)
    assert draws.mean(0) == pytest.approx(covariance @ shift, abs=5 * np.sqrt(covariance.max() / 20_000))
    assert np.cov(draws.T) == pytest.approx(covariance, abs=0.05 * covariance.max())


def test_draw_index_follows_its_weights(rng):
    weights = np.array([-np.inf, 0.0, np.log(3.0), -np.inf])
    draws = np.array([draw_index(weights.copy() + 900.0, rng) for _ in range(8000)])
    assert set(draws) == {1, 2}
    assert (draws == 2).mean() == pytest.approx(0.75, abs=0.025)


def test_draw_included_is_uniform_over_the_non_zeros(rng):
    draws = [draw_included(np.array([0.0, 2.0, 0.0, -1.0, 3.0]), rng) for _ in range(6000)]
    assert np.bincount(draws, minlength=5) / 6000 == pytest.approx([0, 1 / 3, 0, 1 / 3, 1 / 3], abs=0.03)


def test_inverse_gamma_mean(rng):
    draws = [draw_inverse_gamma(6.0, 10.0, rng) for _ in range(20_000)]
    assert np.mean(draws) == pytest.approx(2.0, rel=0.03)


def test_joint_draw_keeps_the_weighted_residual_consistent(rng):
    columns, w, z = rng.standard_normal((4, 30)), rng.random(30) + 0.5, rng.standard_normal(30)
    beta, intercept = np.array([0.0, 1.0, 0.0, -2.0]), 0.7
    wr = w * (z - intercept - beta @ columns)
    intercept += joint_draw(columns, w, wr, beta, 4.0, True, rng)
    assert wr == pytest.approx(w * (z - intercept - beta @ columns), abs=1e-12)
    assert np.flatnonzero(beta).tolist() == [1, 3]
