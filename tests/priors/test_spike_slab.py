"""The adaptive prior against a plain implementation of the paper's algorithm 1."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from reference import Latents
from torch import nn

import spikeslab as ss
from spikeslab.errors import ArgumentValueError
from spikeslab.functional import mixture
from spikeslab.priors import Adaptation

SHAPES = [(4, 3), (7,), (2, 3, 2, 2)]
NUM_DATA = 40


def weights(dtype=torch.float64) -> list[nn.Parameter]:
    return [nn.Parameter(0.3 * torch.randn(shape, dtype=dtype)) for shape in SHAPES]


def flat(values) -> list[np.ndarray]:
    return [value.detach().double().numpy().ravel() for value in values]


def wander(params: list[nn.Parameter]) -> None:
    with torch.no_grad():
        for param in params:
            param.mul_(0.95).add_(0.2 * torch.randn_like(param) * (torch.rand_like(param) < 0.3))


def compare(prior: ss.SpikeSlab, reference: Latents, params: list[nn.Parameter], rtol: float) -> None:
    for ours, theirs in zip(flat(prior.rho.values()), reference.rho, strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=rtol, atol=rtol)
    for (ours0, ours1), theirs0, theirs1 in zip(prior.kappa.values(), reference.kappa0, reference.kappa1, strict=True):
        # kappa0 is a difference of numbers of the size 1/v0
        np.testing.assert_allclose(flat([ours0])[0], theirs0, rtol=rtol, atol=rtol / reference.v0)
        np.testing.assert_allclose(flat([ours1])[0], theirs1, rtol=rtol, atol=rtol / reference.v1)
    assert prior.sigma == pytest.approx(reference.sigma, rel=rtol)
    assert list(prior.delta.values()) == pytest.approx(reference.deltas, rel=rtol)
    assert prior.penalty() == pytest.approx(reference.penalty(flat(params)), rel=max(rtol, 1e-9))
    outs = [torch.zeros_like(param) for param in params]
    prior.add_gradient_(list(params), outs, NUM_DATA)
    for index, out in enumerate(flat(outs)):
        expected = reference.gradient(flat([params[index]])[0], index) / NUM_DATA
        np.testing.assert_allclose(out, expected, rtol=rtol, atol=rtol / reference.v0 / NUM_DATA)


ADAPTATIONS = {
    "sa": ss.SA(ss.polynomial(1.0, power=0.75, offset=3)),
    "clipped": ss.SA(ss.polynomial(5.0, power=0.7)),
    "em": ss.EM(),
}


@pytest.mark.parametrize("cls", [ss.SpikeSlab, ss.priors.SpikeSlabGaussian])
@pytest.mark.parametrize("adapt", ADAPTATIONS)
@pytest.mark.parametrize(
    ("task", "coupling"),
    [
        ("classification", "conjugate"),
        ("classification", "fixed"),
        ("regression", "conjugate"),
        ("regression", "independent"),
        ("regression", "fixed"),
    ],
)
@pytest.mark.parametrize("average", ["sigma", "variance"])
@pytest.mark.parametrize("kappa", [None, (5e-4, 0.3)])
def test_fifty_steps_equal_algorithm_1_with_every_latent_stored(cls, adapt, task, coupling, average, kappa) -> None:
    """Kappa from one smoothed rho is the paper's kappa, which is smoothed on its own; likewise sigma and delta."""
    params = weights()
    settings = {"v0": 0.05, "v1": 2.0, "sigma": 0.8, "a": 1.5, "nu": 2.0, "lam": 0.7, "rho": 0.4}
    prior = cls(
        params,
        **settings,
        b=9.0,
        delta=[0.3, 0.5, 0.7],
        kappa=kappa,
        adapt=ADAPTATIONS[adapt],
        sigma_coupling=coupling,
        sigma_average=average,
    )
    sizes = [param.numel() for param in params]
    reference = Latents(
        sizes=sizes,
        v0=0.05,
        v1=2.0,
        sigma=0.8,
        deltas=[0.3, 0.5, 0.7],
        a=1.5,
        b=[9.0] * 3,
        nu=2.0,
        lam=0.7,
        initial_rho=0.4,
        initial_kappa=(0.6 / 0.05, 0.4 / 2.0) if kappa is None else kappa,
        coupling=coupling,
        average=average,
        spike="laplace" if cls is ss.SpikeSlab else "gaussian",
    )
    likelihood = ss.GaussianLikelihood(prior) if task == "regression" else None
    compare(prior, reference, params, 1e-12)
    generator = np.random.default_rng(0)
    for step in range(1, 51):
        wander(params)
        squares, targets = None, 0.0
        if likelihood is not None:
            residuals = torch.as_tensor(generator.normal(0, 0.5, (5, 2))).requires_grad_()
            likelihood(residuals, torch.zeros(5, 2))
            squares, targets = float(residuals.detach().square().sum()) * NUM_DATA / 5, 2 * NUM_DATA
        omega = min(1.0, ADAPTATIONS[adapt].schedule(step))
        reference.update(flat(params), omega, squares, targets)
        prior.update(step, NUM_DATA)
    compare(prior, reference, params, 1e-9)


