"""The prior that is faded in: its gradient, its schedules, its state."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from spikeslab.compression.annealed_prior import AnnealedPrior
from spikeslab.priors import SpikeSlabGaussian

V1, DELTA, DECAY, N = 0.5, 0.01, 0.03, 40


def spike(step: int) -> float:
    return 0.01 / step


def weight(step: int) -> float:
    return min(1.0, 0.25 * (step - 1))


def prior(weights: Tensor) -> AnnealedPrior:
    return AnnealedPrior([weights], v0=spike, v1=V1, delta=DELTA, eta=weight, weight_decay=DECAY)


def penalty(beta: Tensor, step: int) -> Tensor:
    def density(v: float) -> Tensor:
        return (-beta.square() / (2 * v)).exp() / math.sqrt(2 * math.pi * v)

    log = ((1 - DELTA) * density(spike(step)) + DELTA * density(V1)).log().sum()
    eta = weight(step)
    return (1 - eta) * DECAY / 2 * beta.square().sum() - eta / N * log


@pytest.mark.parametrize("step", [1, 2, 4, 5, 9])
def test_the_gradient_is_that_of_the_penalty_of_this_step(step: int) -> None:
    beta = torch.linspace(-0.6, 0.6, 25, dtype=torch.float64, requires_grad=True)
    (expected,) = torch.autograd.grad(penalty(beta, step), beta)
    weights = beta.detach().clone()
    annealed = prior(weights)
    for done in range(1, step):
        annealed.update(done, N)
    out = torch.zeros_like(weights)
    annealed.add_gradient_([weights], [out], N)
    torch.testing.assert_close(out, expected, rtol=1e-9, atol=1e-12)
    # The library leaves constants out of the density; differences of penalties have none.
    found = annealed.penalty(N)
    weights.mul_(0.5)
    difference = penalty(0.5 * beta, step) - penalty(beta, step)
    assert annealed.penalty(N) - found == pytest.approx(difference.item(), rel=1e-6, abs=1e-9)


def test_a_state_knows_the_step() -> None:
    first, second = (prior(torch.ones(3)) for _ in range(2))
    for step in range(1, 4):
        first.update(step, N)
    second.load_state_dict(first.state_dict())
    assert (second.v0, second.eta) == (first.v0, first.eta) == (spike(4), weight(4))


def test_diagnostics_are_of_what_the_sampler_sees() -> None:
    annealed = prior(torch.tensor([0.3, -0.2, 0.1]))
    assert annealed.eta == 0.0
    found = annealed.diagnostics(N)
    assert set(found.effective_l2.values()) == {annealed.weight_decay}
    for step in range(1, 1000):
        annealed.update(step, N)
    assert annealed.eta == 1.0
    whole = SpikeSlabGaussian.diagnostics(annealed, N)
    assert annealed.diagnostics(N) == whole
