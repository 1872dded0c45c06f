"""Rule for the scales of a prior that were not given."""

from __future__ import annotations

import copy
import math

import pytest
import torch
from torch import nn

import spikeslab as ss
from spikeslab.functional import mixture
from spikeslab.priors import GroupSpikeSlab, SpikeSlabGaussian
from spikeslab.priors.scales import (
    HORIZON,
    SPARSITY,
    Surroundings,
    choose_omega,
    choose_scales,
    find_threshold,
    fit_slab,
    highest,
    slab_variance,
    spike_scale,
)

N, LR, DECAY, STEPS = 3000, 0.05, 1e-3, 400
MISSING = (
    r"^prior must have scales, but no sampler has taken it yet: give it to a sampler, which chooses them, or give v0"
)
TOLD = rf"its latents move over {HORIZON:,} steps\. Give steps, or adapt\."


def make(seed: int = 0, *, sampler: type = ss.SGHMC, prior: type = ss.SpikeSlab, **settings):
    """Return a model, its weights, a prior without scales and the sampler that has taken it."""
    torch.manual_seed(seed)
    model = nn.Sequential(nn.Linear(12, 20), nn.ReLU(), nn.Linear(20, 3))
    weights = ss.select_weights(model, "*.weight")
    made = prior(weights, **{"steps": STEPS} | settings)
    taken = sampler(model.parameters(), lr=LR, num_data=N, temperature=0.1, weight_decay=DECAY, prior=made, seed=seed)
    return model, weights, made, taken


def train(model: nn.Module, sampler: ss.SGHMC, pruner: ss.Pruner | None = None, steps: int = 1) -> None:
    x = torch.randn(16, 12, generator=torch.Generator().manual_seed(1))
    for _ in range(steps):
        sampler.zero_grad()
        model(x).square().mean().backward()
        sampler.step()
        if pruner is not None:
            pruner.step()


@pytest.mark.parametrize("size", [1, 9, 576])
def test_the_spike_is_even_with_the_slab_at_the_size_below_which_units_go(size: int) -> None:
    v0 = spike_scale(0.05, v1=1.0, delta=0.4, size=size)
    norms = torch.tensor([0.04, 0.05, 0.06]) * size**0.5
    (rho,) = mixture.rho([norms], v0=v0, v1=1.0, sigma=1.0, deltas=[0.4], sizes=[size])
    assert float(rho[1]) == pytest.approx(0.5, abs=1e-4)
    assert rho[0] < 0.5 < rho[2]


def test_a_slab_that_is_given_decides_the_spike() -> None:
    sizes = [torch.linspace(0.001, 0.1, 100)]
    assert choose_scales(sizes, None, Surroundings(10**6, LR, DECAY), 0.5, v1=3.0) == pytest.approx(
        (spike_scale(0.05, 3.0, 0.5), 3.0)
    )
    prior = ss.SpikeSlab([nn.Parameter(sizes[0].clone())], v1=3.0, steps=10)
    prior.attach(10**6, LR, DECAY)
    prior.aim(0.5)
    assert (prior.v0, prior.v1) == pytest.approx((spike_scale(0.05, 3.0, 0.5), 3.0))


def test_the_slab_fits_the_weights_that_are_left_but_for_little_data() -> None:
    many, few = Surroundings(10**6, LR, DECAY), Surroundings(20, LR, DECAY)
    weights = [torch.ones(5), torch.tensor([-2.0, 2.0, 2.0, 2.0, 2.0])]
    assert fit_slab(weights, 0.5, many) == 8.0
    assert fit_slab(weights, 0.999, many) == fit_slab([torch.zeros(10)], 0.5, many), "none is above the threshold"
    assert slab_variance(20, 10 * DECAY) == pytest.approx(5.0)
    assert fit_slab([weight / 2 for weight in weights], 0.5, few) == pytest.approx(5.0)


def test_the_spike_is_no_narrower_than_a_step_and_no_wider_than_a_quarter_of_the_slab() -> None:
    sizes = [torch.rand(400)]
    few, many = Surroundings(20, LR, DECAY), Surroundings(10**4, LR, DECAY)
    assert choose_scales([sizes[0] / 100], None, few, 0.5).v0 == pytest.approx(math.sqrt(LR / 20))
    assert choose_scales(sizes, None, many, 0.5).v0 == pytest.approx(math.sqrt(slab_variance(10**4, DECAY)) / 4)
    assert slab_variance(N, 0.0) == slab_variance(N, 5e-4)


def test_the_threshold_is_the_quantile_of_all_layers_together() -> None:
    layers = [torch.tensor([1.0, -3.0]), torch.tensor([[-2.0, 4.0], [5.0, 6.0]])]
    assert [find_threshold(layers, share) for share in (0.0, 0.5, 1.0)] == [1.0, 3.0, 6.0]


@pytest.mark.parametrize(("steps", "total"), [(1, 1.0), (50, 0.25), (20_000, 1.0)])
def test_omega_has_its_sum_over_the_run(steps: int, total: float) -> None:
    omega = choose_omega(steps, total)
    assert math.fsum(omega(step) for step in range(1, steps + 1)) == pytest.approx(total)


def test_the_highest_lr_is_found_behind_a_warmup() -> None:
    assert highest(ss.cosine(0.1, 1000, warmup=200), 1000) == pytest.approx(0.1, rel=1e-3)


