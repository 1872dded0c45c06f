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

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

from spikeslab.compression.annealed_prior import AnnealedPrior
from spikeslab.compression.feedback import FeedbackPruner
from spikeslab.compression.problem import Problem
from spikeslab.compression.settings import PAPER_STEPS
from spikeslab.priors import EM, L1, L2, SA, Adaptation, Fixed, Marginal
from spikeslab.samplers import SGHMC
from spikeslab.schedules import Schedule, polynomial
from spikeslab.training import Prune

PAPER_OFFSET, PAPER_POWER = 1000, 0.75
"""Constants of omega = A (k + 1000)^-0.75 in the paper's run on CIFAR-10."""
L1_STRENGTH, L2_STRENGTH = 1e-4, 5e-3
INCLUSION = 1e-8
"""Prior probability of the slab in prior annealing."""


@dataclass(frozen=True)
class MethodParts:
    """Sampler and pruner of a method.

    Attributes:
        sampler: Sampler that moves the weights; it knows the prior.
        prune: Callback that sets weights to zero.
    """

    sampler: SGHMC
    prune: Prune


Method: TypeAlias = Callable[[Problem], MethodParts]


def a_sghmc_sa(problem: Problem) -> MethodParts:
    r"""A-SGHMC-SA, the paper's method: an adaptive elastic net whose latents follow by stochastic approximation.

    .. math:: p(w) = \sum \kappa_0|w|/\sigma + \kappa_1 w^2/(2\sigma^2), \qquad
        \kappa \leftarrow (1-\omega_k)\,\kappa + \omega_k\,\bigl((1-\rho)/v_0,\; \rho/v_1\bigr), \quad T_k \downarrow

    with rho the probability of the slab, smoothed alike (Deng, Zhang, Liang and Lin, NeurIPS 2019, eqs. 12-15).
    """
    return _spike_and_slab(problem, SA(_omega(problem)), annealed=True)


def sghmc_sa(problem: Problem) -> MethodParts:
    """SGHMC-SA: the same at a constant temperature (Deng et al., 2019)."""
    return _spike_and_slab(problem, SA(_omega(problem)), annealed=False)


def a_sghmc_em(problem: Problem) -> MethodParts:
    r"""A-SGHMC-EM: the same with :math:`\omega = 1`, so that the latents jump with the weights (Deng et al., 2019)."""
    return _spike_and_slab(problem, EM(), annealed=True)


def a_sghmc(problem: Problem) -> MethodParts:
    r"""A-SGHMC: the same with :math:`\omega = 0`, an elastic net at the initial kappa (Deng et al., 2019).

    With ``rho=1``, the default, that is a weight decay.
    """
    return _spike_and_slab(problem, Fixed(), annealed=True)


def marginal(problem: Problem) -> MethodParts:
    r"""The posterior itself: the indicators of spike and slab are summed out in every step, and nothing lags.

    .. math:: p(w) = -\sum\log\bigl[(1-\delta)\,\mathrm{Laplace}(w; 0, v_0) + \delta\,N(w; 0, v_1)\bigr]
    """
    return _spike_and_slab(problem, Marginal(), annealed=True)


