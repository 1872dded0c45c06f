"""Scales of spike and slab, and what they are on."""

from __future__ import annotations

import warnings

import pytest
import torch
from small import network, problem

import spikeslab as ss
from spikeslab.compression import METHODS, Settings
from spikeslab.compression.problem import ChannelProblem, spike_scale
from spikeslab.compression.settings import Timeline
from spikeslab.functional import mixture
from spikeslab.priors import GroupSpikeSlab


def test_the_prior_is_on_what_decides_a_channel() -> None:
    model, settings = network(), Settings(temperature=0.1)
    followers = {"0.weight": "1", "3.weight": None}
    weights = ss.select_weights(model, "[03].weight")
    given = ChannelProblem(model, weights, 0.5, None, settings, Timeline(settings, 60), 96, 0, followers)
    prior = METHODS["a-sghmc-sa"](given).sampler.prior
    assert isinstance(prior, GroupSpikeSlab)
    assert prior.weights["0.weight"] is model[1].weight
    assert prior.weights["3.weight"] is model[3].weight
    assert METHODS["gmp"](given).sampler.prior is None


@pytest.mark.parametrize("size", [1, 9, 576])
def test_the_spike_is_even_with_the_slab_at_the_size_below_which_channels_go(size: int) -> None:
    v0 = spike_scale(0.05, v1=1.0, delta=0.4, size=size)
    norms = torch.tensor([0.04, 0.05, 0.06]) * size**0.5
    (rho,) = mixture.rho([norms], v0=v0, v1=1.0, sigma=1.0, deltas=[0.4], sizes=[size])
    fall = size * 0.05**2 / 2.0  # of the log density of the slab, which the rule leaves out
    assert float(rho[1].logit()) == pytest.approx(-fall, abs=1e-3)
    assert rho[0] < 0.5 < rho[2]


def test_the_spike_holds_the_weights_that_will_go() -> None:
    """At the size below which weights will be pruned, spike and slab are even; the slab is the weight decay."""
    model = network()
    sizes = model[3].weight.detach().abs().flatten().sort().values
    given = problem(model, num_data=3000)
    assert given.v1 == pytest.approx(1.0 / (3000 * 5e-4))
    (rho,) = mixture.rho([sizes[208:209]], v0=given.v0, v1=given.v1, sigma=1.0, deltas=[0.5])
    assert float(rho) == pytest.approx(0.5, abs=0.02), "209 of 418 go"
    assert problem(model, num_data=10**7).v0 == pytest.approx((1.0 / (10**7 * 5e-4)) ** 0.5 / 4), "within the slab"
    assert problem(model, num_data=20).v0 == pytest.approx((0.05 / 20) ** 0.5), "no narrower than a step"
    assert problem(model, Settings(v0=0.1, v1=2.0)).v0 == 0.1
    for num_data in (10, 1000, 10**6, 10**8):
        with warnings.catch_warnings():
            warnings.simplefilter("error", ss.SpikeSlabWarning)  # the spike stays narrower than the slab
            METHODS["a-sghmc-sa"](problem(model, num_data=num_data))
            METHODS["prior-annealing"](problem(model, num_data=num_data))
