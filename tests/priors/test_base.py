"""What all priors have in common: they are copied with the model, and never pickled."""

from __future__ import annotations

import copy
import pickle

import pytest
import torch
from torch import nn

import spikeslab as ss

PRIORS = {
    "L1": lambda weights: ss.L1(weights, 0.5),
    "SpikeSlab": lambda weights: ss.SpikeSlab(weights, v0=0.02, v1=1.0),
    "GroupSpikeSlab": lambda weights: ss.priors.GroupSpikeSlab(weights, v0=0.02, v1=1.0),
    "StackedSpikeSlab": lambda weights: ss.priors.StackedSpikeSlab(weights, v0=0.02, v1=1.0),
}


@pytest.mark.parametrize("name", PRIORS)
def test_a_prior_refuses_to_be_pickled(name: str) -> None:
    prior = PRIORS[name]([nn.Parameter(torch.ones(3, 2))])
    with pytest.raises(TypeError, match=rf"^{name} cannot be pickled or copied alone: save its state_dict\(\)"):
        pickle.dumps(prior)


@pytest.mark.parametrize("name", PRIORS)
def test_a_deep_copy_is_over_the_weights_of_the_copied_model(name: str) -> None:
    model = nn.Linear(2, 3)
    prior = PRIORS[name]([model.weight])
    prior.update(1, 10)
    twin_model, twin = copy.deepcopy((model, prior))
    assert twin_model.weight in twin
    assert model.weight not in twin
    assert twin_model.weight not in prior
    with torch.no_grad():
        model.weight.mul_(100.0)
    prior.update(2, 10)
    twin.update(2, 10)
    assert twin.penalty() < prior.penalty()
