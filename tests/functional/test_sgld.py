"""One SGLD update against its formula."""

from __future__ import annotations

import math

import pytest
import torch

from spikeslab.functional.sgld import sgld, sgld_noise_std


@pytest.mark.parametrize("foreach", [True, False])
def test_update_is_the_formula(foreach: bool) -> None:
    params, grads, noises = ([torch.randn(3, 2), torch.randn(())] for _ in range(3))
    expected = [p - 0.1 * g + 0.3 * xi for p, g, xi in zip(params, grads, noises, strict=True)]
    sgld(params, grads, noises, lr=0.1, noise_std=0.3, foreach=foreach)
    torch.testing.assert_close(params, expected)


@pytest.mark.parametrize("foreach", [True, False])
def test_update_changes_neither_gradients_nor_noise(foreach: bool) -> None:
    params, grads, noises = [torch.randn(4)], [torch.randn(4)], [torch.randn(4)]
    before = grads[0].clone(), noises[0].clone()
    sgld(params, grads, noises, lr=0.1, noise_std=0.3, foreach=foreach)
    assert torch.equal(grads[0], before[0])
    assert torch.equal(noises[0], before[1])


def test_noise_std_is_that_of_the_langevin_equation_with_lr_over_n() -> None:
    assert sgld_noise_std(lr=0.5, temperature=0.3, num_data=200) == pytest.approx(math.sqrt(2 * 0.5 * 0.3 / 200))


def test_gradient_noise_takes_the_place_of_injected_noise() -> None:
    lr, temperature, num_data, variance = 0.5, 0.3, 200, 100.0
    reduced = sgld_noise_std(lr=lr, temperature=temperature, num_data=num_data, gradient_noise=variance)
    full = sgld_noise_std(lr=lr, temperature=temperature, num_data=num_data)
    # beta = V eta tau / 2 with eta = lr/N: the injected variance is 2 eta T (1 - beta).
    beta = variance * (lr / num_data) / temperature / 2
    assert reduced**2 == pytest.approx(full**2 * (1 - beta), rel=1e-12)
    # ... so that together with the mini-batch's own noise lr^2 V / N^2 the variance is what it should be.
    assert reduced**2 + (lr / num_data) ** 2 * variance == pytest.approx(full**2, rel=1e-12)


def test_noise_is_never_below_zero_and_none_at_temperature_zero() -> None:
    assert sgld_noise_std(lr=0.5, temperature=0.3, num_data=200, gradient_noise=1e9) == 0.0
    assert sgld_noise_std(lr=0.5, temperature=0.0, num_data=200) == 0.0
    assert sgld_noise_std(lr=0.0, temperature=1.0, num_data=200) == 0.0
