r"""Theorem 1 and Corollary 1 of the paper on a problem small enough to be solved exactly.

One weight :math:`\beta` has the likelihood :math:`\exp(-(\beta - m)^2/(2 s^2))` and an SSGL prior with fixed sigma and
delta, so its latent variables are :math:`\theta = (\rho, \kappa_0, \kappa_1)`. For given latents the target is
:math:`\exp(\tau L(\beta, \theta))`, an elastic-net posterior on the line, and the fixed point solves

.. math:: \rho^* = E[\tilde\rho(\beta)], \qquad \kappa_0^* = (1-\rho^*)/v_0, \qquad \kappa_1^* = \rho^*/v_1,

with the expectation under the law of the chain at :math:`\theta^*`: by quadrature for the target itself, or from the
Markov kernel of SGLD on a grid for the chain with step size epsilon. Many weights with the same likelihood are as many
independent chains.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import torch
from matplotlib.figure import Figure
from numpy.typing import NDArray

from spikeslab.functional import mixture
from spikeslab.priors import SA, SpikeSlab
from spikeslab.report.figures import BLUE, GREEN, GREY, INK, ORANGE, new_figure
from spikeslab.report.tables import Column, Table
from spikeslab.samplers import SGLD
from spikeslab.schedules import polynomial

Array = NDArray[np.float64]

POINTS = 401
STEP_SIZES = (0.16, 0.08, 0.04, 0.02, 0.01, 0.005)
TIME = 15.0
COROLLARY1_STEPS = sum(math.ceil(TIME / lr) for lr in STEP_SIZES)


@dataclass(frozen=True)
class OneWeight:
    """Weight with the likelihood N(m, s²) and an SSGL prior (v0, v1, delta), at temperature 1 and sigma 1."""

    m: float = 0.5
    s: float = 0.4
    v0: float = 0.2
    v1: float = 2.0
    delta: float = 0.4

    def grid(self) -> Array:
        """Return the points of all integrals; 0, where the density has its kink, lies between two of them."""
        step = (12.0 * self.s + abs(self.m)) / POINTS
        return np.asarray((np.arange(POINTS) + 0.5 - POINTS // 2) * step + 0.5 * self.m, dtype=np.float64)

    def target(self, rho: float) -> Array:
        r"""Return the law :math:`\exp(L(\beta, \theta))` with the latents of ``rho``, as probabilities on the grid."""
        beta = self.grid()
        prior = (1.0 - rho) / self.v0 * np.abs(beta), rho / self.v1 * beta**2 / 2.0
        energy = (beta - self.m) ** 2 / (2.0 * self.s**2) + prior[0] + prior[1]
        weights = np.exp(energy.min() - energy)
        return np.asarray(weights / weights.sum())

    def chain_law(self, rho: float, lr: float) -> Array:
        """Return the stationary probabilities of SGLD with step size ``lr``, from its Markov kernel on the grid."""
        beta = self.grid()
        gradient = (beta - self.m) / self.s**2 + (1.0 - rho) / self.v0 * np.sign(beta) + rho / self.v1 * beta
        arrival = beta - lr * gradient
        kernel = np.exp(-((beta[None, :] - arrival[:, None]) ** 2) / (4.0 * lr))
        kernel /= kernel.sum(axis=1, keepdims=True)
        system = kernel.T - np.eye(len(beta))
        system[-1] = 1.0
        law: Array = np.linalg.solve(system, np.eye(len(beta))[-1])
        return law

    def fixed_point(self, lr: float | None = None) -> float:
        """Return the rho* of the target (``lr=None``) or of the chain with step size ``lr``, by bisection."""
        beta = torch.from_numpy(self.grid())
        (eq12,) = mixture.rho([beta], v0=self.v0, v1=self.v1, sigma=1.0, deltas=[self.delta])
        low, high = 0.0, 1.0
        while high - low > 1e-6:
            rho = 0.5 * (low + high)
            law = self.target(rho) if lr is None else self.chain_law(rho, lr)
            low, high = (rho, high) if float(law @ eq12.numpy()) - rho > 0.0 else (low, rho)
        return 0.5 * (low + high)


class WeightChains:
    """Independent SGLD-SA chains for the same weight, run through the public sampler and prior."""

    def __init__(self, problem: OneWeight, chains: int, lr: float, omega: Callable[[int], float], seed: int) -> None:
        generator = torch.Generator().manual_seed(seed)
        start = problem.m + problem.s * torch.randn(chains, generator=generator)
        self.problem = problem
        self.beta = torch.nn.Parameter(start)
        scales: dict[str, Any] = {"v0": problem.v0, "v1": problem.v1, "delta": problem.delta}
        self.prior = SpikeSlab(
            {"beta": self.beta}, **scales, learn_delta=False, sigma_coupling="fixed", adapt=SA(omega)
        )
        self.sampler = SGLD([self.beta], lr=lr, num_data=1, prior=self.prior, seed=seed, check_finite=False)

    def run(self, steps: int) -> None:
        """Advance all chains."""
        for _ in range(steps):
            self.beta.grad = (self.beta.detach() - self.problem.m) / self.problem.s**2
            self.sampler.step()

    def latents(self) -> Array:
        """Return the latents of every chain, of shape (chains, 3)."""
        kappa0, kappa1 = self.prior.kappa["beta"]
        return torch.stack([self.prior.rho["beta"], kappa0, kappa1], dim=1).double().numpy()


@dataclass(frozen=True)
class LatentConvergence:
    """Mean squared distance of the latents to their fixed point along the chain."""

    alpha: float
    steps: Array
    errors: Array
    slope: float
    slope_error: float


def theorem1(
    problem: OneWeight,
    *,
    alpha: float,
    chains: int = 4000,
    steps: int = 20_000,
    seed: int = 0,
    on_step: Callable[[int], None] = lambda _: None,
) -> LatentConvergence:
    r"""Measure :math:`E\|\theta_k - \theta^*\|^2` for :math:`\omega_k = 2(k + 20)^{-\alpha}` and fit its log-log slope.

    The fit is over the last 9/10 of the run, where the start is forgotten. Its error comes from splitting the chains
    into ten batches.
    """
    lr = 0.02
    rho = problem.fixed_point(lr)
    star = np.array([rho, (1.0 - rho) / problem.v0, rho / problem.v1])
    run = WeightChains(problem, chains, lr, polynomial(2.0, power=alpha, offset=20), seed)
    marks = np.unique(np.geomspace(10, steps, 40).astype(int))
    errors = np.empty((len(marks), chains))
    for index, count in enumerate(np.diff(marks, prepend=0).tolist()):
        run.run(count)
        on_step(count)
        errors[index] = ((run.latents() - star) ** 2).sum(axis=1)
    late = marks >= steps // 10
    batches = errors[late].reshape(int(late.sum()), 10, -1).mean(axis=2)
    slopes = [np.polyfit(np.log(marks[late]), np.log(column), 1)[0] for column in batches.T]
    slope_error = float(np.std(slopes, ddof=1) / math.sqrt(len(slopes)))
    return LatentConvergence(alpha, marks.astype(float), errors.mean(axis=1), float(np.mean(slopes)), slope_error)


@dataclass(frozen=True)
class WeakConvergence:
    """Kolmogorov-Smirnov distances to exp(L(beta, theta*)) for one step size.

    ``distance`` is that of the samples, ``exact`` that of the chain's stationary law on the grid, the bias of the
    discretisation, and ``noise`` the mean of as many independent draws from the target.
    """

    lr: float
    distance: float
    exact: float
    noise: float


def corollary1(
    problem: OneWeight,
    *,
    lrs: Sequence[float] = STEP_SIZES,
    chains: int = 40_000,
    time: float = TIME,
    seed: int = 0,
    on_step: Callable[[int], None] = lambda _: None,
) -> list[WeakConvergence]:
    """Run SGLD-SA for the same diffusion time at each step size and compare the law of the weights to the target."""
    rho_star = problem.fixed_point()
    grid, target = problem.grid(), np.cumsum(problem.target(rho_star))
    edges = grid + 0.5 * (grid[1] - grid[0])
    noise = 0.8687 / math.sqrt(chains)  # mean of the Kolmogorov distribution
    results = []
    for lr in lrs:
        steps = math.ceil(time / lr)
        run = WeightChains(problem, chains, lr, polynomial(2.0, power=0.9, offset=20), seed)
        run.run(steps)
        on_step(steps)
        empirical = np.searchsorted(np.sort(run.beta.detach().numpy()), edges, side="right") / chains
        law = np.cumsum(problem.chain_law(problem.fixed_point(lr), lr))
        distance, exact = (float(np.abs(found - target).max()) for found in (empirical, law))
        results.append(WeakConvergence(lr, distance, exact, noise))
    return results


def theorem1_figure(runs: Sequence[LatentConvergence]) -> Figure:
    """Draw the mean squared distance of the latents to their fixed point, with the rate of the theorem."""
    with new_figure(3.8) as figure:
        axes = figure.subplots()
        for run, colour in zip(runs, (BLUE, ORANGE, GREEN), strict=False):
            label = f"α = {run.alpha:g}: slope {run.slope:.2f} ± {run.slope_error:.2f}"
            axes.loglog(run.steps, run.errors, color=colour, label=label)
            late = run.steps >= run.steps[-1] / 10
            bound = 2.0 * run.errors[-1] * (run.steps[late] / run.steps[-1]) ** -run.alpha
            axes.loglog(run.steps[late], bound, color=colour, linestyle=":", linewidth=1.2)
        axes.loglog([], [], color=INK, linestyle=":", linewidth=1.2, label="dotted: slope -α, for comparison")
        title = "Theorem 1: the latents reach their fixed point at the rate of ω"
        axes.set(xlabel="step k", ylabel="E ‖θ(k) - θ*‖²", title=title)
        axes.legend()
        return figure


def corollary1_figure(results: Sequence[WeakConvergence]) -> Figure:
    """Draw the distance of the weights' law to its target against the step size."""
    with new_figure(3.8) as figure:
        axes = figure.subplots()
        lrs = [result.lr for result in results]
        axes.loglog(lrs, [result.exact for result in results], color=BLUE, label="exact law of the chain, θ fixed")
        axes.loglog(lrs, [result.distance for result in results], "o", color=ORANGE, label="SGLD-SA, samples")
        axes.axhline(results[0].noise, color=GREY, linestyle="--", linewidth=1.0, label="noise of as many exact draws")
        axes.set_xticks(lrs, [f"{lr:g}" for lr in lrs])
        axes.minorticks_off()
        title = "Corollary 1: the weights' law tends to exp(L(β, θ*)) as ε tends to 0"
        axes.set(xlabel="step size ε", ylabel="Kolmogorov distance", title=title)
        axes.legend()
        return figure


def theory_tables(runs: Sequence[LatentConvergence], results: Sequence[WeakConvergence]) -> tuple[Table, Table]:
    """Return the numbers behind the two figures."""
    theorem: dict[Column, Callable[[LatentConvergence], float]] = {
        Column("alpha", "α of ω", ".2f"): lambda run: run.alpha,
        Column("bound", "theorem: at most", ".2f"): lambda run: -run.alpha,
        Column("slope", "measured", ".3f"): lambda run: run.slope,
        Column("slope_error", "standard error", ".3f"): lambda run: run.slope_error,
    }
    corollary = (
        Column("lr", "ε", ".3f"),
        Column("distance", "SGLD-SA, samples", ".4f"),
        Column("exact", "exact law of the chain", ".4f"),
        Column("noise", "noise of exact draws", ".4f"),
    )
    title = "Corollary 1: Kolmogorov distance of the weights' law to exp(L(β, θ*))"
    return (
        Table.build("Theorem 1: log-log slope of E|θ(k) - θ*|² against k", runs, theorem),
        Table(title, corollary, [asdict(result) for result in results]),
    )
