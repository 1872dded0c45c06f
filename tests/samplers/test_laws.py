"""The chains' exact stationary laws on a quadratic, and no noise at temperature zero.

The tests start at stationarity, so that a handful of steps is enough, and look at a million independent coordinates:
the relative standard error of a variance over n of them is sqrt(2/n), 0.14 % for n = 10^6. At five standard errors
(0.71 %) a noise whose standard deviation is wrong by 1 %, so its variance by 2 %, does not pass.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest
import torch
from scipy import linalg
from sgd_limits import network, train
from torch import Tensor, nn

import spikeslab as ss
from spikeslab.samplers import psgld as psgld_module
from spikeslab.samplers import sghmc as sghmc_module
from spikeslab.samplers import sgld as sgld_module

pytestmark = pytest.mark.usefixtures("either_path")

SIZE = 1_000_000
STEPS = 8  # if the noise is wrong, the variance must have the time to leave the right value
ERRORS = 5


def check_variance(values: Tensor, expected: float) -> None:
    """Whether the variance of independent centred normal values is the expected one, at five standard errors."""
    ratio = float(values.double().square().mean()) / expected
    tolerance = ERRORS * math.sqrt(2 / values.numel())
    assert abs(ratio - 1) < tolerance, f"variance is {ratio:.4f} of the expected one, tolerance {tolerance:.4f}"


def normal(std: float, seed: int = 0) -> Tensor:
    return std * torch.randn(SIZE, generator=torch.Generator().manual_seed(seed))


def run(sampler: ss.samplers.Sampler, weight: nn.Parameter, curvature: float, steps: int) -> None:
    """Steps on U/N = curvature w^2 / 2."""
    for _ in range(steps):
        weight.grad = curvature * weight.detach()
        sampler.step()


def sgld_variance(lr: float, temperature: float, num_data: int, curvature: float) -> float:
    return temperature / (num_data * curvature) * 2 / (2 - lr * curvature)


def sghmc_variance(lr: float, momentum: float, temperature: float, num_data: int, curvature: float) -> float:
    shape = 2 * (1 + momentum)
    return temperature / (num_data * curvature) * shape / (shape - lr * curvature)


def sghmc_covariance(lr: float, momentum: float, temperature: float, num_data: int, curvature: float) -> np.ndarray:
    """Stationary covariance of (w, buffer), from the discrete Lyapunov equation of the linear recursion."""
    transition = np.array([[1 - lr * curvature, -lr * momentum], [curvature, momentum]])
    impulse = np.array([lr, -1.0])
    noise = 2 * (1 - momentum) * temperature / (num_data * lr) * np.outer(impulse, impulse)
    return linalg.solve_discrete_lyapunov(transition, noise)


# lr * curvature is far from 0, so that the discretisation is part of what is tested; contraction is fast.
SGLD_CASES = [(0.5, 1.0, 10, 1.0), (1.5, 0.1, 1000, 1.0), (0.01, 20.0, 3, 30.0)]
SGHMC_CASES = [(0.5, 0.5, 1.0, 10, 1.0), (0.1, 0.0, 0.3, 100, 5.0), (2.0, 0.9, 1e-3, 50_000, 1.0)]


def sgld_law(lr: float, temperature: float, num_data: int, curvature: float, steps: int = STEPS) -> None:
    variance = sgld_variance(lr, temperature, num_data, curvature)
    weight = nn.Parameter(normal(math.sqrt(variance)))
    sampler = ss.SGLD([weight], lr=lr, num_data=num_data, temperature=temperature, seed=1)
    run(sampler, weight, curvature, steps)
    check_variance(weight.detach(), variance)


def sghmc_law(
    lr: float, momentum: float, temperature: float, num_data: int, curvature: float, steps: int = STEPS
) -> None:
    covariance = sghmc_covariance(lr, momentum, temperature, num_data, curvature)
    assert covariance[0, 0] == pytest.approx(sghmc_variance(lr, momentum, temperature, num_data, curvature), rel=1e-9)
    factor = np.linalg.cholesky(covariance)
    xi = normal(1.0, seed=0), normal(1.0, seed=1)
    weight = nn.Parameter(float(factor[0, 0]) * xi[0])
    buffer = float(factor[1, 0]) * xi[0] + float(factor[1, 1]) * xi[1]
    sampler = ss.SGHMC([weight], lr=lr, momentum=momentum, num_data=num_data, temperature=temperature, seed=1)
    sampler.state[weight]["momentum_buffer"] = buffer
    run(sampler, weight, curvature, steps)
    check_variance(weight.detach(), covariance[0, 0])
    check_variance(sampler.state[weight]["momentum_buffer"], covariance[1, 1])


@pytest.mark.parametrize("scheduled", [True, False], ids=["schedule", "torch's scheduler"])
@pytest.mark.parametrize(
    "rates",
    [[0.5, 0.1, 0.02, 0.005, 0.5, 0.5, 0.25], [0.5, 0.1, 0.0, 0.0, 0.0, 0.5, 0.0, 0.25], [0.5, *[0.0] * 9, 0.5, 0.5]],
    ids=["jumps", "falls to zero", "pauses"],
)
def test_sghmc_keeps_its_law_while_the_lr_falls_and_jumps(rates: list[float], scheduled: bool) -> None:
    """The covariance of (w, b) follows the exact recursion in which b is scaled by sqrt(lr_old / lr).

    While the lr is 0 nothing moves, so the law of a chain that pauses is its stationary one throughout.
    """
    momentum, temperature, num_data, curvature = 0.8, 0.5, 20, 0.7
    covariance = sghmc_covariance(rates[0], momentum, temperature, num_data, curvature)
    factor = np.linalg.cholesky(covariance)
    xi = normal(1.0, seed=0), normal(1.0, seed=1)
    weight = nn.Parameter(float(factor[0, 0]) * xi[0])
    lr = (lambda k: rates[k - 1]) if scheduled else rates[0]
    sampler = ss.SGHMC([weight], lr=lr, momentum=momentum, num_data=num_data, temperature=temperature, seed=1)
    sampler.state[weight]["momentum_buffer"] = float(factor[1, 0]) * xi[0] + float(factor[1, 1]) * xi[1]
    stationary, old = covariance, rates[0]
    for new in rates:
        if not scheduled:
            sampler.param_groups[0]["lr"] = new
        run(sampler, weight, curvature, 1)
        if new:
            carried = momentum * math.sqrt(old / new)
            transition = np.array([[1 - new * curvature, -new * carried], [curvature, carried]])
            impulse = np.array([new, -1.0])
            noise = 2 * (1 - momentum) * temperature / (num_data * new) * np.outer(impulse, impulse)
            covariance = transition @ covariance @ transition.T + noise
            old = new
        check_variance(weight.detach(), covariance[0, 0])
        check_variance(sampler.state[weight]["momentum_buffer"], covariance[1, 1])
    assert covariance[0, 0] < 2 * temperature / (num_data * curvature), "a jump of the lr does not heat the weights"
    if {*rates} == {0.5, 0.0}:
        np.testing.assert_allclose(covariance, stationary, rtol=1e-9)


def test_a_chain_that_begins_at_lr_zero_begins_without_momentum() -> None:
    model = network()
    sampler = ss.SGHMC(model.parameters(), lr=lambda k: 0.0 if k < 4 else 0.1, num_data=100, seed=1)
    before = [param.detach().clone() for param in model.parameters()]
    train(model, sampler, steps=3)
    assert all(torch.equal(param, old) for param, old in zip(model.parameters(), before, strict=True))
    assert not any(state.get("momentum_buffer", torch.zeros(1)).any() for state in sampler.state.values())
    train(model, sampler, steps=1)
    assert all(param.isfinite().all() for param in model.parameters())


def psgld_law(lr: float, temperature: float, num_data: int, curvature: float, root: float, steps: int = STEPS) -> None:
    """With alpha = 1 the preconditioner stays: PSGLD is SGLD with lr * G, and so is its stationary law."""
    eps = 0.01
    scaled = lr / (root + eps)
    variance = sgld_variance(scaled, temperature, num_data, curvature)
    weight = nn.Parameter(normal(math.sqrt(variance)))
    sampler = ss.PSGLD([weight], lr=lr, alpha=1.0, eps=eps, num_data=num_data, temperature=temperature, seed=1)
    sampler.state[weight]["square_avg"] = torch.full((SIZE,), root**2)
    run(sampler, weight, curvature, steps)
    check_variance(weight.detach(), variance)


@pytest.mark.parametrize(("lr", "temperature", "num_data", "curvature"), SGLD_CASES)
def test_sgld_has_its_exact_stationary_variance(lr, temperature, num_data, curvature) -> None:
    sgld_law(lr, temperature, num_data, curvature)


@pytest.mark.parametrize(("lr", "momentum", "temperature", "num_data", "curvature"), SGHMC_CASES)
def test_sghmc_has_its_exact_stationary_covariance(lr, momentum, temperature, num_data, curvature) -> None:
    sghmc_law(lr, momentum, temperature, num_data, curvature)


@pytest.mark.parametrize("root", [0.2, 3.0])
def test_psgld_has_its_exact_stationary_variance_for_a_fixed_preconditioner(root: float) -> None:
    psgld_law(0.5 * root, 0.7, 50, 1.0, root)


@pytest.mark.parametrize("factor", [0.99, 1.01])
@pytest.mark.parametrize(
    ("module", "name", "law", "case"),
    [
        (sgld_module, "sgld_noise_std", sgld_law, SGLD_CASES[0]),
        (sghmc_module, "sghmc_noise_std", sghmc_law, SGHMC_CASES[0]),
        (psgld_module, "psgld_noise_std", psgld_law, (0.1, 0.7, 50, 1.0, 0.2)),
    ],
)
def test_a_noise_constant_wrong_by_one_percent_is_caught(
    monkeypatch: pytest.MonkeyPatch, factor: float, module: object, name: str, law: Callable[..., None], case: tuple
) -> None:
    std: Callable[..., float] = getattr(module, name)
    monkeypatch.setattr(module, name, lambda **settings: factor * std(**settings))
    with pytest.raises(AssertionError, match="variance is"):
        law(*case)


def test_prior_and_loss_are_tempered_together() -> None:
    """With an L2 prior of strength s the target is exp(-U/T) with curvature lambda + s."""
    lr, temperature, num_data, curvature, strength = 0.5, 0.4, 20, 0.6, 0.7
    variance = sgld_variance(lr, temperature, num_data, curvature + strength)
    weight = nn.Parameter(normal(math.sqrt(variance)))
    sampler = ss.SGLD(
        [weight], lr=lr, num_data=num_data, temperature=temperature, prior=ss.L2([weight], strength), seed=1
    )
    run(sampler, weight, curvature, STEPS)
    check_variance(weight.detach(), variance)


def test_gradient_noise_is_not_injected_twice() -> None:
    """With mini-batch noise of variance V in the gradient of U and gradient_noise=V the law is the same."""
    lr, temperature, num_data, curvature, noise = 0.5, 1.0, 10, 1.0, 15.0
    variance = sgld_variance(lr, temperature, num_data, curvature)
    weight = nn.Parameter(normal(math.sqrt(variance)))
    sampler = ss.SGLD([weight], lr=lr, num_data=num_data, temperature=temperature, gradient_noise=noise, seed=1)
    for step in range(STEPS):
        weight.grad = curvature * weight.detach() + normal(math.sqrt(noise) / num_data, seed=100 + step)
        sampler.step()
    check_variance(weight.detach(), variance)


def test_noise_follows_the_lr_of_each_step_and_not_of_the_first() -> None:
    """From zero, with no gradient, the variance is the sum of 2 lr_k T / N over the steps."""
    weight = nn.Parameter(torch.zeros(SIZE))
    sampler = ss.SGLD(
        [weight],
        lr=ss.schedules.geometric(1.0, 0.5),
        num_data=10,
        temperature=ss.schedules.geometric(1.0, 0.25),
        seed=1,
    )
    for _ in range(3):
        weight.grad = torch.zeros(SIZE)
        sampler.step()
    check_variance(weight.detach(), sum(2 * 0.5**k * 0.25**k / 10 for k in range(3)))


def test_noise_follows_a_torch_lr_scheduler() -> None:
    weight = nn.Parameter(torch.zeros(SIZE))
    sampler = ss.SGHMC([weight], lr=1.0, momentum=0.0, num_data=10, seed=1)
    scheduler = torch.optim.lr_scheduler.ExponentialLR(sampler, 0.5)
    for _ in range(3):
        weight.grad = torch.zeros(SIZE)
        sampler.step()
        scheduler.step()
    check_variance(weight.detach(), sum(2 * 0.5**k / 10 for k in range(3)))


@pytest.mark.parametrize("shape", [(10, 100_000), (100, 10, 10, 100)])
def test_noise_of_neighbouring_coordinates_and_steps_is_uncorrelated(shape) -> None:
    weight = nn.Parameter(torch.zeros(shape))
    if weight.ndim == 4:
        weight = nn.Parameter(torch.zeros(shape).to(memory_format=torch.channels_last))
    sampler = ss.SGLD([weight], lr=0.5, num_data=1, seed=1)
    draws = []
    for _ in range(3):
        old = weight.detach().clone()
        weight.grad = torch.zeros_like(weight)
        sampler.step()
        draws.append((weight.detach() - old).reshape(-1))
    bound = ERRORS / math.sqrt(SIZE)
    for first, second in [(0, 1), (0, 2), (1, 2)]:
        assert abs(float((draws[first] * draws[second]).mean())) < bound
    for lag in (1, 2, 8, 10, 100):
        assert abs(float((draws[0][lag:] * draws[0][:-lag]).mean())) < bound
    assert abs(float(draws[0].mean())) < bound


# ---- temperature zero ------------------------------------------------------------------------------------------------


def chain_of(cls, seed: int, temperature: float) -> list[Tensor]:
    model = network()
    sampler = cls(model.parameters(), lr=0.1, num_data=100, temperature=temperature, seed=seed)
    train(model, sampler, steps=3)
    return [param.detach() for param in model.parameters()]


@pytest.mark.usefixtures("either_path")
@pytest.mark.parametrize("cls", [ss.SGLD, ss.SGHMC, ss.PSGLD])
def test_temperature_zero_draws_no_noise(cls) -> None:
    for temperature, same in ((0.0, True), (1e-6, False)):
        first, second = (chain_of(cls, seed, temperature) for seed in (1, 2))
        assert all(torch.equal(a, b) for a, b in zip(first, second, strict=True)) is same


@pytest.mark.parametrize("cls", [ss.SGLD, ss.SGHMC, ss.PSGLD])
def test_at_temperature_zero_the_source_of_noise_is_not_asked(cls, monkeypatch: pytest.MonkeyPatch) -> None:
    model = network()
    sampler = cls(model.parameters(), lr=0.1, num_data=100, temperature=0.0, fused=False)
    monkeypatch.setattr(sampler.noise, "draw", lambda *_: pytest.fail("noise was drawn"))
    train(model, sampler, steps=2)
