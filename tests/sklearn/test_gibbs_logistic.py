import numpy as np
import pytest
from exact_posteriors import logistic_posterior

from spikeslab.sklearn._chains import run_chains
from spikeslab.sklearn._gibbs_logistic import LogisticChain, log_likelihood, log_scale_prior, softplus
from spikeslab.sklearn._sweep import PointMassPrior


def _problem(rng, n=30, p=2):
    X = rng.standard_normal((n, p))
    X[:, 1] += X[:, 0]
    X = (X - X.mean(0)) / X.std(0)
    y = (rng.random(n) < 1 / (1 + np.exp(-0.8 * X[:, 0] - 0.3))).astype(float)
    return X, y


@pytest.mark.parametrize("intercept_scale", [0.4, np.inf])
def test_agrees_with_the_enumeration_of_all_models(intercept_scale, rng):
    X, y = _problem(rng)
    prior = PointMassPrior(a=1.0, b=1.0, slab_df=1e9, slab_scale=1.3, intercept_scale=intercept_scale)
    pip, mean = logistic_posterior(X, y, prior)
    columns = np.ascontiguousarray(X.T)
    draws = run_chains([LogisticChain(columns, y, prior, 500, r) for r in rng.spawn(2)], 15_500, 2)
    assert np.mean([d.pip for d in draws], 0) == pytest.approx(pip, abs=0.02)
    assert np.mean([d.mean[0] for d in draws], 0) == pytest.approx(mean, abs=0.02)


def test_the_scale_move_leaves_a_known_law_invariant(rng):
    """With the coefficients drawn given s2, the prior with a nearly flat likelihood is recovered."""
    prior = PointMassPrior(a=1.0, b=1.0, slab_df=6.0, slab_scale=1.0)
    columns = 1e-6 * rng.standard_normal((3, 4))
    y = np.array([0.0, 1.0, 0.0, 1.0])
    (draws,) = run_chains([LogisticChain(columns, y, prior, 500, rng)], 20_500, 1)
    expected = prior.slab_df * prior.slab_scale**2 / (prior.slab_df - 2)
    assert np.mean(draws.scalars["slab_scale"] ** 2) == pytest.approx(expected, rel=0.07)
    assert draws.pip == pytest.approx(0.5, abs=0.03)


def test_log_scale_prior_is_the_change_of_the_log_density():
    prior = PointMassPrior(a=1.0, b=1.0, slab_df=5.0, slab_scale=0.7, intercept_scale=2.0)

    def density(slab, level):
        variance = -(prior.slab_df / 2 + 1) * np.log(slab) - prior.slab_df * prior.slab_scale**2 / 2 / slab
        return variance - 0.5 * (level / prior.intercept_scale) ** 2

    slab, level, factor = 0.9, -1.1, 1.7
    expected = density(slab * factor**2, level * factor) - density(slab, level) + 3 * np.log(factor)
    assert log_scale_prior(factor, slab, 1, level**2, prior) == pytest.approx(expected)


def test_softplus_and_log_likelihood_do_not_overflow():
    assert softplus(1000.0) == 1000.0
    assert softplus(-1000.0) == 0.0
    assert log_likelihood(np.array([1.0, 0.0]), np.array([800.0, -800.0]), 2.0) == 0.0
