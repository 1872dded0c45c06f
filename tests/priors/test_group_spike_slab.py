"""The group prior inside samplers: its latents, its law, its state."""

from __future__ import annotations

import math

import pytest
import torch
from torch import nn

import spikeslab as ss
from spikeslab.errors import ArgumentValueError
from spikeslab.functional.groups import GroupPart
from spikeslab.priors import GroupSpikeSlab

SHAPES = [(5, 3), (4, 2, 3, 3), (6,)]
COUNTS, SIZES = [5, 4, 6], [3, 18, 1]
NUM_DATA = 40


def weights(scale: float = 0.3) -> list[nn.Parameter]:
    torch.manual_seed(0)
    return [nn.Parameter(scale * torch.randn(shape, dtype=torch.float64)) for shape in SHAPES]


def wander(params: list[nn.Parameter]) -> None:
    with torch.no_grad():
        for param in params:
            param.mul_(0.9).add_(0.1 * torch.randn_like(param))


@pytest.mark.parametrize("adapt", [ss.SA(ss.polynomial(1.0, power=0.7, offset=2)), ss.EM(), ss.Fixed(), ss.Marginal()])
def test_groups_of_one_weight_are_spike_slab(adapt) -> None:
    column = nn.Parameter(torch.randn(30, 1, dtype=torch.float64))
    options = {"v0": 0.05, "v1": 2.0, "sigma": 0.8, "delta": 0.3, "adapt": adapt, "sigma_coupling": "conjugate"}
    ours, single = GroupSpikeSlab([column], **options), ss.SpikeSlab([column], **options)
    for step in range(1, 21):
        wander([column])
        ours.update(step, NUM_DATA)
        single.update(step, NUM_DATA)
    assert (ours.sigma, ours.delta) == (pytest.approx(single.sigma, rel=1e-12), pytest.approx(single.delta, rel=1e-12))
    torch.testing.assert_close(ours.rho["weights[0]"], single.rho["weights[0]"][:, 0], rtol=1e-11, atol=1e-14)
    assert ours.penalty(NUM_DATA) == pytest.approx(single.penalty(NUM_DATA), rel=1e-12)
    assert ours.diagnostics(NUM_DATA).effective_l1 == pytest.approx(single.diagnostics(NUM_DATA).effective_l1)
    outs = [torch.zeros_like(column) for _ in range(2)]
    ours.add_gradient_([column], outs[:1], NUM_DATA)
    single.add_gradient_([column], outs[1:], NUM_DATA)
    torch.testing.assert_close(*outs, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("adapt", [ss.SA(ss.schedules.constant(0.4)), ss.Fixed(), ss.Marginal()])
def test_the_gradient_is_that_of_the_penalty(adapt) -> None:
    params = weights()
    prior = GroupSpikeSlab(params, v0=0.05, v1=2.0, sigma=0.7, adapt=adapt, sigma_coupling="conjugate")
    prior.update(1, NUM_DATA)
    outs = [torch.zeros_like(param) for param in params]
    prior.add_gradient_(params, outs, NUM_DATA)
    for param, out in zip(params, outs, strict=True):
        direction = torch.randn_like(param)
        values = []
        for step in (1e-6, -1e-6):
            with torch.no_grad():
                param.add_(direction, alpha=step)
                values.append(prior.penalty(NUM_DATA))
                param.sub_(direction, alpha=step)
        assert float((out * direction).sum()) == pytest.approx((values[0] - values[1]) / 2e-6, rel=1e-5)


def expected_log_prior(params: list[nn.Parameter], rhos: list[torch.Tensor], sigma: float) -> float:
    """E over the indicators of the log density of all weights, and the inverse-gamma prior of sigma squared."""
    v0, v1, nu, lam = 0.05, 2.0, 3.0, 0.7
    total = -(nu / 2 + 1) * math.log(sigma**2) - nu * lam / (2 * sigma**2)
    for param, rho, size in zip(params, rhos, SIZES, strict=True):
        rows = param.detach().reshape(len(param), -1)
        scale = sigma * v0 * math.sqrt(2 / (size + 1))
        log_area = math.log(2) + size / 2 * math.log(math.pi) - math.lgamma(size / 2)
        spike = -rows.norm(dim=1) / scale - log_area - math.lgamma(size) - size * math.log(scale)
        slab = torch.distributions.Normal(0.0, sigma * math.sqrt(v1)).log_prob(rows).sum(dim=1)
        total += float(((1 - rho) * spike + rho * slab).sum())
    return total


def test_sigma_and_delta_are_stationary_points_of_q() -> None:
    params = weights(0.1)
    prior = GroupSpikeSlab(
        params, v0=0.05, v1=2.0, nu=3.0, lam=0.7, a=2.0, b=5.0, adapt=ss.EM(), sigma_coupling="conjugate"
    )
    prior.update(1, NUM_DATA)
    rhos, sigma = list(prior.rho.values()), prior.sigma
    ups = [expected_log_prior(params, rhos, sigma * (1 + step)) for step in (-1e-4, 0.0, 1e-4)]
    assert (ups[2] - ups[0]) / 2e-4 == pytest.approx(0.0, abs=1e-5 * abs(ups[2] + ups[0] - 2 * ups[1]) / 1e-8)
    assert ups[1] > max(ups[0], ups[2])
    for rho, count, delta in zip(rhos, COUNTS, prior.delta.values(), strict=True):
        derivative = (float(rho.sum()) + 2.0 - 1) / delta - (count - float(rho.sum()) + 5.0 - 1) / (1 - delta)
        assert derivative == pytest.approx(0.0, abs=1e-9)


def test_sa_comes_to_rest_where_its_equations_hold() -> None:
    params = weights(0.1)
    prior = GroupSpikeSlab(
        params, v0=0.05, v1=2.0, adapt=ss.SA(ss.polynomial(1.0, power=0.6, offset=1)), sigma_coupling="conjugate"
    )
    for step in range(1, 3000):
        prior.update(step, NUM_DATA)
    fixed = GroupSpikeSlab(
        params, v0=0.05, v1=2.0, sigma=prior.sigma, delta=list(prior.delta.values()), adapt=ss.EM(),
        sigma_coupling="conjugate",
    )  # fmt: skip
    fixed.update(1, NUM_DATA)
    assert fixed.sigma == pytest.approx(prior.sigma, rel=1e-4)
    for name in prior.weights:
        torch.testing.assert_close(prior.rho[name], fixed.rho[name], rtol=1e-3, atol=1e-6)
        assert fixed.delta[name] == pytest.approx(prior.delta[name], rel=1e-3)
        kappa0, kappa1 = prior.kappa[name]
        torch.testing.assert_close(kappa0, (1 - prior.rho[name]) / 0.05, rtol=1e-2, atol=1e-2)
        torch.testing.assert_close(kappa1, prior.rho[name] / 2.0, rtol=1e-2, atol=1e-3)


def test_the_latents_are_one_for_each_group_and_delta_counts_groups() -> None:
    params = weights()
    prior = GroupSpikeSlab(params, v0=0.05, v1=2.0, adapt=ss.EM(), sigma_coupling="fixed")
    assert [rho.shape for rho in prior.rho.values()] == [(5,), (4,), (6,)]
    prior.update(1, NUM_DATA)
    for (name, rho), count in zip(prior.rho.items(), COUNTS, strict=True):
        assert prior.delta[name] == pytest.approx(float(rho.sum()) / (2 * count - 1), rel=1e-12)
    assert [tuple(k.shape) for k in prior.kappa["weights[1]"]] == [(4,), (4,)]


def test_it_learns_which_filters_are_large() -> None:
    conv = nn.Conv2d(3, 20, 3)
    with torch.no_grad():
        conv.weight.normal_(std=1e-3)
        conv.weight[[2, 7]] = 0.2 * torch.randn(2, 3, 3, 3)
    prior = GroupSpikeSlab([conv.weight], v0=2e-3, v1=0.04, adapt=ss.SA(ss.polynomial(1.0, 0.7, 2)))
    for step in range(1, 200):
        prior.update(step, 100)
    rho = prior.rho["weights[0]"]
    assert (rho > 0.5).nonzero().flatten().tolist() == [2, 7]
    assert prior.delta["weights[0]"] == pytest.approx(2 / 39, rel=0.05)


GROUPS, SIZE = 20_000, 3


def spike_draws(v0: float) -> torch.Tensor:
    """Exact draws: the norm is Gamma(m, v0 / k) and the direction uniform."""
    direction = nn.functional.normalize(torch.randn(GROUPS, SIZE), dim=1)
    gamma = torch.distributions.Gamma(float(SIZE), math.sqrt((SIZE + 1) / 2) / v0)
    return direction * gamma.sample((GROUPS, 1))


@pytest.mark.parametrize("sampler_class", [ss.SGLD, ss.SGHMC])
@pytest.mark.parametrize("law", ["spike", "mixture"])
def test_the_chain_keeps_the_law_of_the_prior(sampler_class, law: str) -> None:
    """Start at exact draws: after a unit of time the moments of the norm are what they were, to 5 standard errors."""
    torch.manual_seed(1)
    values = spike_draws(1.0)
    if law == "mixture":
        slab = torch.rand(GROUPS) < 0.4
        values[slab] = 2.0 * torch.randn(int(slab.sum()), SIZE)
    weight = nn.Parameter(values.clone())
    settings = {"kappa": (1.0, 0.0), "adapt": ss.Fixed()} if law == "spike" else {"adapt": ss.Marginal(), "delta": 0.4}
    prior = GroupSpikeSlab([weight], v0=1.0, v1=4.0, **settings)
    settings = {"lr": 0.01} if sampler_class is ss.SGLD else {"lr": 0.001, "momentum": 0.9}
    sampler = sampler_class([weight], num_data=1, temperature=1.0, prior=prior, seed=2, **settings)
    if sampler_class is ss.SGHMC:
        buffer = torch.randn_like(weight) * math.sqrt(2 / (1.9 * 0.001))
        sampler.state[weight]["momentum_buffer"] = buffer
    before = weight.detach().norm(dim=1)
    for _ in range(100):
        weight.grad = torch.zeros_like(weight)
        sampler.step()
    after = weight.detach().norm(dim=1)
    for power in (1, 2):
        old, new = before**power, after**power
        error = math.sqrt(float(old.var() + new.var()) / GROUPS)
        assert abs(float(new.mean() - old.mean())) < 5 * error
    assert float((weight.detach() - values).norm(dim=1).mean()) > 0.5  # it has moved


@pytest.mark.parametrize("sampler_class", [ss.SGHMC, ss.SGLD, ss.PSGLD])
@pytest.mark.parametrize("adapt", [ss.SA(ss.schedules.constant(0.2)), ss.Marginal(ss.schedules.constant(0.1))])
def test_a_resumed_chain_continues_bit_for_bit(sampler_class, adapt) -> None:
    x, y = torch.randn(16, 6), torch.randn(16, 4)

    def make() -> tuple[nn.Module, ss.samplers.Sampler]:
        torch.manual_seed(3)
        model = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 4))
        prior = GroupSpikeSlab(
            ss.select_weights(model, "0.weight"), v0=0.01, v1=1.0, adapt=adapt, sigma_coupling="conjugate"
        )
        return model, sampler_class(model.parameters(), lr=0.01, num_data=16, prior=prior, seed=0)

    def run(model: nn.Module, sampler: ss.samplers.Sampler, steps: int) -> None:
        for _ in range(steps):
            sampler.zero_grad()
            nn.functional.mse_loss(model(x), y).backward()
            sampler.step()

    whole, first, second = make(), make(), make()
    run(*whole, 10)
    run(*first, 4)
    second[0].load_state_dict(first[0].state_dict())
    second[1].load_state_dict(first[1].state_dict())
    run(*second, 6)
    assert all(torch.equal(a, b) for a, b in zip(whole[0].parameters(), second[0].parameters(), strict=True))
    one, two = whole[1].prior, second[1].prior
    assert (one.sigma, one.delta) == (two.sigma, two.delta)
    assert torch.equal(one.rho["0.weight"], two.rho["0.weight"])


