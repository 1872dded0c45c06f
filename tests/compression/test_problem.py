"""Scales of spike and slab, and what they are on."""

from __future__ import annotations

import warnings

import pytest
import torch
from small import network, problem
from torch import nn

import spikeslab as ss
from spikeslab.compression import METHODS, Settings
from spikeslab.compression.problem import ChannelProblem, Problem
from spikeslab.compression.settings import Timeline
from spikeslab.functional import mixture
from spikeslab.priors import GroupSpikeSlab
from spikeslab.pruning.units import channel_units


def test_the_prior_is_on_what_decides_a_channel() -> None:
    model, settings = network(), Settings(temperature=0.1)
    units = channel_units(model, {"0.weight": "1", "3.weight": None})
    weights = ss.select_weights(model, "[03].weight")
    given = ChannelProblem(model, weights, 0.5, None, settings, Timeline(settings, 60), 96, 0, units=units)
    prior = METHODS["a-sghmc-sa"](given).sampler.prior
    assert isinstance(prior, GroupSpikeSlab)
    assert prior.weights["0.weight"] is model[1].weight
    assert prior.weights["3.weight"] is model[3].weight
    assert prior.v1 == pytest.approx(1.0 / (96 * 5e-4)), "the weight decay's"
    assert METHODS["gmp"](given).sampler.prior is None


def test_the_spike_holds_the_weights_that_will_go() -> None:
    """At the size below which weights will be pruned, spike and slab are even; the slab is the weight decay."""
    model = network()
    sizes = model[3].weight.detach().abs().flatten().sort().values
    prior = METHODS["a-sghmc-sa"](problem(model, num_data=3000)).sampler.prior
    assert prior.v1 == pytest.approx(1.0 / (3000 * 5e-4))
    assert prior.delta["3.weight"] == pytest.approx(1 - 209 / len(sizes))
    (rho,) = mixture.rho([sizes[208:209]], v0=prior.v0, v1=prior.v1, sigma=1.0, deltas=[prior.delta["3.weight"]])
    assert float(rho) == pytest.approx(0.5, abs=0.02), "209 of 418 go"
    assert problem(model, num_data=3000).scales == pytest.approx((prior.v0, prior.v1))
    assert problem(model, Settings(v0=0.1, v1=2.0)).scales == (0.1, 2.0)
    assert METHODS["a-sghmc-sa"](problem(model, Settings(v1=2.0))).sampler.prior.v1 == 2.0
    for num_data in (10, 1000, 10**6, 10**8):
        with warnings.catch_warnings():
            warnings.simplefilter("error", ss.SpikeSlabWarning)  # the spike stays narrower than the slab
            METHODS["a-sghmc-sa"](problem(model, num_data=num_data))
            METHODS["prior-annealing"](problem(model, num_data=num_data))


def test_the_slab_fits_the_weights_that_will_be_left_unless_a_normalisation_follows() -> None:
    torch.manual_seed(0)
    plain = nn.Sequential(nn.Linear(20, 30), nn.ReLU(), nn.Linear(30, 2))
    sizes = plain[2].weight.detach().abs().flatten().sort().values
    settings = Settings()
    for model, v1 in (
        (plain, 2.0 * float(sizes[30:].square().mean())),
        (nn.Sequential(plain, nn.GroupNorm(1, 2)), None),
    ):
        weights = {name: each for name, each in model.named_parameters() if each.shape == (2, 30)}
        given = Problem(model, weights, 0.5, None, settings, Timeline(settings, 60), 10**5, 0)
        expected = v1 or 1.0 / (10**5 * settings.weight_decay)
        assert given.scales.v1 == pytest.approx(expected)
        assert METHODS["a-sghmc-sa"](given).sampler.prior.v1 == pytest.approx(expected)
