"""The two-Gaussian prior; its maths is tested beside the Laplace one's."""

from __future__ import annotations

import math

import pytest
import torch
from reference import slab_probability
from torch import nn

import spikeslab as ss


def test_rho_is_bayes_rule_for_two_gaussians() -> None:
    weight = nn.Parameter(torch.linspace(-2, 2, 21, dtype=torch.float64))
    prior = ss.priors.SpikeSlabGaussian([weight], v0=0.04, v1=3.0, sigma=0.5, delta=0.3, adapt=ss.Marginal())
    expected = slab_probability(weight.detach().numpy(), 0.04, 3.0, 0.5, 0.3, "gaussian")
    assert prior.rho["weights[0]"].tolist() == pytest.approx(expected.tolist(), rel=1e-9)


def test_v0_is_a_variance_so_the_penalty_is_quadratic() -> None:
    weight = nn.Parameter(torch.tensor([2.0], dtype=torch.float64))
    prior = ss.priors.SpikeSlabGaussian([weight], v0=0.04, v1=3.0, sigma=0.5, rho=0.25, adapt=ss.Fixed())
    assert prior.penalty() == pytest.approx((0.75 / 0.04 + 0.25 / 3.0) * 4.0 / (2 * 0.25))
    assert prior.diagnostics(1).effective_l1 == {"weights[0]": 0.0}


def test_penalty_gradient_is_linear_in_the_weight() -> None:
    weight = nn.Parameter(torch.tensor([-1.0, 0.0, 2.0], dtype=torch.float64))
    prior = ss.priors.SpikeSlabGaussian([weight], v0=0.04, v1=3.0, adapt=ss.Fixed())
    out = [torch.zeros(3, dtype=torch.float64)]
    prior.add_gradient_([weight], out, 10)
    strength = (0.5 / 0.04 + 0.5 / 3.0) / 10
    assert out[0].tolist() == pytest.approx([-strength, 0.0, 2 * strength])


def test_inverted_compares_the_two_standard_deviations() -> None:
    weight = [nn.Parameter(torch.zeros(2))]
    with pytest.warns(ss.SpikeSlabWarning, match=r"standard deviation 1.41 sigma\) is wider than the slab \(1 sigma\)"):
        ss.priors.SpikeSlabGaussian(weight, v0=2.0, v1=1.0)
    assert math.sqrt(2.0) == pytest.approx(1.41, abs=0.005)


def test_its_state_is_not_taken_for_that_of_the_laplace_prior() -> None:
    weight = [nn.Parameter(torch.zeros(2))]
    laplace, gaussian = ss.SpikeSlab(weight, v0=0.1, v1=1.0), ss.priors.SpikeSlabGaussian(weight, v0=0.1, v1=1.0)
    with pytest.raises(ValueError, match="state of a SpikeSlab prior, but got 'SpikeSlabGaussian'"):
        laplace.load_state_dict(gaussian.state_dict())