def test_sigma_is_learned_from_residuals_through_the_likelihood() -> None:
    weight = nn.Parameter(torch.zeros(4, 3))
    prior = GroupSpikeSlab([weight], v0=0.1, v1=1.0, nu=0.0, adapt=ss.EM())
    likelihood = ss.GaussianLikelihood(prior)
    residuals = torch.full((10,), 0.5, requires_grad=True)
    likelihood(residuals, torch.zeros(10))
    prior.update(1, 10)
    assert prior.sigma == pytest.approx(math.sqrt(2.5 / 12))


def test_half_precision_and_extreme_weights_stay_finite() -> None:
    half = nn.Parameter((0.3 * torch.randn(4, 9)).half())
    prior = GroupSpikeSlab([half], v0=1e-3, v1=1.0, adapt=ss.EM())
    prior.update(1, NUM_DATA)
    assert prior.rho["weights[0]"].dtype == torch.float32
    values = torch.zeros(5, 100)
    values[1:] = torch.tensor([1e-30, 1e-6, 1.0, 1e6]).unsqueeze(1)
    weight = nn.Parameter(values)
    prior = GroupSpikeSlab(
        [weight], v0=1e-8, v1=1e8, adapt=ss.SA(ss.schedules.constant(0.7)), sigma_coupling="conjugate"
    )
    for step in range(1, 20):
        prior.update(step, NUM_DATA)
    out = [torch.zeros_like(weight)]
    prior.add_gradient_([weight], out, NUM_DATA)
    assert out[0].isfinite().all()
    assert math.isfinite(prior.penalty())
    assert 0 < prior.delta["weights[0]"] < 1


