"""Equations 12 to 15 in every implementation, on the same inputs: all must have the same latents."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import spikeslab as ss
from spikeslab.functional import mixture

pytest.importorskip("numba")

from spikeslab.sklearn import SGLDOptions
from spikeslab.sklearn._sgld import SGLDChain

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
    expected, found = equations(case), IMPLEMENTATIONS[name](case)
    for latent, want, got in zip(State._fields, expected, found, strict=True):
        assert np.asarray(got) == pytest.approx(np.asarray(want), rel=1e-10, abs=1e-13), latent


def test_the_two_maxima_of_sigma_differ_by_the_two_in_r_a() -> None:
    joint, printed = (equations(Case("regression", maximum, "em")).sigma for maximum in ("joint", "printed"))
    assert joint < printed < 1.05 * joint
