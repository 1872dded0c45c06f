import numpy as np
import pytest
from exact_posteriors import multinomial_patterns, separable_slab_scale

from spikeslab.functional.convergence import rhat
from spikeslab.sklearn._chains import run_chains
from spikeslab.sklearn._gibbs_multinomial import MultinomialChain
from spikeslab.sklearn._sweep import PointMassPrior


def _problem(rng, n=40, p=1):
    X = rng.standard_normal((n, p))
    X = (X - X.mean(0)) / X.std(0)
    psi = np.array([0.9, 0.0, 0.0])[:, None] * X[:, 0]
    labels = (psi + rng.gumbel(size=psi.shape)).argmax(0)
    return X, labels


@pytest.mark.parametrize(("with_patterns", "intercept_scale"), [(True, 0.3), (False, 0.3), (True, np.inf)])
def test_patterns_of_classes_have_their_exact_probabilities(with_patterns, intercept_scale, rng):
    X, labels = _problem(rng)
    prior = PointMassPrior(a=1.0, b=2.0, slab_df=1e9, slab_scale=1.5, intercept_scale=intercept_scale)
    exact = multinomial_patterns(X[:, 0], labels, 3, prior, rng)
    chains = [MultinomialChain(np.ascontiguousarray(X.T), labels, 3, prior, 500, r) for r in rng.spawn(2)]
    if not with_patterns:
        for chain in chains:
            chain.patterns = np.array([0])
    draws = run_chains(chains, 12_500, 2)
    coef = np.concatenate([d.coef.toarray() for d in draws])
    seen = np.bincount((coef != 0) @ [1, 2, 4], minlength=8) / coef.shape[0]
    assert seen == pytest.approx(exact, abs=0.03)
    assert np.mean([d.pip for d in draws], 0) == pytest.approx(1 - exact[0], abs=0.02)


def test_intercepts_are_centred(rng):
    X, labels = _problem(rng, p=4)
    prior = PointMassPrior(a=1.0, b=4.0, slab_df=3.0, slab_scale=1.0)
    (draws,) = run_chains([MultinomialChain(np.ascontiguousarray(X.T), labels, 3, prior, 5, rng)], 25, 1)
    assert draws.intercept.shape == (20, 3)
    assert draws.intercept.sum(1) == pytest.approx(0.0, abs=1e-9)


def test_slab_scale_of_separable_classes_has_its_exact_quantiles(rng):
    """Four classes: with flat intercepts this posterior would be improper and its scale would run away."""
    X = np.array([[-1.0, -1.0], [-1.0, 1.0], [1.0, -1.0], [1.0, 1.0]])
    labels = np.arange(4)
    prior = PointMassPrior(a=2.0, b=2.0, slab_df=3.0, slab_scale=1.0, intercept_scale=2.0)
    exact = separable_slab_scale(X, labels, 4, prior, rng)
    chains = [MultinomialChain(np.ascontiguousarray(X.T), labels, 4, prior, 500, r) for r in rng.spawn(2)]
    scales = np.stack([d.scalars["slab_scale"] for d in run_chains(chains, 20_500, 2)])
    assert np.quantile(scales, [0.1, 0.5, 0.9]) == pytest.approx(exact, rel=0.1)
    assert rhat(scales) < 1.05


def test_mixes_when_four_classes_are_separable(rng):
    X = rng.standard_normal((300, 10))
    X = (X - X.mean(0)) / X.std(0)
    labels = 2 * (X[:, 0] > 0) + (X[:, 1] > 0)
    prior = PointMassPrior(a=1.0, b=40.0, slab_df=3.0, slab_scale=1.0)
    chains = [MultinomialChain(np.ascontiguousarray(X.T), labels, 4, prior, 500, r) for r in rng.spawn(2)]
    draws = run_chains(chains, 2000, 2)
    assert max(d.scalars["slab_scale"].max() for d in draws) < 1e5
    for name in ("slab_scale", "model_size"):
        assert rhat(np.stack([d.scalars[name] for d in draws])) < 1.05
    assert np.mean([d.pip for d in draws], 0).round(1).tolist()[:2] == [1.0, 1.0]
