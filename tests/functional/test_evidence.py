"""Odds of inclusion by curvature against the marginal likelihoods of linear models."""

from __future__ import annotations

import math

import pytest
import torch

from spikeslab.functional.evidence import inclusion_log_odds, saliency

N = 50


def make_column(seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    x = 3.0 * torch.randn(N, generator=generator, dtype=torch.float64)
    return x, 0.1 * x + torch.randn(N, generator=generator, dtype=torch.float64)


@pytest.mark.parametrize("w", [0.0, -2.0, 0.4])
@pytest.mark.parametrize("v1", [1e-3, 0.5, 100.0])
@pytest.mark.parametrize("delta", [0.01, 0.7])
def test_they_are_the_ratio_of_two_normal_densities_of_the_data_wherever_the_weight_is(w, v1, delta) -> None:
    x, y = make_column(seed=0)
    spike = torch.distributions.MultivariateNormal(torch.zeros_like(y), torch.eye(N, dtype=y.dtype)).log_prob(y)
    covariance = torch.eye(N, dtype=y.dtype) + v1 * x.outer(x)
    slab = torch.distributions.MultivariateNormal(torch.zeros_like(y), covariance).log_prob(y)
    fisher, gradient = x.square().mean(), (x * (x * w - y)).mean()
    found = inclusion_log_odds(fisher * w - gradient, fisher, num_data=N, v1=v1, delta=delta)
    expected = float(slab - spike) + math.log(delta / (1.0 - delta))
    assert float(found) == pytest.approx(expected, rel=1e-9)


def test_at_a_mode_of_many_data_a_weight_gains_the_rise_of_the_loss_without_it() -> None:
    """Optimal Brain Damage: N F w^2 / 2; the price of a parameter grows only as the log of N."""
    w, fisher = torch.tensor(0.3, dtype=torch.float64), torch.tensor(2.0, dtype=torch.float64)
    for num_data in (1e4, 1e6, 1e8):
        odds = float(inclusion_log_odds(fisher * w, fisher, num_data=num_data, v1=1.0, delta=0.5))
        saliency = 0.5 * num_data * 2.0 * 0.09
        assert odds == pytest.approx(saliency - 0.5 * math.log(2.0 * num_data), abs=0.1)


def test_without_data_the_odds_are_those_of_the_prior() -> None:
    nothing = torch.zeros(3)
    assert inclusion_log_odds(nothing, nothing, num_data=100, v1=1.0, delta=0.2).tolist() == pytest.approx(
        [math.log(0.25)] * 3
    )


def test_the_saliency_is_the_rise_of_the_penalised_loss_without_the_weight() -> None:
    x, y = make_column(seed=1)
    v1, fisher = 0.2, x.square().mean()
    precision = N * fisher + 1.0 / v1
    mode = x @ y / precision

    def penalised_loss(w: float) -> torch.Tensor:
        return 0.5 * (y - x * w).square().sum() + 0.5 * w**2 / v1

    rise = penalised_loss(0.0) - penalised_loss(mode)
    for w in (0.0, 0.7, float(mode)):
        pull = fisher * w - (x * (x * w - y)).mean()
        assert float(saliency(pull, fisher, num_data=N, v1=v1)) == pytest.approx(float(rise), rel=1e-9)
