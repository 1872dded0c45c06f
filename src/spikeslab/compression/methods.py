r"""Compression methods: each one is a choice of sampler, prior, temperature and pruner.

All have the same budget, the same lr and the same ramp of the sparsity, unless the method is about one of these. With
:math:`g` the gradient of the mean loss on a batch, :math:`m` the momentum, T the temperature and N the number of
training examples, all of them move by

.. math::
    b \leftarrow m\,b + g + \nabla p(w)/N - \sqrt{2(1-m)\,T/(N\,\mathrm{lr})}\;\xi, \qquad
    w \leftarrow w - \mathrm{lr}\,b

(SGHMC; SGD with momentum at T = 0) and set the smallest weights to zero. They differ in the penalty p, in T and in when
zeros are chosen.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

import torch
from torch import Tensor

from spikeslab.compression.problem import Problem
from spikeslab.compression.settings import PAPER_STEPS
from spikeslab.priors import EM, L1, L2, SA, Adaptation, Diagnostics, Fixed, Marginal, SpikeSlabGaussian
from spikeslab.priors.scales import Scales, choose_omega
from spikeslab.pruning import Pruner
from spikeslab.samplers import SGHMC
from spikeslab.schedules import Schedule, ScheduleLike, polynomial
from spikeslab.training import Prune
from spikeslab.weights import Weights

PAPER_OFFSET, PAPER_POWER = 1000, 0.75
"""Constants of omega = A (k + 1000)^-0.75 in the paper's run on CIFAR-10."""
L1_STRENGTH, L2_STRENGTH = 1e-4, 5e-3
SALIENT_FROM = 0.95
"""Share of zeros from which their saliency ranks the weights of a regression better than their size."""
INCLUSION = 1e-8
"""Prior probability of the slab in prior annealing."""


@dataclass(frozen=True)
class MethodParts:
    """Sampler of a method, which knows the prior, and callback that sets weights to zero."""

    sampler: SGHMC
    prune: Prune


Method: TypeAlias = Callable[[Problem], MethodParts]


def a_sghmc_sa(problem: Problem) -> MethodParts:
    r"""Build A-SGHMC-SA, the paper's method: an adaptive elastic net whose latents follow by stochastic approximation.

    .. math:: p(w) = \sum \kappa_0|w|/\sigma + \kappa_1 w^2/(2\sigma^2), \qquad
        \kappa \leftarrow (1-\omega_k)\,\kappa + \omega_k\,\bigl((1-\rho)/v_0,\; \rho/v_1\bigr), \quad T_k \downarrow

    with rho the probability of the slab, smoothed alike (Deng, Zhang, Liang and Lin, NeurIPS 2019, eqs. 12-15).
    """
    return _spike_and_slab(problem, _sa(problem), annealed=True)


def sghmc_sa(problem: Problem) -> MethodParts:
    """Build SGHMC-SA: A-SGHMC-SA at a constant temperature (Deng et al., 2019)."""
    return _spike_and_slab(problem, _sa(problem), annealed=False)


def a_sghmc_em(problem: Problem) -> MethodParts:
    r"""Build A-SGHMC-EM: A-SGHMC-SA with :math:`\omega = 1`, latents of the present weights (Deng et al., 2019)."""
    return _spike_and_slab(problem, EM(), annealed=True)


def a_sghmc(problem: Problem) -> MethodParts:
    r"""Build A-SGHMC: A-SGHMC-SA with :math:`\omega = 0`, an elastic net at the initial kappa (Deng et al., 2019).

    With ``rho=1``, the default, that is a weight decay.
    """
    return _spike_and_slab(problem, Fixed(), annealed=True)


def marginal(problem: Problem) -> MethodParts:
    r"""Build annealed SGHMC on the posterior of the weights alone: each step sums over spike and slab.

    .. math:: p(w) = -\sum\log\bigl[(1-\delta)\,\mathrm{Laplace}(w; 0, v_0) + \delta\,N(w; 0, v_1)\bigr]
    """
    return _spike_and_slab(problem, Marginal(), annealed=True)


