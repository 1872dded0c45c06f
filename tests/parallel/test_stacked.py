"""Stacked chains: each is the chain that would run alone."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import spikeslab as ss
from spikeslab.kernels.noise import Noise
from spikeslab.likelihoods import StackedGaussianLikelihood
from spikeslab.parallel.stacked import StackedModel
from spikeslab.priors import StackedSpikeSlab

CHAINS, ROWS, NUM_DATA = 3, 8, 40
SETTINGS = {"v0": 0.1, "v1": 2.0, "delta": 0.3, "sigma": 1.5, "kappa": (0.7, 0.2)}
ADAPTATIONS = {
    "SA": ss.SA(ss.polynomial(0.5, power=0.6)),
    "EM": ss.EM(),
    "Fixed": ss.Fixed(),
    "Marginal": ss.Marginal(ss.polynomial(0.5, power=0.6)),
}


def network(seed: int) -> nn.Sequential:
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(4, 5), nn.ReLU(), nn.Linear(5, 1)).double()


class SliceOfNoise(Noise):
    """What the stacked sampler draws, cut down to one chain."""

    def __init__(self, seed: int, chain: int) -> None:
        super().__init__(seed)
        self.chain = chain

    def draw(self, params: list[Tensor], streams: list[int] | None = None) -> list[Tensor]:
        stacked = [torch.empty(CHAINS, *param.shape, dtype=param.dtype) for param in params]
        return [noise[self.chain].clone() for noise in super().draw(stacked)]


def batches(steps: int) -> list[tuple[Tensor, Tensor]]:
    generator = torch.Generator().manual_seed(5)
    x = torch.randn(steps, CHAINS, ROWS, 4, dtype=torch.float64, generator=generator)
    return [(inputs, inputs.sum(-1, keepdim=True).sin() * (1.0 + torch.arange(CHAINS)).view(-1, 1, 1)) for inputs in x]


def sampler_of(kind: str, model: nn.Module, prior: ss.priors.Prior) -> ss.samplers.Sampler:
    settings = {"num_data": NUM_DATA, "temperature": 0.5, "weight_decay": 1e-3, "prior": prior, "seed": 3}
    if kind == "SGLD":
        return ss.SGLD(model.parameters(), lr=1e-3, fused=False, **settings)
    return ss.SGHMC(model.parameters(), lr=1e-3, momentum=0.9, fused=False, **settings)


def stacked_run(kind: str, settings: dict, steps: int) -> tuple[StackedModel, StackedSpikeSlab, ss.samplers.Sampler]:
    model = StackedModel([network(seed) for seed in range(CHAINS)])
    prior = StackedSpikeSlab(ss.select_weights(model, "*.weight"), **settings)
    likelihood = StackedGaussianLikelihood(prior)
    sampler = sampler_of(kind, model, prior)
    for x, y in batches(steps):
        sampler.zero_grad()
        likelihood(model(x), y).backward()
        sampler.step()
    return model, prior, sampler


@pytest.mark.parametrize("kind", ["SGLD", "SGHMC"])
@pytest.mark.parametrize("adapt", ADAPTATIONS)
@pytest.mark.parametrize("coupling", ["conjugate", "independent", "fixed"])
def test_each_chain_is_the_one_that_runs_alone(kind, adapt, coupling):
    for extra in ({}, {"sigma_average": "variance", "sigma_in_rho": adapt == "Marginal", "learn_delta": False}):
        settings = SETTINGS | {"adapt": ADAPTATIONS[adapt], "sigma_coupling": coupling} | extra
        model, prior, _ = stacked_run(kind, settings, steps=6)
        for chain in range(CHAINS):
            alone = network(chain)
            own = ss.SpikeSlab(ss.select_weights(alone, "*.weight"), **settings)
            likelihood = ss.GaussianLikelihood(own)
            sampler = sampler_of(kind, alone, own)
            sampler.noise = SliceOfNoise(3, chain)
            for x, y in batches(6):
                sampler.zero_grad()
                likelihood(alone(x[chain]), y[chain]).backward()
                sampler.step()
            for name, tensor in alone.state_dict().items():
                torch.testing.assert_close(model.chain(chain).state_dict()[name], tensor, rtol=1e-10, atol=1e-12)
            assert float(prior.sigma[chain]) == pytest.approx(own.sigma, rel=1e-10)
            assert float(prior.penalties(NUM_DATA)[chain]) == pytest.approx(own.penalty(NUM_DATA), rel=1e-9)
            for name, delta in own.delta.items():
                assert float(prior.delta[f"network.{name}"][chain]) == pytest.approx(delta, rel=1e-10)
                for latent in ("rho", "kappa"):
                    stacked, single = getattr(prior, latent)[f"network.{name}"], getattr(own, latent)[name]
                    pairs = [(stacked, single)] if latent == "rho" else zip(stacked, single, strict=True)
                    for many, one in pairs:
                        torch.testing.assert_close(many[chain], one, rtol=1e-9, atol=1e-12)


def test_a_diverged_chain_is_named_and_harms_no_other():
    settings = SETTINGS | {"adapt": ADAPTATIONS["SA"], "sigma_coupling": "conjugate"}
    expected, expected_prior, _ = stacked_run("SGHMC", settings, steps=6)
    model = StackedModel([network(seed) for seed in range(CHAINS)])
    prior = StackedSpikeSlab(ss.select_weights(model, "*.weight"), **settings)
    likelihood = StackedGaussianLikelihood(prior)
    sampler = sampler_of("SGHMC", model, prior)
    sampler.param_groups[0]["check_finite"] = False
    model.check_finite()
    for step, (x, y) in enumerate(batches(6)):
        if step == 2:
            x[1, 0, 0] = torch.inf
        sampler.zero_grad()
        likelihood(model(x), y).backward()
        sampler.step()
    assert model.find_diverged() == [1]
    message = (
        r"the weights and gradients of all 3 chains must be finite, but got NaN or Inf in chain 1: try a lower lr\."
    )
    with pytest.raises(ss.NonFiniteError, match=message):
        model.check_finite()
    for chain in (0, 2):
        for name, tensor in expected.chain(chain).state_dict().items():
            torch.testing.assert_close(model.chain(chain).state_dict()[name], tensor, rtol=0, atol=0)
        assert prior.sigma[chain] == expected_prior.sigma[chain]


def test_resume_is_exact():
    settings = SETTINGS | {"adapt": ADAPTATIONS["SA"], "sigma_coupling": "conjugate"}
    whole, _, _ = stacked_run("SGHMC", settings, steps=8)
    model, _, sampler = stacked_run("SGHMC", settings, steps=5)
    saved = {"model": model.state_dict(), "sampler": sampler.state_dict()}
    other = StackedModel([network(seed) for seed in range(10, 10 + CHAINS)])
    other_prior = StackedSpikeSlab(ss.select_weights(other, "*.weight"), **settings)
    likelihood = StackedGaussianLikelihood(other_prior)
    resumed = sampler_of("SGHMC", other, other_prior)
    other.load_state_dict(saved["model"])
    resumed.load_state_dict(saved["sampler"])
    for x, y in batches(8)[5:]:
        resumed.zero_grad()
        likelihood(other(x), y).backward()
        resumed.step()
    for name, tensor in whole.state_dict().items():
        assert torch.equal(other.state_dict()[name], tensor)


def test_stacking_copies_and_unstacking_gives_the_model_back():
    models = [network(seed) for seed in range(CHAINS)]
    model = StackedModel(models)
    x = torch.randn(6, 4, dtype=torch.float64)
    outputs = model(model.spread(x))
    for chain, single in enumerate(models):
        assert list(model.chain(chain).state_dict()) == list(single.state_dict())
        torch.testing.assert_close(outputs[chain], single(x))
        torch.testing.assert_close(model.chain(chain)(x), single(x), rtol=0, atol=0)
    with torch.no_grad():
        model.network[0].weight.zero_()
    assert models[0][0].weight.any()


def test_shared_parameters_stay_shared():
    class Tied(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.second = nn.Linear(3, 3), nn.Linear(3, 3)
            self.second.weight = self.first.weight

        def forward(self, x: Tensor) -> Tensor:
            return self.second(self.first(x))

    models = [Tied() for _ in range(2)]
    model = StackedModel(models)
    assert len(list(model.parameters())) == 3
    x = torch.randn(5, 3)
    torch.testing.assert_close(model(model.spread(x))[1], models[1](x))
    single = model.chain(1)
    assert single.first.weight is single.second.weight


def test_batch_normalisation_keeps_statistics_of_each_chain():
    models = [nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4)) for _ in range(2)]
    model = StackedModel(models)
    x = torch.randn(2, 7, 3)
    outputs = model(x)
    for chain, single in enumerate(models):
        torch.testing.assert_close(outputs[chain], single(x[chain]))
        for name, tensor in single.state_dict().items():
            torch.testing.assert_close(model.chain(chain).state_dict()[name], tensor)


def test_classification_needs_no_likelihood_of_ours():
    model = StackedModel([nn.Linear(3, 2) for _ in range(2)])
    prior = StackedSpikeSlab(ss.select_weights(model, "*.weight"), v0=0.1, v1=1.0, sigma_coupling="conjugate")
    sampler = ss.SGLD(model.parameters(), lr=0.01, num_data=10, prior=prior, seed=0)
    logits = model(torch.randn(2, 6, 3))
    F.cross_entropy(logits.flatten(0, 1), torch.zeros(12, dtype=torch.long), reduction="sum").div(6).backward()
    sampler.step()
    assert (prior.sigma != 1.0).all()


def test_bad_input_is_one_sentence():
    model = StackedModel([nn.Linear(2, 1) for _ in range(3)])
    prior = StackedSpikeSlab(ss.select_weights(model, "*.weight"), v0=0.1, v1=1.0)
    for call, error, message in (
        (lambda: StackedModel([]), ValueError, r"the number of models must be an integer >= 1, but got 0\."),
        (
            lambda: StackedModel([nn.Linear(2, 1), nn.Linear(3, 1)]),
            ValueError,
            r"models must all have tensors of the same names, shapes and dtypes, but model 1 differs\.",
        ),
        (
            lambda: model(torch.zeros(5, 2)),
            ValueError,
            r"inputs must have a batch for each of 3 chains .*\(5, 2\): model.spread\(batch\) gives all the same\.",
        ),
        (lambda: model.chain(3), IndexError, r"index must be that of one of 3 chains, but got 3\."),
        (
            lambda: StackedGaussianLikelihood(prior)(torch.zeros(3, 4, 1), torch.zeros(3, 4)),
            ValueError,
            r"prediction and target must both have the shape \(3, examples, ...\), .* \(3, 4, 1\) and \(3, 4\)\.",
        ),
    ):
        with pytest.raises(error, match=message):
            call()