def prior_annealing(problem: Problem) -> MethodParts:
    r"""Prior annealing: dense, then the prior fades in, its spike shrinks tenfold, the chain cools, all is pruned.

    With :math:`p` the end of pruning: dense until p/2, the weight of the prior from 0 to 1 until 2p/3, the spike's
    variance to a tenth until 3p/4, the temperature as 1/t until p, then the weights with the smallest rho become zero
    at once and the rest is refitted (Sun, Xiong and Liang, NeurIPS 2021, whose epochs 0, 150, 200, 225 and 300 these
    are). rho is one increasing function of \|w\| for all layers, so the smallest rho are the smallest weights of all;
    the threshold is where the sparsity is met, not at 1/2.
    """
    end, settings = problem.timeline.prune_end, problem.settings
    # sd 0.0039 and 0.0012 for the paper's ResNet20, and not so narrow that a step of the lr overshoots.
    wide = max((problem.v0 / 2.7) ** 2, 2.0 * settings.lr / problem.num_data)
    narrow = max(wide / 10.0, 2.0 * settings.lr / problem.num_data)
    prior = AnnealedPrior(
        problem.weights,
        v0=lambda k: wide * (narrow / wide) ** _progress(k, 2 * end / 3, 3 * end / 4),
        v1=max(problem.v1, 2.0 * wide),
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
    return MethodParts(problem.sampler(cooled, prior), problem.gradual("global", at_once))


def gmp(problem: Problem) -> MethodParts:
    r"""Gradual magnitude pruning: SGD with momentum and weight decay, :math:`p(w)/N = \mathrm{wd}\,w^2/2`, T = 0.

    Zhu and Gupta, "To Prune, or Not to Prune", 2017; Gale, Elsen and Hooker, "The State of Sparsity", 2019.
    """
    return MethodParts(problem.sampler(0.0), problem.gradual())


def l1(problem: Problem) -> MethodParts:
    r"""A fixed L1 penalty on the sparse weights, :math:`p(w)/N = s\,|w|`: the paper's commented-out baseline.

    On the scales of normalisations, where channels go, it is network slimming (Liu et al., ICCV 2017).
    """
    prior = L1(dict(problem.penalised), problem.settings.strength or L1_STRENGTH)
    return MethodParts(problem.sampler(problem.timeline.temperature(annealed=True), prior), problem.gradual())


def l2(problem: Problem) -> MethodParts:
    r"""A fixed L2 penalty on the sparse weights, :math:`p(w)/N = s\,w^2/2`: weight decay of another strength."""
    prior = L2(dict(problem.penalised), problem.settings.strength or L2_STRENGTH)
    return MethodParts(problem.sampler(problem.timeline.temperature(annealed=True), prior), problem.gradual())


def dpf(problem: Problem) -> MethodParts:
    r"""Dynamic pruning with feedback: :math:`w \leftarrow w - \mathrm{lr}\,\nabla f(m \odot w)` on a dense copy w.

    SGD with momentum and weight decay; the mask m of the largest weights is computed anew every p steps until samples
    are collected (Lin, Stich, Barba, Dmitriev and Jaggi, ICLR 2020).
    """
    pruner = FeedbackPruner(
        problem.weights,
        problem.timeline.sparsity(problem.sparsity),
        every=problem.settings.mask_every,
        scope=problem.settings.scope,
        floor=problem.floor,
        network=problem.network,
    )
    return MethodParts(problem.sampler(0.0), Prune(pruner, freeze_at=problem.timeline.collect))


def one_shot(problem: Problem) -> MethodParts:
    """One-shot pruning: all zeros are chosen at the start, for good, and the rest is fine-tuned by SGD.

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
    "one-shot": one_shot,
}

WEIGHTS_ONLY = ("prior-annealing", "dpf")
"""Methods that prune single weights only."""


def _spike_and_slab(problem: Problem, adapt: Adaptation, *, annealed: bool) -> MethodParts:
    settings = problem.settings
    prior = problem.spike_and_slab(
        v0=problem.v0,
        v1=problem.v1,
        delta=1.0 - problem.sparsity,
        b=1.0,
        rho=settings.rho,
        kappa=settings.kappa,
        sigma_coupling="fixed",
        adapt=adapt,
    )
    prune = problem.gradual()
    if settings.condition:
        prune = Prune(prune.pruner, prune.freeze_at, on_freeze=prior.condition_on_zeros)
    return MethodParts(problem.sampler(problem.timeline.temperature(annealed), prior), prune)


def _omega(problem: Problem) -> Schedule:
    r"""Return the paper's omega rescaled to K steps, :math:`A\,(k + K/50)^{-3/4}`, with the sum ``omega_sum``.

    To run in 1/c of the time is to take :math:`c\,\omega(ck)`, which keeps the sum.
    """
    total = problem.timeline.total
    offset = PAPER_OFFSET * total / PAPER_STEPS
    unit = sum((step + offset) ** -PAPER_POWER for step in range(1, total + 1))
    return polynomial(problem.settings.omega_sum / unit, power=PAPER_POWER, offset=offset)


def _progress(step: int, begin: float, end: float) -> float:
    """Return 0 until ``begin``, 1 from ``end`` on, and a straight line between."""
    return min(1.0, max(0.0, (step - begin) / max(end - begin, 1e-9)))
