"""The Gaussian likelihood and its bookkeeping of residuals."""

from __future__ import annotations

import math

import pytest
import torch
from scipy import stats
from torch import nn

import spikeslab as ss
from spikeslab.errors import ArgumentValueError
from spikeslab.functional import mixture


def regression() -> tuple[nn.Module, ss.SpikeSlab, ss.GaussianLikelihood, ss.SGLD]:
    torch.manual_seed(0)
    model = nn.Linear(3, 2, dtype=torch.float64)
    prior = ss.SpikeSlab(
        [model.weight], v0=0.05, v1=2.0, sigma=0.7, nu=2.0, lam=0.5, adapt=ss.EM(), sigma_coupling="conjugate"
    )
    sampler = ss.SGLD(model.parameters(), lr=0.01, num_data=60, prior=prior, seed=0)
    return model, prior, ss.GaussianLikelihood(prior), sampler


X, Y = torch.linspace(-1, 1, 15, dtype=torch.float64).view(5, 3), torch.ones(5, 2, dtype=torch.float64)


def expected_sigma(model: nn.Module, prior: ss.SpikeSlab, squares: float) -> float:
    """The maximum of Q1 at the new weights and kappa, with the residuals before the step."""
    kappa0, kappa1 = prior.kappa["weights[0]"]
    weight = model.weight.detach()
    return mixture.sigma_regression(
        b=float((kappa0 * weight.abs()).sum()),
        j=float((kappa1 * weight**2).sum()),
        squares=squares,
        num_targets=60 * 2,
        num_weights=6,
        nu=2.0,
        lam=0.5,
    )


def test_it_is_the_negative_log_density_of_an_example_without_its_constant() -> None:
    prediction, target, sigma = torch.randn(7, 2), torch.randn(7, 2), 0.6
    value = ss.GaussianLikelihood(sigma)(prediction, target)
    density = -stats.norm(prediction, sigma).logpdf(target).sum(axis=1).mean()
    constant = 2 * (0.5 * math.log(2 * math.pi) + math.log(sigma))
    assert float(value) == pytest.approx(density - constant, rel=1e-5)


def test_it_reads_sigma_from_the_prior_at_every_call() -> None:
    model, prior, likelihood, sampler = regression()
    before = float(likelihood(model(X), Y).detach())
    likelihood(model(X), Y).backward()
    sampler.step()
    assert likelihood.sigma == prior.sigma != 0.7
    squares = float((model(X) - Y).square().sum().detach())
    assert float(likelihood(model(X), Y).detach()) == pytest.approx(squares / (2 * prior.sigma**2 * 5), rel=1e-12)
    assert before > 0


def test_sigma_learns_from_the_residuals_at_the_weights_before_the_step() -> None:
    model, prior, likelihood, sampler = regression()
    squares = float((model(X) - Y).square().sum().detach()) * 60 / 5
    likelihood(model(X), Y).backward()
    sampler.step()
    assert prior.sigma == pytest.approx(expected_sigma(model, prior, squares), rel=1e-12)


def test_evaluation_leaves_no_trace() -> None:
    model, prior, likelihood, sampler = regression()
    squares = float((model(X) - Y).square().sum().detach()) * 60 / 5
    with torch.no_grad():
        likelihood(model(100 * X), Y)
    likelihood(model(100 * X).detach(), Y)
    likelihood(model(X), Y).backward()
    with torch.inference_mode():
        likelihood(model(100 * X), Y)
    sampler.step()
    assert prior.sigma == pytest.approx(expected_sigma(model, prior, squares), rel=1e-12)


@pytest.mark.parametrize("set_to_none", [True, False])
@pytest.mark.parametrize("owner", ["sampler", "model"])
def test_residuals_of_a_step_that_is_not_taken_go_with_the_gradients(set_to_none: bool, owner: str) -> None:
    model, prior, likelihood, sampler = regression()
    squares = float((model(X) - Y).square().sum().detach()) * 60 / 5
    for _ in range(2):
        likelihood(model(100 * X), Y).backward()
    (sampler if owner == "sampler" else model).zero_grad(set_to_none)
    with pytest.raises(RuntimeError, match="call the likelihood and backward"):
        sampler.step()
    assert sampler.steps == 0
    likelihood(model(X), Y).backward()
    sampler.step()
    assert prior.sigma == pytest.approx(expected_sigma(model, prior, squares), rel=1e-12)


def test_clearing_gradients_before_the_backward_pass_keeps_the_residuals() -> None:
    """The order of loops that clear the gradients between the loss and its backward pass."""
    model, prior, likelihood, sampler = regression()
    for _ in range(3):
        squares = float((model(X) - Y).square().sum().detach()) * 60 / 5
        loss = likelihood(model(X), Y)
        sampler.zero_grad()
        loss.backward()
        sampler.step()
        assert prior.sigma == pytest.approx(expected_sigma(model, prior, squares), rel=1e-12)