def test_fifty_steps_in_float32_agree_to_float32() -> None:
    params = weights(torch.float32)
    prior = ss.SpikeSlab(params, v0=0.05, v1=2.0, adapt=ADAPTATIONS["sa"], sigma_coupling="conjugate")
    sizes = [param.numel() for param in params]
    reference = Latents(
        sizes,
        0.05,
        2.0,
        1.0,
        [0.5] * 3,
        1.0,
        [float(s) for s in sizes],
        1.0,
        1.0,
        0.5,
        (10.0, 0.25),
        "conjugate",
        "sigma",
    )
    for step in range(1, 51):
        wander(params)
        reference.update(flat(params), min(1.0, ADAPTATIONS["sa"].schedule(step)))
        prior.update(step, NUM_DATA)
    compare(prior, reference, params, 2e-5)


def test_default_b_is_the_size_of_each_layer() -> None:
    params = weights()
    prior = ss.SpikeSlab(params, v0=0.05, v1=2.0, adapt=ss.EM(), sigma_coupling="fixed")
    prior.update(1, NUM_DATA)
    for name, rho in prior.rho.items():
        assert prior.delta[name] == pytest.approx(float(rho.sum()) / (2 * rho.numel() - 1), rel=1e-12)


def test_sigma_can_be_left_out_of_rho_and_delta_be_kept() -> None:
    params = weights()
    prior = ss.SpikeSlab(
        params,
        v0=0.05,
        v1=2.0,
        sigma=3.0,
        delta=0.2,
        adapt=ss.EM(),
        sigma_in_rho=False,
        learn_delta=False,
        sigma_coupling="conjugate",
    )
    prior.update(1, NUM_DATA)
    expected = mixture.rho([p.detach() for p in params], v0=0.05, v1=2.0, sigma=1.0, deltas=[0.2] * 3)
    torch.testing.assert_close(list(prior.rho.values()), expected)
    assert list(prior.delta.values()) == [0.2] * 3
    assert prior.sigma != 3.0


@pytest.mark.parametrize("coupling", ["conjugate", "independent"])
@pytest.mark.parametrize("cls", [ss.SpikeSlab, ss.priors.SpikeSlabGaussian])
def test_marginal_follows_the_gradient_of_the_log_mixture_density(cls, coupling) -> None:
    params = weights()
    prior = cls(params, v0=0.05, v1=2.0, sigma=0.6, delta=[0.1, 0.5, 0.8], adapt=ss.Marginal(), sigma_coupling=coupling)
    scale = 0.6 if coupling == "conjugate" else 1.0
    for param, delta in zip(params, (0.1, 0.5, 0.8), strict=True):
        leaf = param.detach().clone().requires_grad_()
        mixture.log_marginal(leaf, v0=0.05, v1=2.0, sigma=scale, delta=delta, spike=cls.spike).sum().backward()
        out = [torch.zeros_like(leaf)]
        prior.add_gradient_([param], out, NUM_DATA)
        torch.testing.assert_close(out[0], -leaf.grad / NUM_DATA)


def test_marginal_keeps_no_tensor_and_moves_sigma_and_delta_only_by_its_schedule() -> None:
    params = weights()
    still = ss.SpikeSlab(params, v0=0.05, v1=2.0, adapt=ss.Marginal(), sigma_coupling="conjugate")
    still.update(1, NUM_DATA)
    assert (still.sigma, still.delta["weights[0]"]) == (1.0, 0.5)
    moving = ss.SpikeSlab(
        params, v0=0.05, v1=2.0, adapt=ss.Marginal(ss.schedules.constant(1.0)), sigma_coupling="fixed"
    )
    rho = {name: value.clone() for name, value in moving.rho.items()}
    moving.update(1, NUM_DATA)
    assert moving.state_dict()["rho"] == []
    for name, value in rho.items():
        assert moving.delta[name] == pytest.approx(float(value.sum()) / (2 * value.numel() - 1), rel=1e-12)