def test_diagnostics_give_the_weight_of_a_norm() -> None:
    params = weights()
    prior = GroupSpikeSlab(params, v0=0.05, v1=2.0, kappa=(3.0, 0.5), adapt=ss.Fixed())
    found = prior.diagnostics(10)
    assert found.effective_l1 == pytest.approx(
        {f"weights[{i}]": 0.3 * math.sqrt((size + 1) / 2) for i, size in enumerate(SIZES)}
    )
    assert found.effective_l2 == pytest.approx({f"weights[{i}]": 0.05 for i in range(3)})


def test_bad_input_is_refused_in_one_sentence() -> None:
    weight = nn.Parameter(torch.ones(4, 3))
    with pytest.raises(ValueError, match=r"^v0 must be a number > 0, but got 0\.$"):
        GroupSpikeSlab([weight], v0=0, v1=1.0)
    with pytest.warns(ss.SpikeSlabWarning, match="The spike"):
        GroupSpikeSlab([weight], v0=1.0, v1=1.0)
    prior = GroupSpikeSlab([weight], v0=0.1, v1=1.0, adapt=ss.EM())
    single = ss.SpikeSlab([weight], v0=0.1, v1=1.0, adapt=ss.EM())
    single.update(1, 10)
    state = single.state_dict()
    with pytest.raises(ArgumentValueError) as error:
        prior.load_state_dict(state)
    assert str(error.value) == "state_dict must hold the state of a GroupSpikeSlab prior, but got 'SpikeSlab'."
    with pytest.raises(ArgumentValueError) as error:
        prior.load_state_dict({**state, "kind": "GroupSpikeSlab"})
    assert str(error.value) == "state_dict must hold rho of the shapes [(4,)], but got [(4, 3)]."


