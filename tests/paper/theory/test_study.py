"""The chain against exact answers: the posterior by quadrature, Theorem 1, Corollary 1."""

import math

import numpy as np
import pytest
import torch

import spikeslab as ss
from spikeslab.functional import mixture
from spikeslab.paper.theory.study import OneWeight, corollary1, theorem1

BIMODAL = OneWeight(m=0.45, s=0.2, v0=0.06, v1=1.0, delta=0.3)


def exact_posterior(problem):
    """Probabilities on the grid of the spike-and-slab posterior, indicators summed out."""
    beta = torch.from_numpy(problem.grid())
    log_prior = mixture.log_marginal(beta, v0=problem.v0, v1=problem.v1, sigma=1.0, delta=problem.delta)
    return (log_prior - (beta - problem.m) ** 2 / (2.0 * problem.s**2)).softmax(0).numpy()


def draws_from(grid, law, count, seed):
    """Independent draws from probabilities on a grid, spread evenly over their cells."""
    rng = np.random.default_rng(seed)
    cells = rng.choice(len(grid), size=count, p=law)
    return grid[cells] + (rng.random(count) - 0.5) * (grid[1] - grid[0])


def summary(beta, weights=None):
    """Mean, variance, and the mass of the mode at zero."""
    weights = np.full(len(beta), 1 / len(beta)) if weights is None else weights
    mean = float(weights @ beta)
    return np.array([mean, float(weights @ (beta - mean) ** 2), float(weights @ (np.abs(beta) < 0.15))])


def distance_from_exact_posterior(adapt, v0):
    """Largest error of the summary after a run that starts at the exact posterior, with a prior of scale v0."""
    grid, law = BIMODAL.grid(), exact_posterior(BIMODAL)
    beta = torch.nn.Parameter(torch.tensor(draws_from(grid, law, 60_000, seed=0), dtype=torch.float32))
    prior = ss.SpikeSlab(
        {"beta": beta},
        v0=v0,
        v1=BIMODAL.v1,
        delta=BIMODAL.delta,
        adapt=adapt,
        sigma_coupling="fixed",
        learn_delta=False,
    )
    sampler = ss.SGLD([beta], lr=2e-4, num_data=1, prior=prior, seed=1)
    for _ in range(1000):
        beta.grad = (beta.detach() - BIMODAL.m) / BIMODAL.s**2
        sampler.step()
    return np.abs(summary(beta.detach().double().numpy()) - summary(grid, law)).max()


# Five standard errors of a frequency, plus the bias of the discretisation.
TOLERANCE = 5 * 0.5 / math.sqrt(60_000) + 0.003


def test_the_example_has_two_modes():
    assert 0.25 < summary(BIMODAL.grid(), exact_posterior(BIMODAL))[2] < 0.75


@pytest.mark.parametrize("adapt", [ss.Marginal(), ss.EM()], ids=["marginal", "em"])
def test_one_weight_follows_the_exact_spike_and_slab_posterior(adapt):
    assert distance_from_exact_posterior(adapt, v0=BIMODAL.v0) < TOLERANCE


def test_a_spike_that_is_a_tenth_too_wide_is_seen():
    assert distance_from_exact_posterior(ss.Marginal(), v0=1.1 * BIMODAL.v0) > TOLERANCE


def test_two_correlated_weights_follow_the_exact_posterior():
    centre = torch.tensor([0.4, 0.3])
    precision = torch.tensor([[25.0, 15.0], [15.0, 25.0]])
    v0, v1, delta = 0.06, 1.0, 0.3
    axis = (torch.arange(400, dtype=torch.float64) - 199.5) * 0.008
    plane = torch.stack(torch.meshgrid(axis, axis, indexing="ij"), dim=-1).reshape(-1, 2)
    offset = plane - centre
    log_density = -0.5 * (offset @ precision.double() * offset).sum(1) + mixture.log_marginal(
        plane, v0=v0, v1=v1, sigma=1.0, delta=delta
    ).sum(1)
    law = torch.softmax(log_density, 0)
    rng = torch.Generator().manual_seed(0)
    cells = torch.multinomial(law, 60_000, replacement=True, generator=rng)
    beta = torch.nn.Parameter((plane[cells] + 0.008 * (torch.rand(60_000, 2, generator=rng) - 0.5)).float())
    prior = ss.SpikeSlab(
        {"beta": beta}, v0=v0, v1=v1, delta=delta, adapt=ss.Marginal(), sigma_coupling="fixed", learn_delta=False
    )
    sampler = ss.SGHMC([beta], lr=5e-5, momentum=0.5, num_data=1, prior=prior, seed=1)
    for _ in range(400):
        beta.grad = (beta.detach() - centre) @ precision
        sampler.step()
    found = beta.detach().double()

    def moments(points, weights):
        mean = weights @ points
        covariance = (weights[:, None] * (points - mean)).T @ (points - mean)
        near = (points.abs() < 0.15).double()
        modes = torch.stack([weights @ (near[:, 0] * near[:, 1]), weights @ (near[:, 0] * (1 - near[:, 1]))])
        return torch.cat([mean, covariance.flatten(), modes]).numpy()

    uniform = torch.full((len(found),), 1 / len(found), dtype=torch.float64)
    assert moments(found, uniform) == pytest.approx(moments(plane, law), abs=0.015)


def test_theorem_1_the_latents_converge_at_least_at_the_rate_alpha():
    result = theorem1(OneWeight(), alpha=0.75, chains=2000, steps=6000)
    assert result.slope <= -result.alpha + 3 * result.slope_error + 0.03
    assert result.errors[-1] < 0.02 * result.errors[0]


def test_theorem_1_needs_the_fixed_point_of_the_chain_itself():
    problem, lr = OneWeight(), 0.02
    assert problem.fixed_point(lr) - problem.fixed_point() > 0.02, "the discretised chain has its own fixed point"


def test_corollary_1_the_bias_of_the_weights_shrinks_with_epsilon():
    coarse, middle, fine = corollary1(OneWeight(), lrs=(0.16, 0.04, 0.01), chains=10_000, time=10.0)
    assert coarse.distance > 1.8 * middle.distance > 1.8 * 1.8 * fine.distance
    assert fine.distance < 0.05
    for result in (coarse, middle, fine):
        assert result.distance == pytest.approx(result.exact, abs=2.5 * result.noise)
