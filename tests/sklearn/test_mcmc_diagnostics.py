import numpy as np
import pytest

from spikeslab.sklearn._diagnostics import ess, rhat


def _autoregression(rng, rho, shape):
    x = rng.standard_normal(shape)
    for t in range(1, shape[1]):
        x[:, t] = rho * x[:, t - 1] + np.sqrt(1 - rho**2) * x[:, t]
    return x


def test_independent_draws(rng):
    draws = rng.standard_normal((4, 2000))
    assert rhat(draws) == pytest.approx(1.0, abs=0.005)
    assert ess(draws) == pytest.approx(8000, rel=0.1)


def test_effective_sample_size_of_an_autoregression(rng):
    draws = _autoregression(rng, 0.8, (4, 5000))
    assert ess(draws) == pytest.approx(20_000 * 0.2 / 1.8, rel=0.15)


def test_disagreement_in_location_and_in_scale_is_seen(rng):
    draws = rng.standard_normal((4, 500))
    assert rhat(draws + np.arange(4)[:, None]) > 1.3
    assert rhat(draws * np.array([1, 1, 1, 5])[:, None]) > 1.1


def test_constant_or_too_few_draws_give_nan():
    assert np.isnan(rhat(np.ones((2, 10))))
    assert np.isnan(ess(np.ones((2, 10))))
    assert np.isnan(rhat(np.zeros((2, 3))))


def test_agrees_with_arviz(rng):
    arviz = pytest.importorskip("arviz")
    draws = _autoregression(rng, 0.5, (3, 400))
    assert rhat(draws) == pytest.approx(float(arviz.rhat(draws)), rel=1e-6)
    assert ess(draws) == pytest.approx(float(arviz.ess(draws)), rel=0.03)
