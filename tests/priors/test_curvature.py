"""Inclusion by curvature: averages along the chain, exact probabilities of linear models, state, refusals."""

from __future__ import annotations

import copy
import itertools
import math
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import spikeslab as ss
from spikeslab.errors import ArgumentValueError
from spikeslab.functional.evidence import inclusion_log_odds, saliency
from spikeslab.functional.mixture import LAPLACE
from spikeslab.priors import GroupSpikeSlab, SpikeSlabGaussian, StackedSpikeSlab

CURVATURE: dict[str, Any] = {"evidence": "curvature", "batch_size": 8}
SCALES: dict[str, Any] = {"v0": 0.02, "v1": 1.0}
HARMONIC = ss.polynomial(1.0, power=1.0, offset=0)  # omega = 1/k: the plain mean over all steps


def give_gradients(weights: list[nn.Parameter], seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    for weight in weights:
        weight.grad = torch.randn(weight.shape, generator=generator).to(weight.dtype)


def make_weights(dtype: torch.dtype = torch.float32) -> list[nn.Parameter]:
    generator = torch.Generator().manual_seed(9)
    return [nn.Parameter(torch.randn(shape, generator=generator).to(dtype)) for shape in [(4, 3), (5,)]]


# Inclusion probabilities of linear models

N, SLAB, DELTA, BATCH = 4096, 0.01, 0.3, 64
EFFECTS = torch.tensor([0.0, 1.0, 2.0, 2.4, 2.8, 3.2, 3.6, 5.0], dtype=torch.float64)  # in standard errors


def make_regression(correlation: float, seed: int) -> tuple[Tensor, Tensor]:
    """Return columns of different scales, orthogonal without a correlation, and targets with noise of variance 1."""
    generator = torch.Generator().manual_seed(seed)
    p = len(EFFECTS)
    if correlation == 0.0:
        signs = torch.ones(1, 1, dtype=torch.float64)
        while len(signs) < N:  # Sylvester's Hadamard matrices
            signs = torch.cat([torch.cat([signs, signs], 1), torch.cat([signs, -signs], 1)])
        x = signs[:, 1 + torch.randperm(N - 1, generator=generator)[:p]]
    else:
        z = torch.randn(N, p + 1, generator=generator, dtype=torch.float64)
        x = math.sqrt(1.0 - correlation) * z[:, :p] + math.sqrt(correlation) * z[:, p:]
    scales = torch.tensor([0.5, 2.0], dtype=torch.float64).repeat(p // 2)
    beta = EFFECTS / scales / math.sqrt(N * (1.0 - correlation))
    x = x * scales
    return x, x @ beta + torch.randn(N, generator=generator, dtype=torch.float64)


def enumerate_models(x: Tensor, y: Tensor) -> Tensor:
    """Return the exact inclusion probabilities, from the marginal likelihoods of all subsets of the columns."""
    p = x.shape[1]
    patterns = torch.tensor(list(itertools.product([0.0, 1.0], repeat=p)), dtype=torch.float64)
    gram, moment = x.T @ x, x.T @ y
    logs = []
    for pattern in patterns:
        chosen = pattern.bool()
        size = int(chosen.sum())
        precision = gram[chosen][:, chosen] + torch.eye(size, dtype=x.dtype) / SLAB
        fit = moment[chosen] @ torch.linalg.solve(precision, moment[chosen]) if size else torch.tensor(0.0)
        price = torch.logdet(precision) + size * math.log(SLAB) if size else torch.tensor(0.0)
        logs.append(0.5 * float(fit - price) + size * math.log(DELTA) + (p - size) * math.log(1.0 - DELTA))
    return torch.tensor(logs, dtype=torch.float64).softmax(0) @ patterns


def sample(x: Tensor, y: Tensor, evidence: str, temperature: float) -> Tensor:
    """Return rho after 2000 steps of SGLD on mini-batches."""
    weight = nn.Parameter(torch.zeros(x.shape[1], dtype=torch.float64))
    prior = ss.SpikeSlab(
        [weight],
        v0=0.003,
        v1=SLAB,
        delta=DELTA,
        learn_delta=False,
        adapt=ss.SA(HARMONIC),
        evidence=evidence,
        batch_size=BATCH if evidence == "curvature" else None,
    )
    sampler = ss.SGLD([weight], lr=0.02, num_data=N, temperature=temperature, prior=prior, seed=0)
    generator = torch.Generator().manual_seed(1)
    for _ in range(2000 * BATCH // N):
        for rows in torch.randperm(N, generator=generator).split(BATCH):
            # The gradient of the mean of (y - x w)^2 / 2, by hand: autograd would take most of the time.
            weight.grad = x[rows].T @ (x[rows] @ weight.detach() - y[rows]) / BATCH
            sampler.step()
    return prior.rho["weights[0]"]


@pytest.mark.parametrize(
    ("correlation", "temperature", "tolerance"), [(0.0, 0.0, 0.08), (0.0, 1.0, 0.08), (0.2, 1.0, 0.25)]
)
def test_rho_is_the_exact_inclusion_probability_where_size_alone_is_not(correlation, temperature, tolerance) -> None:
    """Orthogonal columns: exact up to the noise of F, 3 % after 2000 batches, which moves rho by up to 0.07.

    Correlated ones: the others stand at their means along the chain instead of being summed out. With a correlation of
    0.2 between all columns four data sets had errors up to 0.2; this is the worst of them.
    """
    x, y = make_regression(correlation, seed=2)
    exact = enumerate_models(x, y)
    assert ((exact > 0.1) & (exact < 0.9)).sum() >= 3, "a problem that is not decided already"
    assert (sample(x, y, "curvature", temperature) - exact).abs().max() < tolerance
    assert (sample(x, y, "magnitude", temperature) - exact).abs().max() > 0.5


# Averages


def test_averages_are_weighted_means_of_batches_and_the_odds_follow() -> None:
    weights = make_weights(torch.float64)
    omegas = [0.5, 0.0, 0.3, 0.2]
    prior = ss.SpikeSlab(weights, **SCALES, **CURVATURE, delta=0.2, adapt=ss.SA(lambda k: omegas[k - 1]))
    shares = [omega * math.prod(1.0 - later for later in omegas[k + 1 :]) for k, omega in enumerate(omegas)]
    pulls, fishers = ([torch.zeros_like(weight.detach()) for weight in weights] for _ in range(2))
    for step in range(4):
        give_gradients(weights, seed=step)
        for weight, pull, fisher in zip(weights, pulls, fishers, strict=True):
            square = 8 * weight.grad.square()
            fisher += shares[step] / sum(shares) * square
            pull += shares[step] / sum(shares) * (square * weight.detach() - weight.grad)
        prior.observe(step + 1, 1000)
        with torch.no_grad():
            for weight in weights:
                weight.mul_(0.9)
    examples = 8 * sum(shares) ** 2 / sum(share**2 for share in shares)
    assert 8 < examples < 32
    numbers: dict[str, float] = {"num_data": examples, "v1": 1.0}
    for index, name in enumerate(prior.weights):
        odds = inclusion_log_odds(pulls[index], fishers[index], delta=0.2, **numbers)
        torch.testing.assert_close(prior.log_odds[name], odds)
        torch.testing.assert_close(prior.rho[name], odds.sigmoid())
        torch.testing.assert_close(prior.saliency[name], saliency(pulls[index], fishers[index], **numbers))


def test_the_evidence_is_that_of_the_examples_seen_and_never_of_more_than_all() -> None:
    weights = make_weights()
    prior = ss.SpikeSlab(weights, **SCALES, **CURVATURE, adapt=ss.SA(HARMONIC))
    for step in range(1, 11):
        give_gradients(weights, seed=step)
        prior.observe(step, 50)
        assert prior._curvature.examples == pytest.approx(min(8 * step, 50))


def test_a_weight_without_a_gradient_has_been_seen_without_effect() -> None:
    weights = make_weights()
    prior = ss.SpikeSlab(weights, **SCALES, **CURVATURE, adapt=ss.SA(HARMONIC), delta=0.3)
    weights[0].grad = torch.ones_like(weights[0])
    prior.observe(1, 100)
    assert prior.rho["weights[1]"].tolist() == pytest.approx([0.3] * 5)
    assert prior.saliency["weights[1]"].tolist() == [0.0] * 5


def test_a_half_precision_weight_has_averages_in_float32() -> None:
    weights = make_weights(torch.bfloat16)
    prior = ss.SpikeSlab(weights, **SCALES, **CURVATURE)
    give_gradients(weights, seed=0)
    prior.observe(1, 100)
    prior.update(1, 100)
    assert {tensor.dtype for tensor in prior.rho.values()} == {torch.float32}


# The sampler and the state


def run(steps: range, weights: list[nn.Parameter], sampler: ss.SGHMC) -> None:
    for step in steps:
        give_gradients(weights, seed=step)
        sampler.step()


def make_chain(**settings: Any) -> tuple[list[nn.Parameter], ss.SpikeSlab, ss.SGHMC]:
    weights = make_weights()
    prior = ss.SpikeSlab(weights, **SCALES, **CURVATURE | settings)
    return weights, prior, ss.SGHMC(weights, lr=0.01, num_data=200, temperature=1.0, prior=prior, seed=3)


def test_a_resumed_chain_continues_bit_for_bit() -> None:
    weights, prior, sampler = make_chain()
    run(range(7), weights, sampler)
    again, resumed_prior, resumed = make_chain()
    resumed.load_state_dict(copy.deepcopy(sampler.state_dict()))
    with torch.no_grad():
        for weight, other in zip(again, weights, strict=True):
            weight.copy_(other)
    for name, rho in prior.rho.items():
        assert torch.equal(rho, resumed_prior.rho[name])
    for pair in ((weights, sampler), (again, resumed)):
        run(range(7, 12), *pair)
    assert all(torch.equal(one, other) for one, other in zip(weights, again, strict=True))
    assert all(torch.equal(rho, resumed_prior.rho[name]) for name, rho in prior.rho.items())


def test_the_gradients_are_those_of_the_loss_alone_and_are_left_as_they_are() -> None:
    weights, prior, sampler = make_chain(kappa=(1e6, 1e6))
    give_gradients(weights, seed=0)
    before = [weight.grad.clone() for weight in weights]
    old = [weight.detach().clone() for weight in weights]
    sampler.step()
    for index, (weight, gradient) in enumerate(zip(weights, before, strict=True)):
        assert torch.equal(weight.grad, gradient)
        share = prior.adapt.omega(1)
        torch.testing.assert_close(prior._curvature.fisher[index], share * 8 * gradient.square())
        pull = 8 * gradient.square() * old[index] - gradient
        torch.testing.assert_close(prior._curvature.pull[index], share * pull)


def test_it_costs_three_tensors_for_each_weight() -> None:
    weights, prior, sampler = make_chain()
    run(range(2), weights, sampler)
    state = prior.state_dict()
    tensors = [*state["rho"], *state["rho_bar"], *state["curvature"]["pull"], *state["curvature"]["fisher"]]
    assert sum(tensor.numel() for tensor in tensors) == 3 * sum(weight.numel() for weight in weights)


def test_once_conditioned_on_its_zeros_it_learns_no_more_and_may_be_fused() -> None:
    weights, prior, sampler = make_chain()
    run(range(3), weights, sampler)
    assert not prior.fusible
    with torch.no_grad():
        weights[0][0] = 0.0
    prior.condition_on_zeros()
    assert prior.fusible
    assert prior.log_odds is None
    assert prior.saliency is None
    for _ in range(2):
        assert torch.equal(prior.rho["weights[0]"], (torch.arange(4) > 0).float()[:, None].expand(4, 3))
        twin = make_chain()[1]
        twin.load_state_dict(prior.state_dict())
        prior = twin


def test_rho_is_the_initial_one_before_a_step() -> None:
    assert make_chain(rho=0.7)[1].rho["weights[1]"].tolist() == pytest.approx([0.7] * 5)


def test_settings_name_the_evidence_and_the_batch_size_may_change() -> None:
    weights, prior, sampler = make_chain()
    assert repr(prior).endswith("evidence='curvature', batch_size=8)")
    assert "evidence" not in repr(ss.SpikeSlab(weights, **SCALES))
    run(range(3), weights, sampler)
    before = prior.log_odds["weights[0]"]
    prior.load_settings({"batch_size": 16})
    assert prior.settings_dict()["batch_size"] == 16
    assert prior._curvature.batch_size == 16
    assert prior.log_odds["weights[0]"].shape == before.shape
    with pytest.raises(ArgumentValueError, match="evidence must stay 'curvature', but got 'magnitude'"):
        prior.load_settings({"evidence": "magnitude", "batch_size": None})


def test_a_state_of_the_other_evidence_or_of_other_shapes_is_refused_and_changes_nothing() -> None:
    weights, prior, sampler = make_chain()
    run(range(2), weights, sampler)
    before = copy.deepcopy(prior.state_dict())
    plain = ss.SpikeSlab(weights, **SCALES)
    for one, state in ((prior, plain.state_dict()), (plain, prior.state_dict())):
        with pytest.raises(ArgumentValueError, match="must be of a prior with evidence="):
            one.load_state_dict(state)
    odd = copy.deepcopy(before)
    odd["curvature"]["pull"] = [torch.zeros(2), torch.zeros(5)]
    with pytest.raises(ArgumentValueError, match="must hold pull of the shapes"):
        prior.load_state_dict(odd)
    assert torch.equal(prior.state_dict()["curvature"]["pull"][0], before["curvature"]["pull"][0])


def test_a_gaussian_spike_has_it_too() -> None:
    weights = make_weights()
    prior = SpikeSlabGaussian(weights, v0=1e-4, v1=1.0, **CURVATURE)
    give_gradients(weights, seed=0)
    prior.observe(1, 100)
    prior.update(1, 100)
    assert prior.log_odds is not None


class LassoSlab(ss.SpikeSlab):
    slab = LAPLACE


@pytest.mark.parametrize(
    ("cls", "settings", "message"),
    [
        (ss.SpikeSlab, {"batch_size": None}, "batch_size must be the number of examples in a batch with evidence="),
        (ss.SpikeSlab, {"batch_size": 0}, "batch_size must be an integer"),
        (ss.SpikeSlab, {"evidence": "magnitude"}, "batch_size must be None without evidence='curvature'"),
        (ss.SpikeSlab, {"evidence": "size"}, "evidence must be"),
        (ss.SpikeSlab, {"adapt": ss.Marginal()}, "adapt must be SA"),
        (ss.SpikeSlab, {"adapt": ss.EM()}, "adapt must be SA"),
        (ss.SpikeSlab, {"adapt": ss.Fixed()}, "adapt must be SA"),
        (GroupSpikeSlab, {}, "evidence must be 'magnitude' for groups of weights"),
        (StackedSpikeSlab, {}, "evidence must be 'magnitude' for stacked chains"),
        (LassoSlab, {}, "evidence must be 'magnitude' with a laplace slab"),
    ],
)
def test_what_it_cannot_do_is_refused_in_a_sentence(cls, settings, message) -> None:
    with pytest.raises(ArgumentValueError, match=message):
        cls([nn.Parameter(torch.ones(3, 2))], **SCALES, **CURVATURE | settings)


def test_a_full_gradient_does_not_tell_the_curvature() -> None:
    weights = make_weights()
    prior = ss.SpikeSlab(weights, **SCALES, **CURVATURE)
    with pytest.raises(ArgumentValueError, match="batch_size must be smaller than num_data=8"):
        ss.SGLD(weights, lr=0.01, num_data=8, prior=prior)
