"""R-hat and effective sample sizes: those of ArviZ, honest about one chain, and blind to what does not vary."""

from __future__ import annotations

import math
import sys

import arviz
import numpy as np
import pytest
import torch
from torch import nn

import spikeslab as ss
from spikeslab.posterior import Chains
from spikeslab.posterior.convergence import NORMS, PREDICTIONS, SOME_WEIGHTS, assess, weight_draws


def autoregressive(chains: int, draws: int, phi: float, seed: int = 0) -> np.ndarray:
    noise = np.random.default_rng(seed).normal(size=(chains, draws))
    values = np.zeros_like(noise)
    for k in range(1, draws):
        values[:, k] = phi * values[:, k - 1] + math.sqrt(1 - phi**2) * noise[:, k]
    return values


def test_several_chains_are_as_arviz_says():
    draws = autoregressive(4, 200, 0.7)
    result = assess("x", draws)
    assert result.rhat == pytest.approx(float(arviz.rhat(draws)))
    assert result.ess_bulk == pytest.approx(float(arviz.ess(draws, method="bulk")))
    assert result.ess_tail == pytest.approx(float(arviz.ess(draws, method="tail")))
    assert (result.name, result.count, result.chains, result.draws) == ("x", 1, 4, 200)


def test_the_worst_scalar_counts():
    good = np.random.default_rng(0).normal(size=(4, 100, 5))
    bad = good.copy()
    bad[0, :, 3] += 5.0
    assert assess("x", good).rhat < 1.05
    assert assess("x", bad).rhat == pytest.approx(float(arviz.rhat(bad[:, :, 3])))
    assert assess("x", bad).rhat > 1.5


def test_one_chain_is_compared_with_itself():
    still = np.random.default_rng(0).normal(size=(1, 100))
    drifting = still + np.linspace(0, 6, 100)
    assert assess("x", still).rhat < 1.1
    assert assess("x", drifting).rhat > 1.5
    assert assess("x", still).chains == 1


@pytest.mark.parametrize(("chains", "draws", "scalars"), [(4, 40, 20), (1, 40, 8), (2, 200, 3)])
def test_independent_draws_stay_below_what_is_chance(chains, draws, scalars):
    rng = np.random.default_rng(0)
    results = [assess("x", rng.normal(size=(chains, draws, scalars))) for _ in range(60)]
    excess = [result.rhat - result.chance for result in results]
    assert sum(value > 0 for value in excess) <= 3, "1 in 100 is expected"
    shares = [(result.rhat - 1) / (result.chance - 1) for result in results]
    assert max(shares) > 0.55, "the limit must not be so wide that it says nothing"


@pytest.mark.parametrize(("chains", "draws"), [(2, 3), (1, 7), (1, 0)])
def test_too_few_draws_have_no_number(chains, draws):
    result = assess("x", np.random.default_rng(0).normal(size=(chains, draws)))
    assert math.isnan(result.rhat)
    assert math.isnan(result.ess_bulk)


def test_scalars_that_do_not_vary_are_left_out():
    draws = np.zeros((2, 20, 3))
    draws[:, :, 1] = np.random.default_rng(0).normal(size=(2, 20))
    assert assess("x", draws).count == 1
    nothing = assess("x", np.zeros((2, 20, 3)))
    assert nothing.count == 0
    assert math.isnan(nothing.rhat)


def test_norms_do_not_see_a_permutation_of_hidden_units_but_weights_do():
    generator = torch.Generator().manual_seed(0)
    centre = torch.randn(4, 3, generator=generator)

    def chain(order: list[int]) -> list[dict[str, torch.Tensor]]:
        return [
            {
                "fc.weight": (centre + 0.05 * torch.randn(4, 3, generator=generator))[order],
                "bn.running_mean": torch.zeros(4),
                "bn.num_batches_tracked": torch.tensor(3),
            }
            for _ in range(40)
        ]

    draws = weight_draws([chain([0, 1, 2, 3]), chain([1, 2, 3, 0])])
    assert draws[NORMS].shape == (2, 40, 1), "the statistics of batch normalisation are no weights"
    assert draws[SOME_WEIGHTS].shape == (2, 40, 12)
    assert assess("norms", draws[NORMS]).rhat < 1.1
    assert assess("weights", draws[SOME_WEIGHTS]).rhat > 1.5


def test_random_weights_are_among_those_that_are_not_pruned_and_follow_the_seed():
    weight = torch.zeros(1000)
    weight[::10] = 1.0
    samples = [{"w": weight * (k + 1)} for k in range(5)]
    draws = weight_draws([samples], seed=1)[SOME_WEIGHTS]
    assert draws.shape == (1, 5, 100)
    assert (draws[0, 1] == 2.0).all()
    wide = [{"w": torch.arange(1.0, 1001.0)}]
    assert (weight_draws([wide], seed=1)[SOME_WEIGHTS] == weight_draws([wide], seed=1)[SOME_WEIGHTS]).all()
    assert (weight_draws([wide], seed=1)[SOME_WEIGHTS] != weight_draws([wide], seed=2)[SOME_WEIGHTS]).any()


def gaussian_chain(seed: int, centre: float = 0.0, draws: int = 60) -> ss.Posterior:
    """Independent samples of a linear layer, so R-hat must be near 1."""
    generator = torch.Generator().manual_seed(seed)
    model = nn.Linear(3, 2)
    posterior = ss.Posterior(model, link=lambda outputs: outputs)
    for _ in range(draws):
        with torch.no_grad():
            for param in model.parameters():
                param.copy_(centre + torch.randn(param.shape, generator=generator))
        posterior.collect()
    return posterior


def test_convergence_of_chains_in_function_space():
    inputs = torch.randn(5, 3)
    agree = Chains([gaussian_chain(seed) for seed in range(3)]).convergence(inputs)
    assert [result.name for result in agree] == [PREDICTIONS, NORMS, SOME_WEIGHTS]
    assert agree[0].count == 10
    assert agree[0].rhat < 1.1
    assert agree[0].ess_bulk > 100
    apart = Chains([gaussian_chain(0), gaussian_chain(1, centre=3.0)]).convergence(inputs)
    assert apart[0].rhat > 1.3
    assert [result.name for result in gaussian_chain(0).convergence()] == [NORMS, SOME_WEIGHTS]


def test_convergence_needs_no_arviz_but_its_export_does(monkeypatch):
    monkeypatch.setitem(sys.modules, "arviz", None)
    chain = gaussian_chain(0, draws=8)
    assert chain.convergence()[0].rhat > 0
    with pytest.raises(ImportError, match=r"needs ArviZ: pip install 'spikeslab\[arviz\]'"):
        chain.to_arviz()


def test_chains_that_stand_still_apart_have_a_large_finite_rhat() -> None:
    """JSON has no infinity, and a number that is not there would be taken for one that is unknown."""
    stuck = assess("stuck", np.repeat(np.arange(4.0)[:, None], 50, axis=1))
    assert stuck.rhat == 1e6
