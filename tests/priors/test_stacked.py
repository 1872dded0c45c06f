"""The prior of stacked chains; that each chain is the one that runs alone is in tests/parallel/test_stacked.py."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import spikeslab as ss
from spikeslab.likelihoods import StackedGaussianLikelihood
from spikeslab.parallel.stacked import StackedModel
from spikeslab.priors import StackedSpikeSlab

SETTINGS = {"v0": 0.1, "v1": 2.0, "delta": 0.3, "sigma": 1.5, "kappa": (0.7, 0.2)}


def test_the_penalty_has_the_gradient_of_the_prior() -> None:
    weight = nn.Parameter(torch.randn(3, 5, 4, dtype=torch.float64))
    prior = StackedSpikeSlab([weight], **SETTINGS, adapt=ss.SA(ss.polynomial(0.5, power=0.6)))
    for step in (1, 2, 3):
        prior.update(step, 40)
    gradient = torch.zeros_like(weight)
    prior.add_gradient_([weight], [gradient], 40)
    before = prior.penalties(40)
    with torch.no_grad():
        weight[1, 2, 3] += 1e-6
    change = (prior.penalties(40) - before) / 1e-6
    torch.testing.assert_close(
        change, torch.tensor([0.0, float(gradient[1, 2, 3]), 0.0]).double(), rtol=1e-4, atol=1e-9
    )


def test_a_state_of_another_number_of_chains_is_refused() -> None:
    three, two = (StackedSpikeSlab([torch.ones(chains, 4)], **SETTINGS) for chains in (3, 2))
    three.update(1, 40)
    with pytest.raises(ValueError, match=r"^state_dict must be of 2 chains, but got 3\.$"):
        two.load_state_dict(three.state_dict())


def test_all_weights_must_have_the_same_number_of_chains() -> None:
    message = r"^weights must have the same number of chains along their first dimension, but got \[2, 3\]\.$"
    with pytest.raises(ValueError, match=message):
        StackedSpikeSlab([torch.zeros(2, 4), torch.zeros(3, 4)], v0=0.1, v1=1.0)


def test_latents_may_move_at_every_second_step_only() -> None:
    models = [nn.Linear(6, 1) for _ in range(3)]
    model = StackedModel(models)
    prior = StackedSpikeSlab(ss.select_weights(model, "*.weight"), v0=0.05, v1=1.0, adapt_every=2)
    likelihood = StackedGaussianLikelihood(prior)
    sampler = ss.SGLD(model.parameters(), lr=0.01, num_data=40, prior=prior, seed=0, fused=False)
    sums = []
    for _ in range(4):
        sampler.zero_grad()
        likelihood(model(torch.randn(3, 8, 6)), torch.randn(3, 8, 1)).backward()
        sampler.step()
        sums.append(prior.state_dict()["omega_sum"])
    assert sums[0] == 0.0
    assert sums[1] == sums[2] > 0.0
    assert sums[3] > sums[2]