def test_em_is_the_marginal_gradient_one_step_late() -> None:
    params = weights()
    options = {"v0": 0.05, "v1": 2.0, "sigma_coupling": "fixed", "learn_delta": False}
    em, marginal = ss.SpikeSlab(params, adapt=ss.EM(), **options), ss.SpikeSlab(params, adapt=ss.Marginal(), **options)
    em.update(1, NUM_DATA)
    outs = [[torch.zeros_like(p) for p in params] for _ in range(2)]
    em.add_gradient_(params, outs[0], NUM_DATA)
    marginal.add_gradient_(params, outs[1], NUM_DATA)
    torch.testing.assert_close(*outs)


def test_fixed_moves_nothing() -> None:
    params = weights()
    prior = ss.SpikeSlab(params, v0=0.05, v1=2.0, kappa=(3.0, 0.5), adapt=ss.Fixed())
    for step in range(1, 5):
        wander(params)
        prior.update(step, NUM_DATA)
    assert (prior.sigma, prior.delta["weights[0]"], prior.state_dict()["rho"]) == (1.0, 0.5, [])
    kappa0, kappa1 = prior.kappa["weights[0]"]
    assert (kappa0 == 3.0).all()
    assert (kappa1 == 0.5).all()


def test_gradient_of_some_weights_uses_their_own_latents() -> None:
    params = weights()
    prior = ss.SpikeSlab(params, v0=0.05, v1=2.0, delta=[0.1, 0.5, 0.9], adapt=ss.EM())
    prior.update(1, NUM_DATA)
    together = [torch.zeros_like(param) for param in params]
    prior.add_gradient_(params, together, NUM_DATA)
    for index in (2, 0, 1):
        alone = [torch.zeros_like(params[index])]
        prior.add_gradient_([params[index]], alone, NUM_DATA)
        torch.testing.assert_close(alone[0], together[index])


def test_foreach_and_single_tensor_priors_agree() -> None:
    params = weights()
    options = {"v0": 0.05, "v1": 2.0, "adapt": ss.SA(ss.schedules.constant(0.3)), "sigma_coupling": "conjugate"}
    priors = [ss.SpikeSlab(params, **options, foreach=f) for f in (True, False)]
    for step in range(1, 11):
        wander(params)
        for prior in priors:
            prior.update(step, NUM_DATA)
    outs = [[torch.zeros_like(p) for p in params] for _ in priors]
    for prior, out in zip(priors, outs, strict=True):
        prior.add_gradient_(params, out, NUM_DATA)
    torch.testing.assert_close(*outs)
    assert priors[0].sigma == pytest.approx(priors[1].sigma, rel=1e-12)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_weights_have_latents_and_gradient_in_float32(dtype) -> None:
    half = [nn.Parameter((0.3 * torch.randn(50)).to(dtype))]
    full = [nn.Parameter(half[0].detach().float())]
    priors = [ss.SpikeSlab(w, v0=1e-3, v1=1.0, adapt=ss.SA(ss.schedules.constant(0.5))) for w in (half, full)]
    outs = [[torch.zeros_like(w[0])] for w in (half, full)]
    for prior, weight, out in zip(priors, (half, full), outs, strict=True):
        prior.update(1, NUM_DATA)
        prior.add_gradient_(weight, out, NUM_DATA)
        assert prior.rho["weights[0]"].dtype == torch.float32
    assert torch.equal(outs[0][0], outs[1][0].to(dtype))


@pytest.mark.parametrize(
    "settings",
    [
        {"v0": 1e-8, "v1": 1e8},
        {"v0": 1e-8, "v1": 1e8, "delta": 1e-9, "sigma": 1e4},
        {"v0": 0.1, "v1": 10.0, "a": 1e9, "b": 1e9, "nu": 1e9, "lam": 1e9},
        {"v0": 0.1, "v1": 10.0, "nu": 0.0, "lam": 0.0},
        {"v0": 0.1, "v1": 10.0, "rho": 0.0, "delta": 1 - 1e-9},
    ],
)
def test_latents_stay_finite_and_in_range_under_extreme_settings(settings) -> None:
    params = [nn.Parameter(torch.tensor([0.0, 1e-30, 1e-6, 1.0, -1e6]))]
    prior = ss.SpikeSlab(params, adapt=ss.SA(ss.schedules.constant(0.7)), sigma_coupling="conjugate", **settings)
    for step in range(1, 20):
        prior.update(step, NUM_DATA)
    assert np.isfinite(prior.sigma)
    assert prior.sigma > 0
    assert 0 < prior.delta["weights[0]"] < 1
    rho = prior.rho["weights[0]"]
    assert ((rho >= 0) & (rho <= 1)).all()
    out = [torch.zeros(5)]
    prior.add_gradient_(params, out, NUM_DATA)
    assert torch.isfinite(out[0]).all()
    assert np.isfinite(prior.penalty())


