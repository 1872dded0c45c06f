"""The Gibbs samplers on data from their own prior: the truth ranks uniformly among the draws."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from scipy.stats import kstest

from spikeslab.bench.calibration import CASES, draw_correlated_rows, draw_parameters, sbc_ranks
from spikeslab.sklearn._sweep import PointMassPrior


def _ranks(case, replications):
    found = [sbc_ranks(case, seed) for seed in range(replications)]
    return {name: [ranks[name] for ranks in found] for name in found[0]}


@pytest.mark.parametrize(("name", "replications"), [("gram", 300), ("columns", 300), ("logistic", 150)])
def test_ranks_are_uniform(name, replications):
    for quantity, ranks in _ranks(CASES[name], replications).items():
        assert kstest(ranks, "uniform").pvalue > 1e-3, quantity


def test_ranks_of_three_classes_are_uniform():
    case = replace(CASES["multinomial"], n=15, p=2, kept=31, thin=6, burn_in=100)
    for quantity, ranks in _ranks(case, 100).items():
        assert kstest(ranks, "uniform").pvalue > 1e-3, quantity


@pytest.mark.slow
@pytest.mark.parametrize("name", CASES)
def test_ranks_are_uniform_over_many_data_sets(name):
    for quantity, ranks in _ranks(CASES[name], 400).items():
        assert kstest(ranks, "uniform").pvalue > 1e-4, quantity


def test_a_sampler_with_another_prior_is_caught(monkeypatch):
    case = CASES["gram"]
    truth = draw_parameters
    wide = case.prior._replace(slab_scale=3.0 * case.prior.slab_scale)
    monkeypatch.setattr("spikeslab.bench.calibration.draw_parameters", lambda prior, *rest: truth(wide, *rest))
    assert kstest(_ranks(case, 200)["slab"], "uniform").pvalue < 1e-6


def test_truth_has_the_moments_of_the_prior():
    rng = np.random.default_rng(0)
    prior = PointMassPrior(
        a=2.0, b=6.0, slab_df=1e9, slab_scale=0.5, noise_df=1e9, noise_scale=0.3, intercept_scale=2.0
    )
    truths = [draw_parameters(prior, 40, 3, rng) for _ in range(500)]
    beta = np.array([truth.beta for truth in truths])
    assert np.mean(beta != 0) == pytest.approx(0.25, abs=0.03)
    assert beta[beta != 0].std() == pytest.approx(0.5, abs=0.01)
    assert truths[0].sigma == pytest.approx(0.3, abs=1e-3)
    intercepts = np.array([truth.intercept for truth in truths])
    assert intercepts.sum(axis=1) == pytest.approx(0.0, abs=1e-9)
    assert intercepts.std() == pytest.approx(2.0 * np.sqrt(2 / 3), abs=0.15)


def test_neighbouring_columns_are_correlated():
    x = draw_correlated_rows(4000, 3, 0.7, np.random.default_rng(0))
    assert np.corrcoef(x.T) == pytest.approx(np.array([[1, 0.7, 0.49], [0.7, 1, 0.7], [0.49, 0.7, 1]]), abs=0.05)
