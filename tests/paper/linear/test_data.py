from __future__ import annotations

import math

import pytest
import torch

from spikeslab.paper.linear import simulate_linear


def test_the_paper_s_sizes_and_signals() -> None:
    data = simulate_linear(seed=3)
    assert data.x_train.shape == (100, 1000)
    assert data.y_train.shape == (100,)
    assert data.x_test.shape == (50, 1000)
    assert data.beta.count_nonzero() == 3
    assert torch.allclose(data.beta[:3], torch.tensor([3.0, 2.0, 1.0]), atol=1.0)
    assert data.covariance[0, :3].tolist() == pytest.approx([1.0, 0.6, 0.36])


def test_signals_covariance_and_noise_have_the_stated_laws() -> None:
    signals = torch.stack([simulate_linear(seed, rows=1, variables=3, test_rows=1).beta for seed in range(2000)])
    assert torch.allclose(signals.mean(0), torch.tensor([3.0, 2.0, 1.0]), atol=0.02)
    assert torch.allclose(signals.std(0), torch.full((3,), 0.2), atol=0.015)
    data = simulate_linear(seed=0, rows=100_000, variables=4)
    assert torch.allclose(data.x_train.T.cov(), data.covariance, atol=0.03)
    noise = data.y_train - data.x_train @ data.beta
    assert noise.var().item() == pytest.approx(3.0, rel=0.02)


def test_population_mse_is_what_many_new_rows_give() -> None:
    data = simulate_linear(seed=1, rows=10, variables=5, test_rows=400_000)
    guess, intercept = torch.tensor([2.5, 2.5, 0.0, 0.3, -0.2]), 0.5
    errors = data.y_test - data.x_test @ guess - intercept
    standard_error = errors.square().std().item() / math.sqrt(len(errors))
    exact = data.population_mse(guess, intercept)
    assert errors.square().mean().item() == pytest.approx(exact, abs=4.0 * standard_error)


def test_the_seed_decides_and_the_global_generator_is_left_alone() -> None:
    torch.manual_seed(5)
    before = torch.get_rng_state()
    first, again, other = simulate_linear(7), simulate_linear(7), simulate_linear(8)
    assert torch.equal(first.x_train, again.x_train)
    assert not torch.equal(first.x_train, other.x_train)
    assert torch.equal(torch.get_rng_state(), before)


def test_too_few_variables() -> None:
    with pytest.raises(ValueError, match=r"^variables must be an integer >= 3, but got 2\.$"):
        simulate_linear(0, variables=2)
