import numpy as np
import pytest
from exact_posteriors import linear_posterior

from spikeslab.sklearn._chains import run_chains
from spikeslab.sklearn._gibbs_linear import ColumnChain, GramChain, GramData, Scan, draw_visits
from spikeslab.sklearn._sweep import PointMassPrior

PRIOR = PointMassPrior(a=1.0, b=3.0, slab_df=4.0, slab_scale=1.0, noise_df=3.0, noise_scale=1.0)


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


@pytest.mark.parametrize("often", [[0, 1, 2, 3, 4], [0], []])
@pytest.mark.parametrize("kind", ["gram", "columns"])
def test_prior_weights_multiply_the_odds_of_models(kind, often, rng):
    """A weight of 1 for all but one variable changes the posterior odds of the models with it by its weight."""
    X, y = _problem(rng)
    factor = 4.0
    plain, *_ = linear_posterior(X, y, PRIOR)
    log_odds = np.array([0.0, 0.0, 0.0, np.log(factor), 0.0])
    if kind == "gram":
        chains = [GramChain(_gram(X, y), PRIOR, 500, r, log_odds) for r in rng.spawn(2)]
    else:
        chains = [ColumnChain(np.ascontiguousarray(X.T), y, PRIOR, 500, r, log_odds) for r in rng.spawn(2)]
    for chain in chains:
        chain.scan = Scan.of(np.isin(np.arange(5), often), 0.4, 2, chain.data, np.ones(5))
    draws = run_chains(chains, 30_500, 2)
    exact = factor * plain[3] / (1.0 - plain[3] + factor * plain[3])
    assert np.mean([d.pip[3] for d in draws]) == pytest.approx(exact, abs=0.015)
    assert np.mean([(d.coef.toarray()[:, 3] != 0).mean() for d in draws]) == pytest.approx(exact, abs=0.02)


@pytest.mark.parametrize(("often", "rate"), [([0], 0.3), ([], 0.2), ([2, 3], 0.5)])
def test_rare_visits_keep_the_law(often, rate, rng):
    X, y = _problem(rng)
    pip, mean, sigma, _ = linear_posterior(X, y, PRIOR)
    chains = [GramChain(_gram(X, y), PRIOR, 500, r) for r in rng.spawn(2)]
    for chain in chains:
        chain.scan = Scan.of(np.isin(np.arange(5), often), rate, 2, chain.data, np.ones(5))
    draws = run_chains(chains, 40_500, 2)
    assert np.mean([d.pip for d in draws], 0) == pytest.approx(pip, abs=0.015)
    assert np.mean([d.coef.toarray() != 0 for d in draws], axis=(0, 1)) == pytest.approx(pip, abs=0.02)
    assert np.mean([d.mean[0] for d in draws], 0) == pytest.approx(mean, abs=0.01)
    assert np.mean([d.scalars["sigma"] for d in draws]) == pytest.approx(sigma, abs=0.01)


@pytest.mark.parametrize("kind", ["gram", "columns"])
def test_nearly_collinear_columns_have_their_exact_probabilities(kind, rng):
    """Sums of two columns stand for both: no single exchange gets from one explanation to the other."""
    z = rng.standard_normal((200, 4))
    X = _standardise(np.hstack([z, z + np.roll(z, 1, axis=1) + 0.03 * rng.standard_normal((200, 4))]))
    y = 2.0 * (X[:, 0] + X[:, 1]) + 0.2 * rng.standard_normal(200)
    y -= y.mean()
    pip, *_ = linear_posterior(X, y, PRIOR)
    for seed in range(3):
        if kind == "gram":
            chain = GramChain(_gram(X, y), PRIOR, 200, np.random.default_rng(seed))
        else:
            chain = ColumnChain(np.ascontiguousarray(X.T), y, PRIOR, 200, np.random.default_rng(seed))
        (draws,) = run_chains([chain], 12_200, 1)
        assert (draws.coef.toarray() != 0).mean(axis=0) == pytest.approx(pip, abs=0.03)
        assert draws.pip == pytest.approx(pip, abs=0.03)


def test_visits_are_ordered_by_their_set_alone(rng):
    beta, visits = np.zeros(500), np.empty(500, np.int64)
    empty = np.empty(0)
    scan = Scan(
        np.array([7, 300]), np.isin(np.arange(500), [7, 300]), 0.1, 1, np.empty(0, np.int64), empty[:, None], empty
    )
    included = np.array([300, 2, 250, 499])
    beta[included] = 1.0
    counts = np.zeros(500)
    for _ in range(2000):
        seen = visits[: draw_visits(beta, included, scan, rng, visits)]
        assert seen[:2].tolist() == [7, 300]
        assert (np.diff(seen[2:]) > 0).all()
        counts[seen] += 1
    assert (counts[[2, 7, 250, 300, 499]] == 2000).all()
    assert np.delete(counts, [2, 7, 250, 300, 499]) / 2000 == pytest.approx(0.1, abs=0.035)


def test_a_wide_chain_settles_which_variables_it_visits_often(rng):
    X = _standardise(rng.standard_normal((60, 400)))
    y = X[:, 5] - X[:, 300] + 0.5 * rng.standard_normal(60)
    chain = ColumnChain(np.ascontiguousarray(X.T), y - y.mean(), PRIOR._replace(b=400.0), 200, rng)
    (draws,) = run_chains([chain], 1200, 1)
    assert {5, 300} <= set(chain.scan.often)
    assert chain.scan.often.size < 100
    assert draws.pip == pytest.approx((draws.coef.toarray() != 0).mean(0), abs=0.05)
    assert draws.pip[[5, 300]] == pytest.approx(1.0, abs=0.01)


def test_the_probabilities_to_enter_by_an_exchange_add_up(rng):
    X = _standardise(rng.standard_normal((60, 8)))
    X[:, 1] = _standardise(X[:, 0] + 0.2 * X[:, 1])
    y = X[:, 0] + 0.5 * rng.standard_normal(60)
    chain = GramChain(_gram(X, y - y.mean()), PRIOR, 0, rng)
    run_chains([chain], 100, 1)
    assert chain.entries.sum() == pytest.approx(100 * chain.swaps)  # one variable enters at each exchange
    assert chain.entries[:2].min() > chain.entries[2:].max()


def test_both_chains_make_the_same_draws(rng):
    X, y = _problem(rng)
    gram = GramChain(_gram(X, y), PRIOR, 0, np.random.default_rng(5))
    columns = ColumnChain(np.ascontiguousarray(X.T), y, PRIOR, 0, np.random.default_rng(5))
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