def prior_annealing(problem: Problem) -> MethodParts:
    r"""Build prior annealing: a dense network, a prior that fades in, a shrinking spike, cooling, then pruning at once.

    A network is found first, without the many modes of the mixture, and is then drawn into one of them. With :math:`p`
    the end of pruning: dense until p/2, the weight of the prior from 0 to 1 until 2p/3, the spike's variance to a tenth
    until 3p/4, the temperature as 1/t until p. Then the weights with the smallest rho become zero, and the rest is
    refitted. rho increases with \|w\|, by the same function in all layers, so these are the smallest weights of all.

    Reference: Sun, Xiong and Liang, "Sparse Deep Learning: A New Framework Immune to Local Traps and Miscalibration",
    NeurIPS 2021. Its epochs are 0, 150, 200, 225 and 300, and it prunes where rho is below 1/2.
    """
    end, settings = problem.timeline.prune_end, problem.settings
    # sd 0.0039 and 0.0012 for the paper's ResNet20, and not so narrow that a step of the lr overshoots.
    v0, v1 = problem.scales
    wide = max((v0 / 2.7) ** 2, 2.0 * settings.highest_lr / problem.num_data)
    narrow = max(wide / 10.0, 2.0 * settings.highest_lr / problem.num_data)
    prior = AnnealedPrior(
        problem.weights,
        v0=lambda k: wide * (narrow / wide) ** _progress(k, 2 * end / 3, 3 * end / 4),
        v1=max(v1, 2.0 * wide),
        delta=INCLUSION,
        eta=lambda k: _progress(k, end / 2, 2 * end / 3),
        weight_decay=settings.weight_decay,
    )
    coldest = settings.temperature / settings.cooling

    def temperature(step: int) -> float:
        begin = 3 * end / 4
        return settings.temperature if step <= begin else max(settings.temperature / (1.0 + step - begin), coldest)

    at_once = Schedule("at once", (("target", problem.sparsity),), lambda k: problem.sparsity if k >= end else 0.0)
    cooled = Schedule("cooled", (("initial", settings.temperature),), temperature)
    return MethodParts(problem.sampler(cooled, prior), problem.gradual_pruning("global", at_once))


def gmp(problem: Problem) -> MethodParts:
    r"""Build gradual magnitude pruning: SGD with weight decay, :math:`p(w)/N = \mathrm{wd}\,w^2/2`, T = 0.

    Zhu and Gupta, "To Prune, or Not to Prune", 2017; Gale, Elsen and Hooker, "The State of Sparsity", 2019.
    """
    return MethodParts(problem.sampler(0.0), problem.gradual_pruning())


def l1(problem: Problem) -> MethodParts:
    r"""Build a fixed L1 penalty on the sparse weights, :math:`p(w)/N = s\,|w|`.

    Where channels are pruned, it is on the scales of batch normalisation: network slimming (Liu et al., ICCV 2017).
    """
    return _fixed_penalty(problem, L1(dict(problem.penalised), problem.settings.strength or L1_STRENGTH))


def l2(problem: Problem) -> MethodParts:
    r"""Build a fixed L2 penalty on the sparse weights, :math:`p(w)/N = s\,w^2/2`: a weight decay of strength s."""
    return _fixed_penalty(problem, L2(dict(problem.penalised), problem.settings.strength or L2_STRENGTH))


def dpf(problem: Problem) -> MethodParts:
    r"""Build dynamic pruning with feedback, :math:`w \leftarrow w - \mathrm{lr}\,\nabla f(m \odot w)` on a dense w.

    SGD with momentum and weight decay; the mask m of the largest weights is computed anew every p steps until samples
    are collected (Lin, Stich, Barba, Dmitriev and Jaggi, "Dynamic Model Pruning with Feedback", ICLR 2020).
    """
    pruner = FeedbackPruner(
        problem.weights,
        problem.timeline.sparsity(problem.sparsity),
        every=problem.settings.mask_every,
        freeze_at=problem.timeline.collect,
        scope=problem.scope,
        floor=problem.floor,
        pattern=problem.settings.pattern,
        network=problem.network,
    )
    return MethodParts(problem.sampler(0.0), Prune(pruner))


def magnitude(problem: Problem) -> MethodParts:
    """Build magnitude pruning at once: all zeros are chosen at the start, for good, and the rest is fine-tuned by SGD.

    Han, Pool, Tran and Dally, "Learning both Weights and Connections", NeurIPS 2015, with one iteration.
    """
    pruner = problem.pruner(problem.sparsity, mode="masked")
    pruner.step()  # before the first step of SGD, which would already choose among other weights
    return MethodParts(problem.sampler(0.0), Prune(pruner))


