import numpy as np
import pytest
from exact_posteriors import linear_posterior
from scipy.stats import kstest

from spikeslab.sklearn._chains import run_chains
from spikeslab.sklearn._gibbs_linear import ColumnChain, GramChain, GramData
from spikeslab.sklearn._prior import Prior

PRIOR = Prior(a=1.0, b=3.0, slab_df=4.0, slab_scale=1.0, noise_df=3.0, noise_scale=1.0)


def _standardise(X):
    X = X - X.mean(0)
    return X / X.std(0)


def _gram(X, y):
    return GramData(X.T @ X, X.T @ y, float(y @ y), float(y.size))


def _problem(rng, n=25, p=5):
    X = rng.standard_normal((n, p))
    X[:, 1] += 2.0 * X[:, 0]
    X = _standardise(X)
    y = X @ np.array([0.5, 0.0, -0.4, 0.0, 0.2])[:p] + rng.standard_normal(n)
    return X, y - y.mean()


@pytest.mark.parametrize("kind", ["gram", "columns"])
def test_agrees_with_the_enumeration_of_all_models(kind, rng):
    X, y = _problem(rng)
    pip, mean, sigma, slab = linear_posterior(X, y, PRIOR)
    if kind == "gram":
        chains = [GramChain(_gram(X, y), PRIOR, 500, r) for r in rng.spawn(2)]
    else:
        chains = [ColumnChain(np.ascontiguousarray(X.T), y, PRIOR, 500, r) for r in rng.spawn(2)]
    draws = run_chains(chains, 20_500, 2)
    assert np.mean([d.pip for d in draws], 0) == pytest.approx(pip, abs=0.015)
    assert np.mean([d.coef.toarray() != 0 for d in draws], axis=(0, 1)) == pytest.approx(pip, abs=0.02)
    assert np.mean([d.mean[0] for d in draws], 0) == pytest.approx(mean, abs=0.01)
    assert np.mean([d.scalars["sigma"] for d in draws]) == pytest.approx(sigma, abs=0.01)
    assert np.mean([d.scalars["slab_scale"] for d in draws]) == pytest.approx(slab, rel=0.03)


def test_both_chains_make_the_same_draws(rng):
    X, y = _problem(rng)
    gram = GramChain(_gram(X, y), PRIOR, 0, np.random.default_rng(5), swaps=1)
    columns = ColumnChain(np.ascontiguousarray(X.T), y, PRIOR, 0, np.random.default_rng(5), swaps=1)
    a, b = run_chains([gram, columns], 100, 1)
    assert a.coef.toarray() == pytest.approx(b.coef.toarray(), abs=1e-8)
    assert a.mean == pytest.approx(b.mean, abs=1e-8)


def test_rao_blackwell_moments_agree_with_the_draws(rng):
    X, y = _problem(rng)
    (draws,) = run_chains([GramChain(_gram(X, y), PRIOR, 200, rng)], 20_200, 1)
    coef = draws.coef.toarray()
    assert coef.mean(0) == pytest.approx(draws.mean[0], abs=0.02)
    assert (coef**2).mean(0) == pytest.approx(draws.square[0], abs=0.03)


def test_known_noise_stays_where_it_is(rng):
    X, y = _problem(rng)
    prior = PRIOR._replace(noise_df=np.inf, noise_scale=0.8)
    (draws,) = run_chains([GramChain(_gram(X, y), prior, 10, rng)], 60, 1)
    assert np.allclose(draws.scalars["sigma"], 0.8)


def _ranks(replications, rng, n=20, p=8, kept=63, thin=4):
    """Normalised ranks of the truth among posterior draws, ties at zero broken at random."""
    ranks = []
    for _ in range(replications):
        X = _standardise(rng.standard_normal((n, p)) + rng.standard_normal((n, 1)))
        noise = 1.5 * PRIOR.noise_scale**2 / rng.standard_gamma(1.5)
        slab = 2.0 * PRIOR.slab_scale**2 / rng.standard_gamma(2.0)
        gamma = rng.random(p) < rng.beta(PRIOR.a, PRIOR.b)
        beta = gamma * np.sqrt(slab) * rng.standard_normal(p)
        y = X @ beta + np.sqrt(noise) * rng.standard_normal(n)
        chain = GramChain(_gram(X, y - y.mean()), PRIOR, 100, rng.spawn(1)[0])
        (draws,) = run_chains([chain], 100 + kept * thin, 1)
        coef = draws.coef.toarray()[thin - 1 :: thin]
        monitored = {
            "sigma": (draws.scalars["sigma"][thin - 1 :: thin], np.sqrt(noise)),
            "slab": (draws.scalars["slab_scale"][thin - 1 :: thin], np.sqrt(slab)),
            "size": (draws.scalars["model_size"][thin - 1 :: thin], float(gamma.sum())),
            "beta": (coef[:, 0], beta[0]),
            "fit": (coef @ X[0], X[0] @ beta),
        }
        below = [(np.sum(d < t) + rng.random() * (np.sum(d == t) + 1)) for d, t in monitored.values()]
        ranks.append(np.array(below) / (kept + 1))
    return np.array(ranks)


def test_simulation_based_calibration(rng):
    for column in _ranks(250, rng).T:
        assert kstest(column, "uniform").pvalue > 1e-3


@pytest.mark.slow
def test_simulation_based_calibration_in_full(rng):
    for column in _ranks(5000, rng).T:
        assert kstest(column, "uniform").pvalue > 1e-3
