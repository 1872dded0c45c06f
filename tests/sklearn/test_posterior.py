import numpy as np
import pytest
from scipy import sparse

from spikeslab.sklearn import _posterior
from spikeslab.sklearn._chains import ChainDraws
from spikeslab.sklearn._moments import Scaling
from spikeslab.sklearn._posterior import pool


def _chain(rng, classes=2, draws=50, p=3):
    coef = rng.standard_normal((draws, classes * p)) * (rng.random((draws, classes * p)) < 0.5)
    by_class = coef.reshape(draws, classes, p)
    moments = (coef != 0).mean(0)[:p], by_class.mean(0), (by_class**2).mean(0)
    return coef, ChainDraws(sparse.csr_array(coef), np.empty((draws, 0)), {"s": rng.random(draws)}, *moments, draws)


@pytest.fixture
def pooled(rng):
    """Two chains of two classes on three of four features, the second of which is constant."""
    scaling = Scaling(4, np.array([0, 2, 3]), np.array([1.0, 2.0, 3.0]), np.array([2.0, 4.0, 0.5]))
    coefs, chains = zip(*(_chain(rng) for _ in range(2)), strict=True)
    intercept = rng.standard_normal((100, 2))
    dense = np.zeros((100, 2, 4))
    dense[:, :, scaling.kept] = np.concatenate(coefs).reshape(100, 2, 3) / scaling.x_scale
    level = intercept - dense[:, :, scaling.kept] @ scaling.x_mean
    return pool(chains, scaling, intercept), dense, level


def test_pooled_draws_are_on_the_users_scale(pooled):
    posterior, dense, level = pooled
    assert posterior.n_chains == 2
    assert posterior.coef.toarray() == pytest.approx(dense.reshape(100, -1))
    assert posterior.intercept == pytest.approx(level)
    assert posterior.mean == pytest.approx(dense.mean(0))
    assert posterior.std == pytest.approx(dense.std(0))
    assert posterior.pip[1] == 0.0
    assert posterior.coef_of(6) == pytest.approx(dense[:, 1, 2].reshape(2, 50))


def test_intervals_are_quantiles_of_all_draws_zeros_included(pooled):
    posterior, dense, _ = pooled
    expected = np.quantile(dense, [0.1, 0.9], axis=0)
    assert posterior.interval(0.8) == pytest.approx(np.moveaxis(expected, 0, -1))


@pytest.mark.parametrize("block", [1, 10**6])
def test_the_linear_predictor_is_the_same_in_blocks(pooled, rng, block, monkeypatch):
    posterior, dense, level = pooled
    monkeypatch.setattr(_posterior, "BLOCK", block)
    X = rng.standard_normal((5, 4))
    expected = np.einsum("ij,dcj->idc", X, dense) + level
    for rows in (X, sparse.csr_array(X)):
        found = np.concatenate([draws for _, draws in posterior.linear_predictor(rows)])
        assert found == pytest.approx(expected)
