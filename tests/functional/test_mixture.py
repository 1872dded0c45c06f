"""The mixture's formulas against the densities and objectives they come from."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from reference import q1, q2, slab_probability
from scipy import optimize
from torch import Tensor, nn

import spikeslab as ss
from spikeslab.functional import mixture
from spikeslab.functional.mixture import GAUSSIAN, LAPLACE, Affine

SPIKES = [LAPLACE, GAUSSIAN]
positive = st.floats(1e-3, 1e3)


def kappas(rng: np.random.Generator, size: int) -> tuple[np.ndarray, np.ndarray]:
    return rng.gamma(1.0, 5.0, size), rng.gamma(1.0, 0.5, size)


def argmax(function, guess: float) -> float:
    """Maximum over (0, inf) by a search on the logarithm, around a guess that need not be right."""
    found = optimize.minimize_scalar(
        lambda t: -function(math.exp(t)), bracket=(math.log(guess) - 2, math.log(guess) + 2), tol=1e-12
    )
    return math.exp(found.x)


@pytest.mark.parametrize("seed", range(10))
@pytest.mark.parametrize("spike", SPIKES, ids=lambda s: s.name)
class TestSigmaMaximisesQ1:
    """The roots of eq. 14 are where a numerical search finds the maximum of Q1, on random inputs."""

    def inputs(self, seed: int):
        rng = np.random.default_rng(seed)
        size = int(rng.integers(1, 200))
        beta = rng.normal(0, rng.uniform(0.01, 3), size)
        nu, lam = rng.uniform(0.1, 50), rng.uniform(0.01, 20)
        return rng, beta, *kappas(rng, size), nu, lam

    def sums(self, spike, beta, kappa0, kappa1) -> tuple[float, float]:
        if spike.power == 1:
            return float(np.sum(kappa0 * np.abs(beta))), float(np.sum(kappa1 * beta**2))
        return 0.0, float(np.sum((kappa0 + kappa1) * beta**2))

    def test_classification(self, seed: int, spike) -> None:
        _, beta, kappa0, kappa1, nu, lam = self.inputs(seed)
        b, j = self.sums(spike, beta, kappa0, kappa1)
        root = mixture.sigma_classification(b=b, j=j, num_weights=beta.size, nu=nu, lam=lam)
        assert root == pytest.approx(
            argmax(lambda s: q1(s, beta, kappa0, kappa1, nu, lam, power0=spike.power), 1.0), rel=1e-6
        )

    def test_regression_with_n_p_nu_and_two(self, seed: int, spike) -> None:
        rng, beta, kappa0, kappa1, nu, lam = self.inputs(seed)
        residuals = rng.normal(0, rng.uniform(0.1, 5), int(rng.integers(1, 50)))
        b, j = self.sums(spike, beta, kappa0, kappa1)
        squares = float(np.sum(residuals**2))
        settings = {"b": b, "j": j, "num_targets": residuals.size, "num_weights": beta.size, "nu": nu, "lam": lam}
        root = mixture.sigma_regression(squares=squares, **settings)
        best = argmax(lambda s: q1(s, beta, kappa0, kappa1, nu, lam, residuals, spike.power), 1.0)
        assert root == pytest.approx(best, rel=1e-6)
        # The equation as printed, without the 2, is not a maximum.
        printed = mixture.sigma_regression(squares=squares, **{**settings, "num_targets": residuals.size - 2})
        assert printed != pytest.approx(best, rel=1e-4)

    def test_independent(self, seed: int, spike) -> None:
        rng, *_, nu, lam = self.inputs(seed)
        residuals = rng.normal(0, rng.uniform(0.1, 5), 20)
        nothing = np.zeros(0)
        root = mixture.sigma_independent(squares=float(np.sum(residuals**2)), num_targets=20, nu=nu, lam=lam)
        best = argmax(lambda s: q1(s, nothing, nothing, nothing, nu, lam, residuals), 1.0)
        assert root == pytest.approx(best, rel=1e-6)


@pytest.mark.parametrize("seed", range(10))
def test_delta_maximises_q2(seed: int) -> None:
    rng = np.random.default_rng(seed)
    rho = rng.beta(0.5, 2.0, int(rng.integers(2, 300)))
    a, b = 1 + rng.gamma(1.0, 10.0), 1 + rng.gamma(1.0, 100.0)
    found = optimize.minimize_scalar(
        lambda d: -q2(d, rho, a, b), bounds=(1e-9, 1 - 1e-9), method="bounded", options={"xatol": 1e-12}
    )
    root = mixture.delta(rho_sum=float(rho.sum()), num_weights=rho.size, a=a, b=b)
    assert root == pytest.approx(found.x, abs=1e-6)


def test_delta_stays_inside_the_unit_interval_where_q2_has_its_maximum_on_an_end() -> None:
    assert 0 < mixture.delta(rho_sum=0.0, num_weights=10, a=1.0, b=1.0) < 1e-6
    assert 1 - 1e-6 < mixture.delta(rho_sum=10.0, num_weights=10, a=1.0, b=1.0) < 1


class TestRho:
    @pytest.mark.parametrize("spike", SPIKES, ids=lambda s: s.name)
    @given(v0=positive, v1=positive, sigma=positive, delta=st.floats(1e-3, 1 - 1e-3))
    def test_is_bayes_rule(self, spike, v0: float, v1: float, sigma: float, delta: float) -> None:
        widths = sigma * np.array([spike.standard_deviation(v0), GAUSSIAN.standard_deviation(v1)])
        beta = np.outer([-3, -1, -0.1, 0, 0.2, 2, 4], widths).ravel()
        with np.errstate(invalid="ignore", divide="ignore"):
            expected = slab_probability(beta, v0, v1, sigma, delta, spike.name)
        known = np.isfinite(expected)  # exp/exp gives 0/0 where the log odds do not
        (rho,) = mixture.rho([torch.tensor(beta)], v0=v0, v1=v1, sigma=sigma, deltas=[delta], spike=spike)
        assert torch.isfinite(rho).all()
        np.testing.assert_allclose(rho.numpy()[known], expected[known], rtol=1e-7, atol=1e-12)

    def test_is_the_printed_log_odds(self) -> None:
        b, s, v0, v1, d = 0.3, 0.7, 0.05, 2.0, 0.2
        odds = (
            -(b**2) / (2 * s**2 * v1)
            + b / (s * v0)
            + 0.5 * math.log(2 * v0**2 / (math.pi * v1))
            + math.log(d / (1 - d))
        )
        (rho,) = mixture.rho([torch.tensor([b], dtype=torch.float64)], v0=v0, v1=v1, sigma=s, deltas=[d])
        assert float(rho) == pytest.approx(1 / (1 + math.exp(-odds)), rel=1e-12)

    @pytest.mark.parametrize(("v0", "v1"), [(0.005, 1e-5), (1e-3, 0.04), (0.1, 10.0), (1e-6, 1e4), (1.0, 1e-6)])
    @pytest.mark.parametrize("sigma", [1e-3, 1.0, 1e3])
    @pytest.mark.parametrize("delta", [1e-12, 0.5, 1 - 1e-9])
    @pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
    def test_is_finite_up_to_a_million(self, v0: float, v1: float, sigma: float, delta: float, dtype) -> None:
        magnitudes = torch.cat([torch.zeros(1), torch.logspace(-30, 6, 200)]).to(dtype)
        beta = torch.cat([magnitudes, -magnitudes])
        for foreach in (True, False):
            (rho,) = mixture.rho([beta], v0=v0, v1=v1, sigma=sigma, deltas=[delta], foreach=foreach)
            assert torch.isfinite(rho).all()
            assert ((rho >= 0) & (rho <= 1)).all()

    def test_of_a_huge_weight_belongs_to_the_heavier_tail(self) -> None:
        # The Laplace tail outlasts the Gaussian one, so rho ends at 0; exp/exp gives NaN from about 0.5 on.
        (rho,) = mixture.rho([torch.tensor([0.4, 1e6])], v0=0.005, v1=1e-5, sigma=1.0, deltas=[0.5])
        assert rho.tolist() == [0.0, 0.0]

    def test_uses_the_delta_of_its_layer(self) -> None:
        beta = torch.linspace(-1, 1, 11)
        low, high = mixture.rho([beta, beta], v0=0.1, v1=1.0, sigma=1.0, deltas=[0.1, 0.9])
        assert (low < high).all()
        ratio = torch.logit(high.double()) - torch.logit(low.double())
        assert ratio.tolist() == pytest.approx([2 * math.log(9)] * 11, rel=1e-4)

    def test_leaves_the_weights_alone(self) -> None:
        for foreach in (True, False):
            beta = torch.randn(50)
            before = beta.clone()
            mixture.rho([beta], v0=0.1, v1=1.0, sigma=1.0, deltas=[0.5], foreach=foreach)
            assert torch.equal(beta, before)


def test_kappa_is_the_expected_indicator_over_its_scale() -> None:
    (kappa0,), (kappa1,) = mixture.kappa([torch.tensor([0.0, 0.25, 1.0])], v0=0.5, v1=4.0)
    assert kappa0.tolist() == [2.0, 1.5, 0.0]
    assert kappa1.tolist() == [0.0, 0.0625, 0.25]


@pytest.mark.parametrize("spike", SPIKES, ids=lambda s: s.name)
@given(v0=st.floats(0.01, 10), v1=st.floats(0.01, 10), sigma=st.floats(0.1, 10), delta=st.floats(0.01, 0.99))
def test_fishers_identity(spike, v0: float, v1: float, sigma: float, delta: float) -> None:
    """The gradient of the log marginal is minus the elastic net's at the responsibilities of the same weights."""
    values = torch.tensor([-7.0, -1.3, -0.2, -0.01, 0.003, 0.05, 0.4, 2.0, 11.0], dtype=torch.float64)
    beta = values.clone().requires_grad_()
    mixture.log_marginal(beta, v0=v0, v1=v1, sigma=sigma, delta=delta, spike=spike).sum().backward()
    rhos = mixture.rho([values], v0=v0, v1=v1, sigma=sigma, deltas=[delta], spike=spike)
    l1, l2 = mixture.elastic_net(Affine(1 / v0, -1 / v0), Affine(0.0, 1 / v1), spike)
    gradient = [torch.zeros_like(values)]
    mixture.add_elastic_net_gradient_(gradient, [values], rhos, l1.scale(1 / sigma), l2.scale(1 / sigma**2))
    torch.testing.assert_close(-gradient[0], beta.grad, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("spike", SPIKES, ids=lambda s: s.name)
def test_log_marginal_is_the_log_of_the_mixture_and_integrates_to_one(spike) -> None:
    from scipy import integrate, stats

    v0, v1, sigma, delta = 0.3, 2.0, 0.7, 0.2
    narrow = stats.laplace(scale=sigma * v0) if spike is LAPLACE else stats.norm(scale=sigma * math.sqrt(v0))
    beta = np.linspace(-4, 4, 41)
    expected = np.log((1 - delta) * narrow.pdf(beta) + delta * stats.norm(scale=sigma * math.sqrt(v1)).pdf(beta))

    def density(values):
        return mixture.log_marginal(torch.as_tensor(values), v0=v0, v1=v1, sigma=sigma, delta=delta, spike=spike)

    np.testing.assert_allclose(density(beta).numpy(), expected, rtol=1e-12)
    area = 2 * integrate.quad(lambda x: math.exp(density(np.array(x))), 0, 20)[0]
    assert area == pytest.approx(1.0, abs=1e-7)


def random_tensors(shapes, dtype=torch.float64) -> list[torch.Tensor]:
    return [torch.randn(shape, dtype=dtype) for shape in shapes]


@pytest.mark.parametrize("spike", SPIKES, ids=lambda s: s.name)
@pytest.mark.parametrize("smoothed", [True, False])
@pytest.mark.parametrize("foreach", [True, False])
def test_gradient_is_autograd_of_the_penalty(spike, smoothed: bool, foreach: bool) -> None:
    shapes = [(3, 4), (7,), ()]
    betas = random_tensors(shapes)
    s = [torch.rand_like(beta) for beta in betas] if smoothed else None
    sigma, kappa0, kappa1 = 0.6, Affine(3.0, -2.0 if smoothed else 0.0), Affine(0.5, 1.5 if smoothed else 0.0)
    total = torch.zeros((), dtype=torch.float64)
    leaves = [beta.clone().requires_grad_() for beta in betas]
    for index, leaf in enumerate(leaves):
        share = s[index] if s is not None else torch.zeros_like(leaf)
        phi0 = leaf.abs() / sigma if spike is LAPLACE else leaf**2 / (2 * sigma**2)
        total = total + ((kappa0.base + kappa0.slope * share) * phi0).sum()
        total = total + ((kappa1.base + kappa1.slope * share) * leaf**2 / (2 * sigma**2)).sum()
    total.backward()
    outs = random_tensors(shapes)
    expected = [out + leaf.grad for out, leaf in zip(outs, leaves, strict=True)]
    l1, l2 = mixture.elastic_net(kappa0, kappa1, spike)
    mixture.add_elastic_net_gradient_(outs, betas, s, l1.scale(1 / sigma), l2.scale(1 / sigma**2), foreach=foreach)
    torch.testing.assert_close(outs, expected)
    b, j = mixture.elastic_net_sums(betas, s, l1, l2)
    assert b / sigma + j / (2 * sigma**2) == pytest.approx(float(total.detach()), rel=1e-12)


def test_subgradient_at_zero_is_zero_so_that_a_pruned_weight_is_not_pushed() -> None:
    for foreach in (True, False):
        outs = [torch.zeros(3)]
        mixture.add_elastic_net_gradient_(
            outs, [torch.zeros(3)], [torch.rand(3)], Affine(5.0, 1.0), Affine(1.0, 1.0), foreach=foreach
        )
        assert outs[0].tolist() == [0.0, 0.0, 0.0]


shapes = st.lists(st.sampled_from([(), (0,), (1,), (3, 0), (2, 3), (4, 1, 2), (2, 3, 4, 5)]), min_size=1, max_size=4)


@given(shapes=shapes, power=st.sampled_from(SPIKES), dtype=st.sampled_from([torch.float32, torch.float64]))
def test_foreach_and_single_tensor_variants_agree_on_any_shapes(shapes, power, dtype) -> None:
    betas = random_tensors(shapes, dtype)
    settings = {"v0": 0.1, "v1": 2.0, "sigma": 0.5, "deltas": [0.3] * len(betas), "spike": power}
    many, single = (mixture.rho(betas, **settings, foreach=foreach) for foreach in (True, False))
    torch.testing.assert_close(many, single, rtol=1e-6, atol=1e-7)
    for l1, l2 in itertools.product((Affine(0.0, 0.0), Affine(2.0, 0.0), Affine(2.0, -1.0)), repeat=2):
        results = []
        for foreach in (True, False):
            outs = [torch.ones_like(beta) for beta in betas]
            mixture.add_elastic_net_gradient_(outs, betas, single, l1, l2, foreach=foreach)
            results.append(outs)
        torch.testing.assert_close(*results, rtol=1e-6, atol=1e-6)


def test_channels_last_weights_give_the_same_rho() -> None:
    beta = torch.randn(4, 3, 5, 5)
    odd = beta.to(memory_format=torch.channels_last)
    settings = {"v0": 0.1, "v1": 2.0, "sigma": 0.5, "deltas": [0.3]}
    assert torch.equal(mixture.rho([odd], **settings)[0], mixture.rho([beta], **settings)[0])


# ---- every implementation of equations 12 to 15, on the same inputs --------------------------------------------------

ROWS, P, STEPS = 40, 17, 4
V0, V1, SIGMA, DELTA, A, NU, LAM, KAPPA = 0.07, 2.0, 1.3, 0.3, 2.0, 3.0, 0.7, 1.5
OMEGA = (1.0, 3.0, 0.75)  # A (k + B)^-alpha
SHARED = {"v0": V0, "v1": V1, "sigma": SIGMA, "delta": DELTA, "a": A, "nu": NU, "lam": LAM}


class Case(NamedTuple):
    """Inputs of all implementations: the weights stay where they are while the latents take some steps."""

    family: str
    maximum: str
    method: str

    @property
    def x(self) -> Tensor:
        return torch.randn(ROWS, P, generator=torch.Generator().manual_seed(1), dtype=torch.float64)

    @property
    def y(self) -> Tensor:
        y = torch.randn(ROWS, generator=torch.Generator().manual_seed(2), dtype=torch.float64)
        return y if self.family == "regression" else (y > 0).double()

    @property
    def beta(self) -> Tensor:
        beta = torch.randn(P, generator=torch.Generator().manual_seed(3), dtype=torch.float64)
        return beta * torch.logspace(-3, 0.5, P, dtype=torch.float64)

    @property
    def adapt(self) -> ss.SA:
        return ss.EM() if self.method == "em" else ss.SA(ss.polynomial(OMEGA[0], power=OMEGA[2], offset=OMEGA[1]))

    @property
    def prior(self) -> dict[str, Any]:
        extra = {"sigma_coupling": "conjugate", "sigma_maximum": self.maximum, "adapt": self.adapt}
        return SHARED | extra | {"rho": DELTA, "kappa": (KAPPA, KAPPA)}


class State(NamedTuple):
    """The latents, as vectors."""

    rho: Any
    kappa0: Any
    kappa1: Any
    sigma: float
    delta: float


def equations(case: Case) -> State:
    """The functions of :mod:`spikeslab.functional.mixture`, one after the other."""
    beta, sigma, delta = case.beta, SIGMA, DELTA
    rho, kappa0, kappa1 = torch.full_like(beta, DELTA), torch.full_like(beta, KAPPA), torch.full_like(beta, KAPPA)
    squares = float((case.y - case.x @ beta).square().sum())
    for k in range(1, STEPS + 1):
        omega = case.adapt.omega(k)
        rho = rho.lerp(mixture.rho([beta], v0=V0, v1=V1, sigma=sigma, deltas=[delta])[0], omega)
        (new0,), (new1,) = mixture.kappa([rho], v0=V0, v1=V1)
        kappa0, kappa1 = kappa0.lerp(new0, omega), kappa1.lerp(new1, omega)
        sums = {"b": float((kappa0 * beta.abs()).sum()), "j": float((kappa1 * beta**2).sum())}
        rest = {"num_weights": P, "nu": NU, "lam": LAM}
        if case.family == "regression":
            regression = {"squares": squares, "num_targets": ROWS, "printed": case.maximum == "printed"}
            new = mixture.sigma_regression(**sums, **rest, **regression)
        else:
            new = mixture.sigma_classification(**sums, **rest)
        sigma += omega * (new - sigma)
        delta += omega * (mixture.delta(rho_sum=float(rho.sum()), num_weights=P, a=A, b=float(P)) - delta)
    return State(rho, kappa0, kappa1, sigma, delta)


def standing_steps(case: Case, weight: nn.Parameter, prior: ss.priors.Prior, likelihood: Any, **options: Any) -> None:
    """Steps of size zero."""
    sampler = ss.SGLD([weight], lr=0.0, num_data=ROWS, temperature=0.0, prior=prior, seed=0, **options)
    chains = weight.shape[:-1]
    for _ in range(STEPS):
        sampler.zero_grad()
        prediction = torch.einsum("np,...p->...n", case.x, weight)
        loss = prediction.sum() if likelihood is None else likelihood(prediction, case.y.expand(*chains, ROWS))
        loss.backward()
        sampler.step()


def single(fused: bool, cls: type[ss.SpikeSlab] = ss.SpikeSlab) -> Callable[[Case], State]:
    def run(case: Case) -> State:
        weight = nn.Parameter(case.beta)
        prior = cls([weight], **case.prior)
        likelihood = ss.GaussianLikelihood(prior) if case.family == "regression" else None
        standing_steps(case, weight, prior, likelihood, fused=fused)
        (rho,), ((kappa0, kappa1),), (delta,) = (d.values() for d in (prior.rho, prior.kappa, prior.delta))
        return State(rho, kappa0, kappa1, prior.sigma, delta)

    return run


def stacked(case: Case) -> State:
    """The second of two chains."""
    weight = nn.Parameter(torch.stack([2.0 * case.beta, case.beta]))
    prior = ss.priors.StackedSpikeSlab([weight], **case.prior)
    regression = case.family == "regression"
    likelihood = ss.likelihoods.StackedGaussianLikelihood(prior) if regression else None
    standing_steps(case, weight, prior, likelihood)
    (rho,), ((kappa0, kappa1),), (delta,) = (d.values() for d in (prior.rho, prior.kappa, prior.delta))
    return State(rho[1], kappa0[1], kappa1[1], float(prior.sigma[1]), float(delta[1]))


def estimator(case: Case) -> State:
    """The compiled loop of the estimators' ``sgld`` methods."""
    from spikeslab.sklearn._sgld import SGLDChain, SGLDOptions

    settings = SGLDOptions(
        **SHARED,
        sigma_maximum=case.maximum,
        kappa=KAPPA,
        omega=OMEGA,
        step=(1e-300, 0.0, 0.0),
        temperature=0.0,
        batch_size=ROWS,
    )
    x, y = np.ascontiguousarray(case.x.numpy()), case.y.numpy()
    classes = 0 if case.family == "regression" else 2
    chain = SGLDChain(x, y, classes, f"sgld-{case.method}", settings, STEPS, STEPS, np.random.default_rng(0))
    chain.state.beta[0] = case.beta.numpy()
    chain.advance(STEPS)
    state = chain.state
    return State(state.rho[0], state.kappa0[0], state.kappa1[0], *state.latent)


IMPLEMENTATIONS: dict[str, Callable[[Case], State]] = {
    "torch": single(fused=False),
    "fused kernel": single(fused=True),
    "groups of one": single(fused=False, cls=ss.priors.GroupSpikeSlab),
    "stacked": stacked,
    "estimator": estimator,
}


def cases() -> Iterator[Case]:
    for method in ("sa", "em"):
        yield Case("classification", "joint", method)
        for maximum in ("joint", "printed"):
            yield Case("regression", maximum, method)


@pytest.mark.parametrize("name", IMPLEMENTATIONS)
@pytest.mark.parametrize("case", list(cases()), ids="-".join)
def test_every_implementation_has_the_latents_of_the_equations(name: str, case: Case) -> None:
    if name in ("fused kernel", "estimator"):
        pytest.importorskip("numba")
    expected, found = equations(case), IMPLEMENTATIONS[name](case)
    for latent, want, got in zip(State._fields, expected, found, strict=True):
        assert np.asarray(got) == pytest.approx(np.asarray(want), rel=1e-10, abs=1e-13), latent


def test_the_two_maxima_of_sigma_differ_by_the_two_in_r_a() -> None:
    joint, printed = (equations(Case("regression", maximum, "em")).sigma for maximum in ("joint", "printed"))
    assert joint < printed < 1.05 * joint
