import numpy as np
import pytest
from numba import njit
from scipy.stats import ks_2samp

from spikeslab.sklearn._polya_gamma import draw_polya_gamma


@njit
def _draws(z, size, rng):
    out = np.empty(size)
    for i in range(size):
        out[i] = draw_polya_gamma(z, rng)
    return out


def _mean(z):
    return 0.25 if z == 0 else np.tanh(z / 2) / (2 * z)


def _variance(z):
    return 1 / 24 if z == 0 else (np.sinh(z) - z) / (4 * z**3 * np.cosh(z / 2) ** 2)


@pytest.mark.parametrize("z", [0.0, 0.3, 1.5, 3.1, 4.0, 12.0, 60.0])
def test_moments(z, rng):
    x = _draws(z, 100_000, rng)
    assert abs(x.mean() - _mean(z)) < 4.5 * np.sqrt(_variance(z) / x.size)
    assert x.var() == pytest.approx(_variance(z), rel=0.05)


@pytest.mark.parametrize("z", [0.0, 2.0, 6.0])
def test_law_is_that_of_the_infinite_sum_of_gammas(z, rng):
    k = np.arange(1, 501)
    weights = 1 / (2 * np.pi**2 * ((k - 0.5) ** 2 + (z / (2 * np.pi)) ** 2))
    reference = rng.standard_exponential((20_000, k.size)) @ weights
    reference += _mean(z) - weights.sum()
    assert ks_2samp(_draws(z, 20_000, rng), reference).pvalue > 1e-3


def test_sign_does_not_matter_and_large_arguments_are_finite():
    assert draw_polya_gamma(-3.0, np.random.default_rng(0)) == draw_polya_gamma(3.0, np.random.default_rng(0))
    x = _draws(5000.0, 1000, np.random.default_rng(0))
    assert np.isfinite(x).all()
    assert x.mean() == pytest.approx(1 / 10_000, rel=0.05)