def test_two_losses_with_one_backward_pass_add_up() -> None:
    model, prior, likelihood, sampler = regression()
    squares = float((model(X) - Y).square().sum().detach()) * 60 / 5
    (likelihood(model(X[:3]), Y[:3]) * 0.6 + likelihood(model(X[3:]), Y[3:]) * 0.4).backward()
    sampler.step()
    assert prior.sigma == pytest.approx(expected_sigma(model, prior, squares), rel=1e-12)


def test_residuals_of_micro_batches_of_different_sizes_add_up() -> None:
    model, prior, likelihood, sampler = regression()
    squares = float((model(X) - Y).square().sum().detach()) * 60 / 5
    for rows in (slice(0, 3), slice(3, 5)):
        (likelihood(model(X[rows]), Y[rows]) * len(X[rows]) / 5).backward()
    sampler.step()
    assert prior.sigma == pytest.approx(expected_sigma(model, prior, squares), rel=1e-12)


def test_residuals_are_used_once() -> None:
    model, _, likelihood, sampler = regression()
    likelihood(model(X), Y).backward()
    sampler.step()
    with pytest.raises(RuntimeError, match="call the likelihood and backward"):
        sampler.step()


def test_residuals_keep_no_graph() -> None:
    model, prior, likelihood, _ = regression()
    likelihood(model(X), Y)
    assert prior.scale.residuals
    assert not prior.scale.residuals._squares.requires_grad


@pytest.mark.parametrize(("shape", "other"), [((5, 1), (5,)), ((5,), (5, 1)), ((5, 2), (1, 2)), ((4,), (5,))])
def test_shapes_that_would_broadcast_are_refused_and_leave_no_trace(shape, other) -> None:
    _, prior, likelihood, _ = regression()
    with pytest.raises(ArgumentValueError) as error:
        likelihood(torch.zeros(shape, requires_grad=True), torch.zeros(other))
    assert str(error.value) == f"target must have the shape of the prediction, {shape}, but got {other}."
    assert not prior.scale.residuals


@pytest.mark.parametrize("shape", [(), (0,), (0, 3)])
def test_a_prediction_without_examples_is_refused(shape) -> None:
    with pytest.raises(ArgumentValueError) as error:
        ss.GaussianLikelihood(1.0)(torch.zeros(shape), torch.zeros(shape))
    assert str(error.value) == (
        f"prediction must hold at least one example along its first dimension, but got the shape {shape}."
    )


def test_a_fixed_sigma_must_be_positive() -> None:
    with pytest.raises(ValueError, match=r"^sigma must be a number > 0, but got 0\.0\.$"):
        ss.GaussianLikelihood(0.0)


def test_the_independent_noise_is_estimated_without_bias_where_the_conjugate_is_biased() -> None:
    """p >> n: weights that the prior counts as data of variance sigma^2 v pull the conjugate sigma down."""
    torch.manual_seed(0)
    sigmas = {}
    for coupling in ("conjugate", "independent"):
        weight = nn.Parameter(1e-4 * torch.randn(2000))
        prior = ss.SpikeSlab([weight], v0=0.1, v1=10.0, sigma_coupling=coupling, adapt=ss.EM())
        likelihood = ss.GaussianLikelihood(prior)
        noise = 1.7 * torch.randn(100, generator=torch.Generator().manual_seed(1))
        for step in range(1, 30):
            likelihood(noise.clone().requires_grad_(), torch.zeros(100))
            prior.update(step, 100)
        sigmas[coupling] = prior.sigma
    assert sigmas["independent"] == pytest.approx(float(noise.std()), rel=0.05)
    assert sigmas["conjugate"] < 0.5 * sigmas["independent"]


def test_gradients_that_are_zero_are_not_taken_for_cleared_ones() -> None:
    """Behind a head of zeros the sparse weights have gradients of zero, and their residuals count all the same."""
    model = nn.Sequential(nn.Linear(3, 5), nn.Tanh(), nn.Linear(5, 1))
    nn.init.zeros_(model[2].weight)
    prior = ss.SpikeSlab({"0.weight": model[0].weight}, v0=0.01, v1=1.0)
    likelihood = ss.GaussianLikelihood(prior)
    sampler = ss.SGLD(model.parameters(), lr=1e-3, num_data=20, prior=prior, seed=1)
    x, y = torch.randn(20, 3), torch.randn(20, 1)
    for rows in (slice(0, 10), slice(10, 20)):
        (likelihood(model(x[rows]), y[rows]) / 2).backward()
    assert prior.scale.residuals.totals()[2] == 20
    sampler.step()
    assert sampler.steps == 1