def test_all_zero_weights_let_the_prior_adapt_and_give_no_gradient() -> None:
    params = [nn.Parameter(torch.zeros(10))]
    prior = ss.SpikeSlab(params, v0=0.1, v1=10.0, adapt=ss.EM())
    prior.update(1, NUM_DATA)
    out = [torch.zeros(10)]
    prior.add_gradient_(params, out, NUM_DATA)
    assert out[0].tolist() == [0.0] * 10
    assert prior.penalty() == 0.0
    assert prior.diagnostics(NUM_DATA).effective_l1 == {
        "weights[0]": pytest.approx(prior.kappa["weights[0]"][0].max().item() / prior.sigma / NUM_DATA, abs=1)
    }


def test_it_learns_which_weights_are_large_and_how_many() -> None:
    """The prior does its job: three large weights in a thousand."""
    values = 0.001 * torch.randn(1000)
    values[:3] = torch.tensor([3.0, -2.0, 1.0])
    prior = ss.SpikeSlab(
        [nn.Parameter(values)], v0=0.01, v1=10.0, sigma_coupling="fixed", adapt=ss.SA(ss.polynomial(1.0, 0.7, 2))
    )
    for step in range(1, 300):
        prior.update(step, 100)
    rho = prior.rho["weights[0]"]
    assert rho[:3].min() > 0.99
    assert rho[3:].max() < 0.05
    assert prior.delta["weights[0]"] < 0.02


class TestDiagnostics:
    def test_count_the_omegas_and_the_share_of_the_way(self) -> None:
        prior = ss.SpikeSlab(weights(), v0=0.05, v1=2.0, adapt=ss.SA(ss.polynomial(1.0, power=1.0, offset=1)))
        for step in range(1, 5):
            prior.update(step, NUM_DATA)
        diagnostics = prior.diagnostics(NUM_DATA)
        omegas = [1 / 2, 1 / 3, 1 / 4, 1 / 5]
        assert diagnostics.omega_sum == pytest.approx(sum(omegas), rel=1e-12)
        assert diagnostics.progress == pytest.approx(1 - np.prod([1 - o for o in omegas]), rel=1e-12)

    def test_effective_penalties_are_those_of_the_surviving_weights_in_mean_loss_units(self) -> None:
        params = weights()
        with torch.no_grad():
            params[0][0] = 0.0
        prior = ss.SpikeSlab(
            params, v0=0.05, v1=2.0, sigma=0.7, adapt=ss.SA(ss.schedules.constant(0.4)), sigma_coupling="conjugate"
        )
        prior.update(1, NUM_DATA)
        diagnostics = prior.diagnostics(NUM_DATA)
        for (name, (kappa0, kappa1)), param in zip(prior.kappa.items(), params, strict=True):
            alive = param != 0
            expected = float(kappa0[alive].mean()) / prior.sigma / NUM_DATA
            assert diagnostics.effective_l1[name] == pytest.approx(expected, rel=1e-9)
            expected = float(kappa1[alive].mean()) / prior.sigma**2 / NUM_DATA
            assert diagnostics.effective_l2[name] == pytest.approx(expected, rel=1e-9)