def scattered() -> tuple[nn.Parameter, dict[str, nn.Parameter], dict[str, tuple[GroupPart, ...]]]:
    """A matrix of groups, the same numbers in rows of one parameter and columns of another, and where they are."""
    torch.manual_seed(0)
    whole = nn.Parameter(0.3 * torch.randn(3, 10, dtype=torch.float64))
    rows = nn.Parameter(torch.zeros(7, 2, dtype=torch.float64))  # two rows of a group, one of nobody
    columns = nn.Parameter(torch.zeros(6, 3, dtype=torch.float64))
    index = torch.tensor([[4, 0], [1, 6], [2, 5]])
    with torch.no_grad():
        rows[index] = whole[:, :4].view(3, 2, 2)
        columns[:] = whole[:, 4:].T
        rows[3] = 5.0
    parts = (GroupPart("rows", 0, index), GroupPart("columns", 1, torch.arange(3)[:, None]))
    return whole, {"rows": rows, "columns": columns}, {"heads": parts}


@pytest.mark.parametrize("adapt", [ss.SA(ss.polynomial(1.0, power=0.7, offset=2)), ss.EM(), ss.Fixed(), ss.Marginal()])
def test_groups_over_several_parameters_are_rows_of_one_matrix(adapt) -> None:
    whole, parameters, parts = scattered()
    options = {"v0": 0.05, "v1": 2.0, "sigma": 0.8, "delta": 0.3, "adapt": adapt, "sigma_coupling": "conjugate"}
    one, several = GroupSpikeSlab({"heads": whole}, **options), GroupSpikeSlab(parameters, groups=parts, **options)
    for step in range(1, 6):
        one.update(step, NUM_DATA)
        several.update(step, NUM_DATA)
    assert several.sigma == pytest.approx(one.sigma, rel=1e-12)
    assert several.delta == pytest.approx(one.delta, rel=1e-12)
    torch.testing.assert_close(several.rho, one.rho)
    assert several.penalty(NUM_DATA) == pytest.approx(one.penalty(NUM_DATA), rel=1e-12)
    assert several.diagnostics(NUM_DATA) == one.diagnostics(NUM_DATA)
    out = torch.zeros_like(whole)
    one.add_gradient_([whole], [out], NUM_DATA)
    outs = [torch.zeros_like(parameter) for parameter in parameters.values()]
    several.add_gradient_(list(parameters.values()), outs, NUM_DATA)
    rows, _ = parts["heads"]
    torch.testing.assert_close(outs[0][rows.places].flatten(1), out[:, :4])
    torch.testing.assert_close(outs[1].T, out[:, 4:])
    assert not outs[0][3].any()  # in no group
    (alone,) = ([torch.zeros_like(parameters["columns"])],)
    several.add_gradient_([parameters["columns"]], alone, NUM_DATA)
    torch.testing.assert_close(alone[0], outs[1])


def test_the_state_of_groups_over_several_parameters_is_loaded_and_settings_change() -> None:
    _, parameters, parts = scattered()
    options = {"v0": 0.05, "v1": 2.0, "adapt": ss.EM(), "sigma_coupling": "fixed"}
    prior = GroupSpikeSlab(parameters, groups=parts, **options)
    prior.update(1, NUM_DATA)
    other = GroupSpikeSlab(parameters, groups=parts, **options)
    other.load_state_dict(prior.state_dict())
    torch.testing.assert_close(other.rho, prior.rho)
    other.load_settings({"v1": 3.0})
    assert (other.v1, other.rho["heads"].shape) == (3.0, (3,))
    with pytest.raises(ArgumentValueError, match=r"rho of the shapes"):
        GroupSpikeSlab(parameters, **options).load_state_dict(prior.state_dict())


def test_groups_must_be_made_of_the_weights() -> None:
    _, parameters, parts = scattered()
    with pytest.raises(ArgumentValueError) as error:
        GroupSpikeSlab({"rows": parameters["rows"]}, groups=parts, v0=0.05, v1=2.0)
    assert str(error.value) == "groups must be made of the weights 'rows', but got 'columns'."
