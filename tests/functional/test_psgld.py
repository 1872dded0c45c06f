"""One preconditioned update against its formula."""

from __future__ import annotations

import math

import pytest
import torch

from spikeslab.functional.psgld import psgld, psgld_noise_std


@pytest.mark.parametrize("foreach", [True, False])
def test_drift_and_noise_have_the_same_preconditioner_made_of_the_loss_alone(foreach: bool) -> None:
    params, grads, loss_grads, noises = ([torch.randn(3, 2), torch.randn(())] for _ in range(4))
    averages = [torch.rand_like(param) for param in params]
    updated = [0.9 * v + 0.1 * h**2 for v, h in zip(averages, loss_grads, strict=True)]
    scale = [1 / (v.sqrt() + 0.01) for v in updated]
    expected = [p - 0.1 * s * g + 0.3 * s.sqrt() * xi for p, s, g, xi in zip(params, scale, grads, noises, strict=True)]
    before = [h.clone() for h in loss_grads]
    psgld(params, grads, loss_grads, averages, noises, lr=0.1, alpha=0.9, eps=0.01, noise_std=0.3, foreach=foreach)
    torch.testing.assert_close(averages, updated)
    torch.testing.assert_close(params, expected)
    torch.testing.assert_close(loss_grads, before, rtol=0, atol=0)


def test_noise_std_before_preconditioning() -> None:
    assert psgld_noise_std(lr=0.5, temperature=0.3, num_data=200) == pytest.approx(math.sqrt(2 * 0.5 * 0.3 / 200))
    assert psgld_noise_std(lr=0.5, temperature=0.0, num_data=200) == 0.0