class TestInvertedWarning:
    MESSAGE = (
        "The spike (standard deviation 0.00707 sigma) is wider than the slab (0.00316 sigma), so that rho is the "
        "probability that a weight is small: choose v0 smaller or v1 larger unless you reproduce the paper's networks."
    )

    def test_fires_for_the_papers_network_settings(self) -> None:
        with pytest.warns(ss.SpikeSlabWarning) as record:
            prior = ss.SpikeSlab(weights(), v0=0.005, v1=1e-5)
        assert [(str(w.message), w.filename) for w in record] == [(self.MESSAGE, __file__)]
        assert prior.diagnostics(1).inverted

    def test_points_at_the_users_line_through_other_priors(self) -> None:
        stacked = [nn.Parameter(torch.ones(2, 3))]
        with pytest.warns(ss.SpikeSlabWarning) as record:
            ss.priors.StackedSpikeSlab(stacked, v0=0.005, v1=1e-5)
        assert [w.filename for w in record] == [__file__]

    def test_is_silent_for_a_spike_narrower_than_the_slab(self, recwarn) -> None:
        assert not ss.SpikeSlab(weights(), v0=0.7, v1=1.0).inverted  # sqrt(2) 0.7 = 0.99
        assert not ss.priors.SpikeSlabGaussian(weights(), v0=0.99, v1=1.0).inverted
        assert len(recwarn) == 0
        with pytest.warns(ss.SpikeSlabWarning):
            ss.SpikeSlab(weights(), v0=0.72, v1=1.0)


@pytest.mark.parametrize("adapt", [ss.SA(ss.schedules.constant(0.3)), ss.EM(), ss.Marginal(), ss.Fixed()])
class TestConditionOnZeros:
    def prior(self, params: list[nn.Parameter], adapt: Adaptation) -> ss.SpikeSlab:
        return ss.SpikeSlab(params, v0=0.05, v1=2.0, adapt=adapt)

    def pruned(self) -> list[nn.Parameter]:
        params = weights()
        with torch.no_grad():
            for param in params:
                param.mul_(torch.rand_like(param) < 0.5)
        return params

    def test_what_is_left_has_the_slab_alone(self, adapt: Adaptation) -> None:
        params = self.pruned()
        prior = self.prior(params, adapt)
        prior.update(1, NUM_DATA)
        prior.condition_on_zeros()
        assert prior.penalty() == pytest.approx(sum(float((param.detach() ** 2).sum()) for param in params) / (2 * 2.0))
        for param, rho, (kappa0, kappa1) in zip(params, prior.rho.values(), prior.kappa.values(), strict=True):
            assert torch.equal(rho, (param != 0).double())
            assert torch.equal(kappa0[param != 0], torch.zeros_like(kappa0[param != 0]))
            torch.testing.assert_close(kappa1[param != 0], torch.full_like(kappa1[param != 0], 0.5))
        gradients = [torch.zeros_like(param) for param in params]
        prior.add_gradient_(params, gradients, NUM_DATA)
        for param, gradient in zip(params, gradients, strict=True):
            torch.testing.assert_close(gradient, param.detach() / (2.0 * NUM_DATA))

    def test_nothing_moves_any_more_not_even_after_loading(self, adapt: Adaptation) -> None:
        params = self.pruned()
        prior, other = self.prior(params, adapt), self.prior(params, adapt)
        fresh = other.state_dict()
        prior.condition_on_zeros()
        other.load_state_dict(prior.state_dict())
        before = {name: rho.clone() for name, rho in prior.rho.items()}, prior.delta
        wander(params)
        for each in (prior, other):
            each.update(2, NUM_DATA)
            assert all(torch.equal(rho, before[0][name]) for name, rho in each.rho.items())
            assert each.delta == before[1]
        other.load_state_dict(fresh)
        assert other.adapt == adapt


