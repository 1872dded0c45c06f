"""Predictive mean and variance, and the links."""

import re

import pytest
import torch
from posteriors import filled, move
from torch import nn

import spikeslab as ss


def test_variance_of_a_classification_splits_into_aleatoric_and_epistemic() -> None:
    posterior = filled(nn.Linear(3, 4).double())
    x = torch.randn(6, 3, dtype=torch.float64)
    prediction = posterior.predictive(x)
    values = torch.stack(list(posterior.outputs(x)))
    torch.testing.assert_close(prediction.epistemic, values.var(0, unbiased=False))
    torch.testing.assert_close(prediction.aleatoric, (values * (1 - values)).mean(0))
    torch.testing.assert_close(prediction.variance, prediction.mean * (1 - prediction.mean))


def test_variance_of_a_regression_adds_the_noise_of_each_sample() -> None:
    model = nn.Linear(3, 2).double()
    prior = ss.SpikeSlab([model.weight], v0=0.02, v1=1.0)
    posterior = ss.Posterior(model, likelihood=ss.GaussianLikelihood(prior))
    sigmas = [0.5, 1.0, 3.0]
    for seed, sigma in enumerate(sigmas):
        move(model, seed)
        prior.scale.sigma = sigma
        posterior.collect()
    x = torch.randn(6, 3, dtype=torch.float64)
    prediction = posterior.predictive(x)
    means = torch.stack([posterior.sample(i)(x).detach() for i in range(3)])
    torch.testing.assert_close(prediction.mean, means.mean(0))
    torch.testing.assert_close(prediction.epistemic, means.var(0, unbiased=False))
    expected = torch.full((6, 2), sum(s**2 for s in sigmas) / 3, dtype=torch.float64)
    torch.testing.assert_close(prediction.aleatoric, expected)


def test_a_small_epistemic_variance_does_not_cancel() -> None:
    model = nn.Linear(1, 1, bias=False)
    posterior = ss.Posterior(model, link=lambda outputs: outputs)
    for shift in (-1.0, 0.0, 1.0):
        with torch.no_grad():
            model.weight.fill_(1000.0 + 0.01 * shift)
        posterior.collect()
    prediction = posterior.predictive(torch.ones(1, 1))
    values = torch.cat(list(posterior.outputs(torch.ones(1, 1)))).double()
    assert float(prediction.epistemic) == pytest.approx(float(values.var(unbiased=False)), rel=0.02)


def test_log_probabilities_give_the_same_as_logits() -> None:
    model = nn.Sequential(nn.Linear(3, 4), nn.LogSoftmax(dim=1))
    posterior = filled(model)
    x = torch.randn(6, 3)
    expected = torch.stack([posterior.sample(i)(x).detach().exp() for i in range(4)]).mean(0)
    torch.testing.assert_close(posterior.predict(x), expected)


@pytest.mark.parametrize("samples", [1, 3])
@pytest.mark.parametrize("model", [nn.Linear(3, 1), nn.Sequential(nn.Linear(3, 1), nn.Flatten(0))])
def test_one_output_has_no_softmax(model: nn.Module, samples: int) -> None:
    posterior, x = filled(model, samples), torch.randn(5, 3)
    message = (
        f"model must return one output per class, but its outputs have the shape {tuple(model(x).shape)}: give "
        "link=torch.sigmoid for a logit, or a likelihood for a regression."
    )
    with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
        posterior.predict(x)
    assert filled(model, samples, link=torch.sigmoid).predict(x).shape == model(x).shape