METHODS: dict[str, Method] = {
    "a-sghmc-sa": a_sghmc_sa,
    "sghmc-sa": sghmc_sa,
    "a-sghmc-em": a_sghmc_em,
    "a-sghmc": a_sghmc,
    "marginal": marginal,
    "prior-annealing": prior_annealing,
    "gmp": gmp,
    "l1": l1,
    "l2": l2,
    "dpf": dpf,
    "magnitude": magnitude,
}

WEIGHTS_ONLY = ("prior-annealing", "dpf")
"""Methods that prune single weights only."""
AT_ONCE = ("prior-annealing", "magnitude")
"""Methods that choose all zeros at one step."""


def _sa(problem: Problem) -> SA:
    settings, steps = problem.settings, problem.timeline.total
    choose = choose_omega if settings.omega == "rising" else _falling_omega
    return SA(choose(steps, settings.omega_sum))


def _falling_omega(steps: int, total: float) -> Schedule:
    r"""Return the paper's omega rescaled to K steps, :math:`A\,(k + K/50)^{-3/4}`, with a given sum.

    To run in 1/c of the time is to take :math:`c\,\omega(ck)`, which keeps the sum.
    """
    offset = PAPER_OFFSET * steps / PAPER_STEPS
    unit = sum((step + offset) ** -PAPER_POWER for step in range(1, steps + 1))
    return polynomial(total / unit, power=PAPER_POWER, offset=offset)


def _spike_and_slab(problem: Problem, adapt: Adaptation, *, annealed: bool) -> MethodParts:
    settings = problem.settings
    is_regression = settings.sigma is not None
    rank = settings.rank or ("saliency" if is_regression and problem.share >= SALIENT_FROM else "magnitude")
    weighs = rank == "saliency" and settings.condition and problem.can_weigh and type(adapt) is SA
    prior = problem.spike_and_slab(
        v0=settings.v0,
        v1=problem.slab,
        b=1.0,
        rho=settings.rho,
        kappa=settings.kappa,
        sigma_coupling="fixed",
        adapt=adapt,
        **({"evidence": "curvature", "batch_size": problem.batch_size} if weighs else {}),
    )
    sampler = problem.sampler(problem.timeline.temperature(annealed), prior)
    return MethodParts(sampler, problem.gradual_pruning(prior=prior if settings.condition else None))


def _fixed_penalty(problem: Problem, prior: L1 | L2) -> MethodParts:
    temperature = problem.timeline.temperature(annealed=True)
    return MethodParts(problem.sampler(temperature, prior), problem.gradual_pruning())


def _progress(step: int, begin: float, end: float) -> float:
    """Return 0 until ``begin``, 1 from ``end`` on, and a straight line between."""
    return min(1.0, max(0.0, (step - begin) / max(end - begin, 1e-9)))