class TestState:
    def test_round_trip_continues_exactly(self) -> None:
        params = weights(torch.float32)
        options = {"v0": 0.05, "v1": 2.0, "adapt": ss.SA(ss.schedules.constant(0.3)), "sigma_coupling": "conjugate"}
        first, second = (ss.SpikeSlab(params, **options) for _ in range(2))
        for step in range(1, 4):
            first.update(step, NUM_DATA)
        second.load_state_dict(first.state_dict())
        for step in range(4, 8):
            wander(params)
            first.update(step, NUM_DATA)
            second.update(step, NUM_DATA)
        one, two = first.state_dict(), second.state_dict()
        assert all(torch.equal(a, b) for k in ("rho", "rho_bar") for a, b in zip(one[k], two[k], strict=True))
        assert {k: v for k, v in one.items() if "rho" not in k} == {k: v for k, v in two.items() if "rho" not in k}

    def test_loading_copies_so_that_two_priors_do_not_share_latents(self) -> None:
        params = weights()
        first, second = (ss.SpikeSlab(params, v0=0.05, v1=2.0, adapt=ss.EM()) for _ in range(2))
        first.update(1, NUM_DATA)
        second.load_state_dict(first.state_dict())
        before = first.rho["weights[0]"].clone()
        wander(params)
        second.update(2, NUM_DATA)
        assert torch.equal(first.rho["weights[0]"], before)

    def test_a_fresh_state_resets_a_prior_that_has_moved(self) -> None:
        params = weights()
        first, second = (ss.SpikeSlab(params, v0=0.05, v1=2.0, adapt=ss.EM()) for _ in range(2))
        second.update(1, NUM_DATA)
        second.load_state_dict(first.state_dict())
        assert second.state_dict() == first.state_dict()
        assert (second.rho["weights[0]"] == 0.5).all()

    @pytest.mark.parametrize(
        ("change", "message"),
        [
            ({"kind": "L1"}, "state_dict must hold the state of a SpikeSlab prior, but got 'L1'."),
            (
                {"names": ["x"]},
                "state_dict must be for the weights 'weights[0]', 'weights[1]', 'weights[2]', but got 'x'.",
            ),
            (
                {"rho": [torch.zeros(1), torch.zeros(7), torch.zeros(2)]},
                "state_dict must hold rho of the shapes [(4, 3), (7,), (2, 3, 2, 2)], but got [(1,), (7,), (2,)].",
            ),
            (
                {"rho_bar": [torch.zeros(4, 3)]},
                "state_dict must hold rho_bar of the shapes [(4, 3), (7,), (2, 3, 2, 2)], but got [(4, 3)].",
            ),
        ],
    )
    def test_a_foreign_state_is_refused_and_changes_nothing(self, change, message) -> None:
        prior = ss.SpikeSlab(weights(), v0=0.05, v1=2.0, adapt=ss.EM())
        prior.update(1, NUM_DATA)
        sigma, delta, rho = prior.sigma, prior.delta, prior.rho["weights[0]"].clone()
        with pytest.raises(ArgumentValueError) as error:
            prior.load_state_dict({**prior.state_dict(), "sigma": 99.0, "delta": [0.9] * 3} | change)
        assert str(error.value) == message
        assert (prior.sigma, prior.delta) == (sigma, delta)
        assert torch.equal(prior.rho["weights[0]"], rho)


def test_at_most_two_tensors_for_each_weight() -> None:
    """With the momentum buffer and the noise that makes four floats for each sparse weight."""
    params = weights(torch.float32)
    prior = ss.SpikeSlab(params, v0=0.05, v1=2.0)
    prior.update(1, NUM_DATA)
    state = prior.state_dict()
    numbers = sum(t.numel() for value in state.values() if isinstance(value, list) for t in value if torch.is_tensor(t))
    assert numbers == 2 * sum(param.numel() for param in params)


@pytest.mark.parametrize("cls", [ss.SpikeSlab, ss.priors.SpikeSlabGaussian])
@pytest.mark.parametrize(
    "adapt", [ss.Marginal(), ss.Fixed(), ss.SA(ss.schedules.constant(0.3))], ids=["marginal", "fixed", "sa"]
)
def test_gradient_is_the_difference_quotient_of_the_penalty(cls, adapt) -> None:
    """What is reported and what the sampler descends are the same thing, in every mode."""
    params = weights()
    prior = cls(params, v0=0.05, v1=2.0, sigma=0.6, delta=0.3, adapt=adapt, sigma_coupling="fixed")
    prior.update(1, NUM_DATA)
    out = [torch.zeros_like(param) for param in params]
    prior.add_gradient_(params, out, NUM_DATA)
    position, width = (2, 1), 1e-6
    values = []
    for shift in (width, -2 * width):
        with torch.no_grad():
            params[0][position] += shift
        values.append(prior.penalty(NUM_DATA))
    assert (values[0] - values[1]) / (2 * width) == pytest.approx(float(out[0][position]), rel=1e-5)


def test_sigma_is_by_default_learned_from_residuals_alone_and_kept_where_there_are_none() -> None:
    params = weights()
    prior = ss.SpikeSlab(params, v0=0.05, v1=2.0, sigma=0.6, adapt=ss.EM())
    prior.update(1, NUM_DATA)
    assert prior.sigma == 0.6
    likelihood = ss.GaussianLikelihood(prior)
    likelihood(torch.full((5,), 2.0, requires_grad=True), torch.zeros(5))
    prior.update(2, NUM_DATA)
    expected = mixture.sigma_independent(squares=4.0 * NUM_DATA, num_targets=NUM_DATA, nu=1.0, lam=1.0)
    assert prior.sigma == pytest.approx(expected, rel=1e-9)