def test_a_prior_takes_its_numbers_from_sampler_and_pruner() -> None:
    model, weights, prior, _ = make()
    sizes = [weight.detach().clone() for weight in weights.values()]
    around = Surroundings(N, LR, DECAY)
    assert (prior.v0, prior.v1) == pytest.approx(choose_scales(sizes, None, around, SPARSITY))
    pruner = ss.Pruner(weights, ss.cubic_sparsity(0.5, 10), network=model, prior=prior)
    share = pruner.zeros(10) / pruner.units
    assert share == pytest.approx(0.5 * 323 / 300, abs=0.002), "half of the network is more of its weights"
    assert (prior.v0, prior.v1) == pytest.approx(choose_scales(sizes, None, around, share))
    assert prior.v1 == pytest.approx(1 / (N * DECAY))
    assert list(prior.delta.values()) == pytest.approx([1 - share] * 2)
    assert all(bool((rho == 1).all()) for rho in prior.rho.values())
    assert f"v0={prior.v0:.4g}, v1={prior.v1:.4g}, delta={1 - share:.4g}, rho=1" in repr(prior)
    assert prior.latents()["v0"] == prior.v0


def test_the_prior_begins_as_the_weight_decay() -> None:
    model, _weights, _, sampler = make()
    twin = copy.deepcopy(model)
    plain = ss.SGHMC(twin.parameters(), lr=LR, num_data=N, temperature=0.1, weight_decay=DECAY, seed=0)
    train(model, sampler)
    train(twin, plain)
    for name, parameter in twin.named_parameters():
        torch.testing.assert_close(model.get_parameter(name), parameter, msg=name)


@pytest.mark.parametrize("adapt", [None, ss.Marginal(), ss.Fixed()])
def test_scales_are_those_of_the_weights_before_the_first_step_and_then_stay(adapt) -> None:
    model, weights, prior, sampler = make(adapt=adapt)
    with torch.no_grad():
        for weight in weights.values():
            weight.mul_(0.5)  # a network that is loaded after the sampler was made
    before = prior.v0
    train(model, sampler)
    chosen = prior.v0
    assert chosen < before
    prior.aim(0.3)
    train(model, sampler, steps=3)
    assert prior.v0 == chosen


@pytest.mark.parametrize("given", [{"v0": 0.01}, {"v1": 2.0}, {"v0": 0.01, "v1": 2.0}, {"delta": 0.3, "rho": 0.7}])
def test_what_is_given_stays(given: dict[str, float]) -> None:
    _, weights, prior, _ = make(**given)
    ss.Pruner(weights, 0.6, prior=prior)
    found = {
        "v0": prior.v0,
        "v1": prior.v1,
        "delta": prior.delta["0.weight"],
        "rho": float(prior.rho["0.weight"][0, 0]),
    }
    assert {name: found[name] for name in given} == pytest.approx(given)


def test_a_gaussian_spike_has_the_same_standard_deviation() -> None:
    laplace, gaussian = make()[2], make(prior=SpikeSlabGaussian)[2]
    assert math.sqrt(gaussian.v0) == pytest.approx(math.sqrt(2.0) * laplace.v0)
    assert gaussian.v1 == laplace.v1


def test_a_group_prior_takes_the_narrowest_spike_of_its_layers() -> None:
    _, weights, prior, _ = make(prior=GroupSpikeSlab)
    norms = [weight.detach().norm(dim=1) for weight in weights.values()]
    around = Surroundings(N, LR, DECAY)
    each = [choose_scales([n], [w.shape[1]], around, SPARSITY).v0 for n, w in zip(norms, weights.values(), strict=True)]
    assert prior.v0 == pytest.approx(min(each))
    assert each[0] != each[1]


def test_a_frozen_pruner_conditions_its_prior() -> None:
    model, weights, prior, sampler = make()
    pruner = ss.Pruner(weights, ss.cubic_sparsity(0.5, 4), prior=prior, freeze_at=6)
    train(model, sampler, pruner, steps=5)
    assert pruner.mode == "projected"
    assert prior.adapt.learns
    train(model, sampler, pruner)
    assert pruner.mode == "masked"
    assert not prior.adapt.learns
    assert all(torch.equal(prior.rho[name] == 1, weight != 0) for name, weight in weights.items())


def test_a_resumed_chain_has_the_scales_that_it_began_with() -> None:
    model, _, prior, sampler = make()
    train(model, sampler, steps=3)
    other, _, again, resumed = make(seed=1)
    other.load_state_dict(model.state_dict())
    assert again.v0 != prior.v0
    assert again.settings_dict() == prior.settings_dict() | {"sigma": 1.0}
    resumed.load_state_dict(sampler.state_dict())
    assert (again.v0, again.v1, again.delta) == (prior.v0, prior.v1, prior.delta)
    train(model, sampler, steps=3)
    train(other, resumed, steps=3)
    for name, parameter in model.named_parameters():
        assert torch.equal(other.get_parameter(name), parameter), name


def test_without_a_length_the_horizon_is_told_once() -> None:
    weights = {"weight": nn.Linear(3, 2).weight}
    with pytest.warns(ss.SpikeSlabWarning, match=TOLD) as told:
        prior = ss.SpikeSlab(weights)
    assert len(told) == 1
    assert prior.adapt == ss.SA(choose_omega(HORIZON))


def test_a_prior_without_a_sampler_has_no_scales() -> None:
    prior = ss.SpikeSlab({"weight": nn.Linear(3, 2).weight}, steps=10)
    assert repr(prior).startswith("SpikeSlab(v0=None, v1=None, delta=0.1, rho=1, adapt=")
    for wants in (lambda: prior.v0, lambda: prior.kappa, lambda: prior.penalty()):
        with pytest.raises(ValueError, match=MISSING):
            wants()
