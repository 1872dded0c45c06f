"""PSGLD: at temperature 0 it is RMSprop."""

from __future__ import annotations

import pytest
import torch
from sgd_limits import assert_equal_to_rounding, network, train
from torch import nn

import spikeslab as ss

pytestmark = pytest.mark.usefixtures("either_path")


def test_psgld_at_temperature_zero_is_rmsprop() -> None:
    ours, theirs = network(), network()
    sampler = ss.PSGLD(ours.parameters(), lr=0.003, alpha=0.95, eps=1e-4, num_data=100, temperature=0.0)
    rmsprop = torch.optim.RMSprop(theirs.parameters(), lr=0.003, alpha=0.95, eps=1e-4)
    assert_equal_to_rounding(train(ours, sampler), train(theirs, rmsprop))


@pytest.mark.parametrize(("key", "value"), [("alpha", 1.5), ("eps", 0.0)])
def test_its_own_numbers_are_checked_when_they_are_written_into_a_group(key: str, value: float) -> None:
    weight = nn.Parameter(torch.ones(2))
    sampler = ss.PSGLD([weight], lr=0.1, num_data=10)
    sampler.param_groups[0][key] = value
    weight.grad = torch.ones(2)
    with pytest.raises(ValueError, match=rf"^param_groups\[0\]\['{key}'\] must be a number .*, but got {value}\.$"):
        sampler.step()
    assert weight.tolist() == [1.0, 1.0]
