"""The thermometers read T on a Gaussian target at stationarity, and a wrong noise constant is seen."""

from __future__ import annotations

import math

import pytest
import torch
from torch import nn

import spikeslab as ss
from spikeslab.metrics.temperature import ConfigurationalTemperature, Temperature, kinetic_temperature

SIZE, N, T, M, LR, CURVATURE = 50_000, 500, 0.02, 0.9, 0.3, 1.0
BIAS = 2 * (1 + M) / (2 * (1 + M) - LR * CURVATURE)
"""Both readings are exact up to this factor, here 1.09."""


class Weights(nn.Module):
    """A vector of independent coordinates, drawn from the stationary law of the chain."""

    def __init__(self, size: int = SIZE, seed: int = 0) -> None:
        super().__init__()
        std = math.sqrt(T / (N * CURVATURE) * BIAS)
        self.w = nn.Parameter(std * torch.randn(size, generator=torch.Generator().manual_seed(seed)))


def chain(
    model: Weights, steps: int, *, noise: float = 1.0, each=lambda: None, **settings: object
) -> ss.samplers.Sampler:
    """Steps of SGHMC at temperature T; ``noise`` multiplies the variance of what is injected."""
    options = {"lr": LR, "momentum": M, "num_data": N, "temperature": noise * T, "seed": 1} | settings
    sampler = ss.SGHMC(model.parameters(), **options)
    for _ in range(steps):
        model.w.grad = CURVATURE * model.w.detach()
        each()
        sampler.step()
    return sampler


def test_kinetic_temperature_is_exact_up_to_its_known_bias():
    model = Weights()
    reading = kinetic_temperature(model, chain(model, 100))["w"]
    assert reading.agrees(T * BIAS)
    assert reading.error == pytest.approx(reading.value * math.sqrt(2 / SIZE))
    assert not reading.agrees(T), "the bias of 9 % must be visible here, or the test has no power"


@pytest.mark.parametrize("momentum", [0.0, 0.5])
def test_kinetic_temperature_at_a_small_step_reads_the_temperature(momentum):
    model = Weights()
    reading = kinetic_temperature(model, chain(model, 30, lr=1e-4, momentum=momentum))["w"]
    assert reading.agrees(T)


def test_kinetic_temperature_sees_a_wrong_noise_constant():
    model = Weights()
    reading = kinetic_temperature(model, chain(model, 100, noise=2.0))["w"]
    assert reading.value / T == pytest.approx(2 * BIAS, rel=0.04)


def test_kinetic_temperature_sees_the_noise_of_mini_batches():
    model = Weights()
    variance = 0.2 * 2 * (1 - M) * T / (N * LR)  # a fifth of what is injected
    generator = torch.Generator().manual_seed(3)

    def disturb() -> None:
        model.w.grad.add_(math.sqrt(variance) * torch.randn(SIZE, generator=generator))

    excess = variance * N * LR / (2 * (1 - M) * T)
    reading = kinetic_temperature(model, chain(model, 100, each=disturb))["w"]
    assert excess == pytest.approx(0.2)
    assert reading.value / (T * BIAS) == pytest.approx(1 + excess, rel=0.03)


def test_a_step_longer_than_the_spike_is_wide_reads_hot():
    """What the doctor says of the spike: at lr = 0.3 its weights jump across zero, at a small lr they do not."""

    def reading(lr: float, steps: int) -> Temperature:
        model = Weights(5_000)
        prior = ss.SpikeSlab([model.w], v0=0.01, v1=1.0, rho=0.0, adapt=ss.Fixed())
        sampler = ss.SGHMC(model.parameters(), lr=lr, momentum=M, num_data=N, temperature=T, prior=prior, seed=1)
        for _ in range(steps):
            model.w.grad = torch.zeros_like(model.w)
            sampler.step()
        return kinetic_temperature(model, sampler)["w"]

    assert reading(0.3, 200).value > 10 * T
    assert reading(1e-7, 300).agrees(T)


def test_kinetic_temperature_leaves_out_pruned_weights():
    model = Weights(1000)
    sampler = chain(model, 30, lr=1e-4)
    before = kinetic_temperature(model, sampler)["w"]
    with torch.no_grad():
        model.w[:500] = 0.0
        sampler.state[model.w]["momentum_buffer"][:500] = 1e6
    reading = kinetic_temperature(model, sampler)["w"]
    assert reading.value == pytest.approx(before.value, rel=0.3)
    assert reading.error / reading.value == pytest.approx(math.sqrt(2 / 500))


def test_samplers_without_momenta_have_no_kinetic_temperature():
    model = Weights(10)
    sampler = ss.SGLD(model.parameters(), lr=0.1, num_data=N)
    model.w.grad = model.w.detach().clone()
    sampler.step()
    assert kinetic_temperature(model, sampler) == {}


def configurational(noise: float = 1.0, steps: int = 400, **settings: object) -> Temperature:
    model = Weights(2_000)
    sampler = ss.SGHMC(
        model.parameters(), **{"lr": LR, "momentum": M, "num_data": N, "temperature": noise * T, "seed": 1} | settings
    )
    thermometer = ConfigurationalTemperature(model, sampler)
    for _ in range(steps):
        model.w.grad = CURVATURE * model.w.detach()
        thermometer.update()
        sampler.step()
    return thermometer.result()["w"]


def test_configurational_temperature_is_that_of_the_law():
    reading = configurational()
    assert reading.agrees(T * BIAS)
    assert reading.error < 0.05 * T


def test_configurational_temperature_sees_a_wrong_noise_constant():
    reading = configurational(noise=2.0)
    assert not reading.agrees(T * BIAS)
    assert reading.value / (T * BIAS) == pytest.approx(2.0, rel=0.1)


def test_configurational_temperature_of_a_chain_that_hardly_moves_reads_low():
    assert configurational(lr=1e-4, steps=50).value < 0.2 * T


def test_configurational_temperature_has_the_prior_and_weight_decay_in_it():
    """With a gradient of zero all of U is the prior: a Gaussian, whose chain has the same law."""
    model = Weights(2_000)
    sampler = ss.SGHMC(model.parameters(), lr=LR, momentum=M, num_data=N, temperature=T, weight_decay=CURVATURE, seed=1)
    thermometer = ConfigurationalTemperature(model, sampler)
    for _ in range(400):
        model.w.grad = torch.zeros_like(model.w)
        thermometer.update()
        sampler.step()
    assert thermometer.result()["w"].agrees(T * BIAS)


def test_energy_gradients_are_what_the_next_step_moves_along(model, batch, make_prior):
    sampler = ss.SGLD(
        model.parameters(), lr=0.1, num_data=100, temperature=0.0, prior=make_prior(model), weight_decay=0.3
    )
    nn.functional.cross_entropy(model(batch[0]), batch[1]).backward()
    moves = [(param, param.detach().clone(), gradient) for _, param, gradient in sampler.energy_gradients()]
    sampler.step()
    assert len(moves) == 4
    for param, before, gradient in moves:
        torch.testing.assert_close(param, before - 0.1 * gradient)


def test_no_reading_before_the_first_step():
    model = Weights(10)
    sampler = ss.SGHMC(model.parameters(), lr=LR, num_data=N)
    assert kinetic_temperature(model, sampler) == {}
    assert ConfigurationalTemperature(model, sampler).result() == {}