class AnnealedPrior(SpikeSlabGaussian):
    r"""Prior that is faded in, a mixture of two Gaussians whose spike shrinks.

    With the weight :math:`\eta_k` rising from 0 to 1 and the spike's variance :math:`v_0(k)` falling, the sampler sees

    .. math::
        \frac{U}{N} = \mathrm{loss} + (1 - \eta_k)\,\frac{\mathrm{wd}}{2}\sum\beta^2
        - \frac{\eta_k}{N} \sum \log\bigl[(1-\delta)\,N(\beta; 0, v_0(k)) + \delta\,N(\beta; 0, v_1)\bigr].

    Args:
        weights: Sparse weights.
        v0: Variance of the spike as a function of the step.
        v1: Variance of the slab.
        delta: Probability of the slab.
        eta: Weight of the prior as a function of the step, in [0, 1].
        weight_decay: L2 penalty in units of the mean loss, of weight 1 - eta.
    """

    def __init__(
        self, weights: Weights, *, v0: ScheduleLike, v1: float, delta: float, eta: ScheduleLike, weight_decay: float
    ) -> None:
        super().__init__(weights, v0=v0(1), v1=v1, delta=delta, adapt=Marginal(), sigma_coupling="fixed")
        self.weight_decay = weight_decay
        self.eta = eta(1)
        self._v0_schedule, self._eta_schedule = v0, eta
        self._step = 1

    def _add_gradient_(self, indices: list[int], betas: list[Tensor], outs: list[Tensor], num_data: int) -> None:
        if self.eta < 1.0:
            torch._foreach_add_(outs, betas, alpha=(1.0 - self.eta) * self.weight_decay)
        if self.eta > 0.0:
            gradients = [torch.zeros_like(beta) for beta in betas]
            super()._add_gradient_(indices, betas, gradients, num_data)
            torch._foreach_add_(outs, gradients, alpha=self.eta)

    def penalty(self, num_data: int = 1) -> float:
        """Return the penalty that is added to the mean loss."""
        squares = sum(float(beta.double().square().sum()) for beta in self._betas())
        return 0.5 * (1.0 - self.eta) * self.weight_decay * squares + self.eta * super().penalty(num_data)

    def diagnostics(self, num_data: int) -> Diagnostics:
        """Return the diagnostics of the mixture, weighted by eta, with the weight decay weighted by 1 - eta."""
        found = super().diagnostics(num_data)
        decay = (1.0 - self.eta) * self.weight_decay
        return replace(
            found,
            effective_l1={name: self.eta * value for name, value in found.effective_l1.items()},
            effective_l2={name: self.eta * value + decay for name, value in found.effective_l2.items()},
        )

    def update(self, step: int, num_data: int) -> None:
        """Move the weight and the spike to the next step."""
        super().update(step, num_data)
        self._move_to(step + 1)

    def _move_to(self, step: int) -> None:
        self._step, self.eta = step, self._eta_schedule(step)
        self._chosen = Scales(self._v0_schedule(step), self.v1)

    def state_dict(self) -> dict[str, Any]:
        """Return the state, with the step."""
        return super().state_dict() | {"step": self._step}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Load a state and move to its step."""
        super().load_state_dict(state)
        self._move_to(int(state["step"]))


class FeedbackPruner(Pruner):
    """Magnitude pruner that keeps the values of pruned weights, which return when they have grown.

    The dense weights are the network plus the values under the mask, so these alone are kept.

    >>> from torch import nn
    >>> layer = nn.Linear(2, 1)
    >>> with torch.no_grad():
    ...     _ = layer.weight.copy_(torch.tensor([[0.3, 1.0]]))
    >>> pruner = FeedbackPruner([layer.weight], 0.5, every=1)
    >>> pruner.step()
    >>> with torch.no_grad():
    ...     _ = layer.weight.add_(torch.tensor([[0.5, -0.4]]))  # a step of the optimizer, from (0, 1)
    >>> pruner.step()  # dense: (0.8, 0.6)
    >>> [round(w, 6) for w in layer.weight.flatten().tolist()]
    [0.8, 0.0]

    Args:
        weights: Weights that may become zero.
        sparsity: Share of zeros: a number or a schedule of the step.
        every: Steps between two masks, p.
        **pruner: Arguments of :class:`~spikeslab.Pruner`.
    """

    def __init__(self, weights: Weights, sparsity: float | ScheduleLike, *, every: int = 16, **pruner: Any) -> None:
        super().__init__(weights, sparsity, every=every, **pruner)
        self._hidden: list[Tensor] = []
        self._masks: list[Tensor] = []

    def _move(self, step: int) -> None:
        """Move the dense copy as the network was moved, and prune it; every ``every`` steps by a new mask."""
        if self.mode == "masked":
            super()._move(step)
        else:
            self._mask(anew=not self._masks or step % self.every == 0)

    @torch.no_grad()
    def freeze(self) -> None:
        """Update the mask, and drop the values under it."""
        if self.mode != "masked":
            self._mask(anew=True)
        super().freeze()
        self._hidden, self._masks = [], []

    def _mask(self, anew: bool) -> None:
        dense = [weight.detach().clone() for weight in self.weights.values()]
        if self._hidden:
            torch._foreach_add_(dense, self._hidden)
        if anew:
            zeros = self.zeros(max(self.steps, 1))
            self._masks = self._choose(self._spare([weight.abs() for weight in dense]), zeros, [0] * len(dense))
        self._hidden = [weight.masked_fill(~mask, 0.0) for weight, mask in zip(dense, self._masks, strict=True)]
        for weight, value, mask in zip(self.weights.values(), dense, self._masks, strict=True):
            weight.copy_(value.masked_fill_(mask, 0.0))

    def state_dict(self) -> dict[str, Any]:
        """Return the state of the pruner, and the values under the mask."""
        return super().state_dict() | {"hidden": list(self._hidden), "masks": list(self._masks)}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Load a state; one of other weights is refused and changes nothing."""
        super().load_state_dict(state)
        weights = list(self.weights.values())
        self._hidden = [t.to(w, copy=True) for t, w in zip(state["hidden"], weights, strict=False)]
        self._masks = [t.to(w.device, torch.bool, copy=True) for t, w in zip(state["masks"], weights, strict=False)]
