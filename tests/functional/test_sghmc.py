"""One SGHMC update against its formula."""

from __future__ import annotations

import math

import pytest
import torch

from spikeslab.functional.sghmc import sghmc, sghmc_noise_std


@pytest.mark.parametrize("foreach", [True, False])
def test_momentum_moves_first_and_takes_the_position_with_it(foreach: bool) -> None:
    params, grads, buffers, noises = ([torch.randn(3, 2), torch.randn(())] for _ in range(4))
    moved = [0.9 * b + g - 0.3 * xi for b, g, xi in zip(buffers, grads, noises, strict=True)]
    expected = [p - 0.1 * b for p, b in zip(params, moved, strict=True)]
    sghmc(params, grads, buffers, noises, lr=0.1, momentum=0.9, noise_std=0.3, foreach=foreach)
    torch.testing.assert_close(buffers, moved)
    torch.testing.assert_close(params, expected)


def test_noise_std_uses_the_lr_of_this_step() -> None:
    std = sghmc_noise_std(lr=0.5, momentum=0.8, temperature=0.3, num_data=200)
    assert std == pytest.approx(math.sqrt(2 * 0.2 * 0.3 / (200 * 0.5)))


def test_it_is_the_papers_noise_in_the_papers_units() -> None:
    # The paper: v = m v - eps grad U + sqrt(2 (1 - m) eps / tau) xi with v = -lr * buffer and eps = lr/N.
    lr, momentum, temperature, num_data = 1e-4, 0.9, 1e-3, 50_000
    std = sghmc_noise_std(lr=lr, momentum=momentum, temperature=temperature, num_data=num_data)
    assert lr * std == pytest.approx(math.sqrt(2 * 0.1 * 2e-9 / 1000), rel=1e-9)
    assert lr * std == pytest.approx(6.3e-7, rel=0.01)


def test_gradient_noise_lowers_the_friction_in_the_noise() -> None:
    lr, momentum, temperature, num_data, variance = 0.5, 0.8, 0.3, 200, 3.0
    reduced = sghmc_noise_std(
        lr=lr, momentum=momentum, temperature=temperature, num_data=num_data, gradient_noise=variance
    )
    beta = variance * (lr / num_data) / temperature / 2
    assert reduced == pytest.approx(math.sqrt(2 * (1 - momentum - beta) * temperature / (num_data * lr)), rel=1e-12)


def test_noise_is_never_below_zero_and_none_at_temperature_or_lr_zero() -> None:
    settings = {"momentum": 0.9, "num_data": 100}
    assert sghmc_noise_std(lr=0.1, temperature=1.0, gradient_noise=1e9, **settings) == 0.0
    assert sghmc_noise_std(lr=0.1, temperature=0.0, **settings) == 0.0
    assert sghmc_noise_std(lr=0.0, temperature=1.0, **settings) == 0.0
