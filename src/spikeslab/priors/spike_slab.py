r"""The adaptive spike-and-slab Gaussian-Laplace (SSGL) prior.

For the weights of a sparse layer l,

.. math::
    \beta_j \mid \sigma, \gamma_j \sim (1-\gamma_j)\,\mathrm{Laplace}(0, \sigma v_0) + \gamma_j\,N(0, \sigma^2 v_1),
    \quad \gamma_j \sim \mathrm{Bernoulli}(\delta_l), \quad \delta_l \sim \mathrm{Beta}(a, b), \quad
    \sigma^2 \sim \mathrm{IG}(\nu/2, \nu\lambda/2).

Scales that are not given follow from the run by the rule of :mod:`spikeslab.priors.scales`.

The sampler sees the elastic net :math:`\kappa_0|\beta|/\sigma + \kappa_1\beta^2/(2\sigma^2)`. After its step k the
latents move to :math:`(1-\omega_k)\,\mathrm{old} + \omega_k\,\mathrm{new}` with the new values of eq. 12 (rho, at the
new weights), eq. 13 (kappa, from the smoothed rho), eq. 14 (sigma) and eq. 15 (delta).

With :math:`W_k = 1 - \prod_{i \le k}(1-\omega_i)` and :math:`\bar\rho` the smoothed rho smoothed once more from zero,

.. math::
    \kappa_0 = (1-W)\,\kappa_0^{(0)} + (W - \bar\rho)/v_0, \qquad \kappa_1 = (1-W)\,\kappa_1^{(0)} + \bar\rho/v_1

is exactly eq. 13 with SA, so a sparse weight costs two tensors: rho and its smoothed copy.

With ``evidence="curvature"`` rho is the posterior probability of the slab given the data instead of eq. 12, which looks
at the size of the weight alone: see :mod:`spikeslab.functional.evidence`. A sparse weight then costs three tensors: its
average pull and curvature, which SA smooths in place of rho, and the smoothed rho.

Reference: Deng, Zhang, Liang and Lin, "An Adaptive Empirical Bayesian Method for Sparse Deep Learning", NeurIPS 2019.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from spikeslab.errors import (
    ArgumentTypeError,
    ArgumentValueError,
    Phrase,
    check_choice,
    check_count,
    check_number,
    mark,
    warn,
)
from spikeslab.functional import mixture
from spikeslab.functional.mixture import GAUSSIAN, LAPLACE, Affine, Component
from spikeslab.functional.tensors import align
from spikeslab.kernels.protocol import FusedLatents, FusedPenalty, LatentSums
from spikeslab.priors._curvature import Curvature
from spikeslab.priors._scale import Scale
from spikeslab.priors.adaptation import EM, MODES, SA, Adaptation, Fixed, Marginal
from spikeslab.priors.base import Prior
from spikeslab.priors.scales import HORIZON, SPARSITY, Scales, Surroundings, choose_omega, choose_scales, highest
from spikeslab.schedules import MAKERS, ScheduleLike, describe_schedule, parse_call, polynomial
from spikeslab.shards import Reduction, local, part_of, wrap
from spikeslab.weights import Weights

EVIDENCE = ("magnitude", "curvature")
"""Ways to judge whether a weight is in the slab."""
LEAST = 1e-4
"""Least share of weights in spike and slab that a target is taken to mean."""


@dataclass(frozen=True)
class Diagnostics:
    """Progress of a spike-and-slab prior and its effect on the mean loss, comparable to a weight decay.

    Attributes:
        omega_sum: Sum of omega over the steps so far.
        progress: Share of the way to a target that stands still, 1 - prod(1 - omega).
        sigma: Current sigma.
        delta: Current inclusion probability of each layer.
        effective_l1: Mean weight of ``|w|`` in the mean loss, over the non-zero weights of each layer.
        effective_l2: Mean weight of ``w**2 / 2``: compare it to a weight decay.
        inverted: True if the spike is wider than the slab.
    """

    omega_sum: float
    progress: float
    sigma: float
    delta: dict[str, float]
    effective_l1: dict[str, float]
    effective_l2: dict[str, float]
    inverted: bool


class SpikeSlab(Prior):
    """Spike-and-slab prior with a Laplace spike and a Gaussian slab that learns its own sparsity.

    A network needs no numbers but the length of the run. The sampler that takes the prior tells it N, the lr and the
    weight decay, and a pruner the share of zeros:

    >>> import spikeslab as ss
    >>> _ = torch.manual_seed(0)
    >>> model = torch.nn.Linear(40, 10)
    >>> weights = ss.select_weights(model, "weight")
    >>> prior = ss.SpikeSlab(weights, steps=1000)
    >>> sampler = ss.SGHMC(model.parameters(), lr=0.05, num_data=5000, weight_decay=5e-4, prior=prior)
    >>> pruner = ss.Pruner(weights, 0.8, prior=prior)
    >>> prior
    SpikeSlab(v0=0.02585, v1=0.4, delta=0.2, rho=1, adapt=SA(schedule=rising(total=1.0, steps=1000)))

    Args:
        weights: Sparse weights: a dict from :func:`~spikeslab.select_weights` or a list of parameters.
        v0: Scale of the Laplace spike, in units of sigma. ``None`` picks the one at which spike and slab are equally
            likely at the pruning threshold, and sets what else is not given to suit pruning
            (:mod:`spikeslab.priors.scales`).
        v1: Variance of the Gaussian slab, in units of sigma squared; ``None`` takes that of the sampler's weight decay.
        sigma: Initial sigma.
        delta: Initial inclusion probability; one number, or one for each layer. ``None`` is the share of weights that
            the pruner leaves; before it says so 0.5, or without ``v0`` 0.1.
        a: First parameter of the Beta prior of delta, at least 1.
        b: Second parameter, at least 1. ``None`` takes the layer's number of weights, which favours sparse layers, or
            without ``v0`` 1.
        nu: Degrees of freedom of the inverse-gamma prior of sigma squared.
        lam: Scale (lambda) of that prior.
        rho: Initial rho of every weight; ``None`` is 0.5, or without ``v0`` 1: the prior begins as a weight decay.
        kappa: Initial ``(kappa0, kappa1)``; ``None`` takes ``((1 - rho)/v0, rho/v1)``. If omega is small this decides
            the result: the paper's CIFAR-10 run started at 5e-4.
        steps: Steps of the run, over which the default omega has the sum 1. Without it and ``v0`` they are
            ``scales.HORIZON``, of which a warning tells.
        adapt: ``SA(schedule)``, ``EM()``, ``Marginal()`` or ``Fixed()``. ``None`` is SA with an omega that sums to 1
            over ``steps``; with ``v0`` and without ``steps``, with ``polynomial(1.0, power=0.75, offset=1000)``.
        adapt_every: Steps between two moves of the latents. A move sums the omegas of all steps since the last one, up
            to 1: the fixed point and the sum of omega stay the same, and the steps between cost no more than with L1.
        learn_delta: If True, delta moves (eq. 15).
        sigma_coupling: ``"conjugate"`` scales the prior with sigma and learns it from weights and residuals (the
            paper, eq. 14); ``"independent"`` leaves the prior at scale 1 and learns the noise from the residuals alone
            (regression only); ``"fixed"`` keeps sigma. ``None``, the sound choice, is ``"independent"`` for a
            regression through ``GaussianLikelihood(prior)`` and ``"fixed"`` otherwise.
        sigma_average: The quantity that SA averages: ``"sigma"`` (the paper) or ``"variance"`` (the authors' code).
        sigma_maximum: ``"joint"`` moves a conjugate sigma towards the maximum of the joint density; ``"printed"`` is
            eq. 14 as the paper prints it for regression, where the inverse-gamma prior's 2 is missing in R_a.
        sigma_in_rho: If True, rho depends on sigma (eq. 12); the authors' code for networks leaves it out.
        evidence: ``"magnitude"`` judges a weight by its size (the paper, eq. 12), ``"curvature"`` by how much the loss
            would rise without it (:mod:`spikeslab.functional.evidence`). The latter needs ``batch_size``, SA, and a
            loss that is a mean negative log-likelihood; torch moves the weights, not the fused update.
        batch_size: Number of examples behind the gradient of a step, over all accumulated batches and processes;
            smaller than N. Only for ``evidence="curvature"``, which reads the curvature from the noise of batches.
        foreach: If True, use the list versions of torch's operations.
    """

    spike: ClassVar[Component] = LAPLACE
    slab: ClassVar[Component] = GAUSSIAN

    def __init__(
        self,
        weights: Weights,
        *,
        v0: float | None = None,
        v1: float | None = None,
        sigma: float = 1.0,
        delta: float | Sequence[float] | None = None,
        a: float = 1.0,
        b: float | None = None,
        nu: float = 1.0,
        lam: float = 1.0,
        rho: float | None = None,
        kappa: tuple[float, float] | None = None,
        steps: int | None = None,
        adapt: Adaptation | None = None,
        adapt_every: int = 1,
        learn_delta: bool = True,
        sigma_coupling: str | None = None,
        sigma_average: str = "sigma",
        sigma_maximum: str = "joint",
        sigma_in_rho: bool = True,
        evidence: str = "magnitude",
        batch_size: int | None = None,
        foreach: bool = True,
    ) -> None:
        super().__init__(weights)
        self._layers = self._find_layers()
        self._ranks = Reduction(self._layers.values())
        if self._ranks and self._group_sizes() is not None:
            raise ArgumentValueError("weights", "must not be sharded for a prior on groups", Phrase("got DTensors"))
        self._v0_given = None if v0 is None else check_number("v0", v0, "> 0")
        self._v1_given = None if v1 is None else check_number("v1", v1, "> 0")
        self._chosen = None if v0 is None or v1 is None else Scales(v0, v1)
        self._around: Surroundings | None = None
        self._sparsity: float | None = None
        self._begun = False
        by_rule = v0 is None
        self.scale: Scale[float] = Scale(
            check_number("sigma", sigma, "> 0"),
            nu=nu,
            lam=lam,
            coupling=sigma_coupling,
            average=sigma_average,
            maximum=sigma_maximum,
        )
        self._delta_given = None if delta is None else _check_deltas(delta, len(self._layers))
        self._deltas = self._delta_given or [1.0 - SPARSITY if by_rule else 0.5] * len(self._layers)
        self._sizes = [weight.numel() for weight in self.weights.values()]
        self._counts = [math.prod(shape) for shape in self._shapes()]
        self._a = check_number("a", a, ">= 1")
        self._b_given = None if b is None else check_number("b", b, ">= 1")
        self._b = [self._b_given or (1.0 if by_rule else float(count)) for count in self._counts]
        self._initial_rho = check_number("rho", (1.0 if by_rule else 0.5) if rho is None else rho, "[0, 1]")
        self._kappa_given = None if kappa is None else _check_kappa(kappa)
        self._steps = None if steps is None else check_count("steps", steps)
        self.adapt = self._default_adaptation() if adapt is None else adapt
        if not isinstance(self.adapt, Adaptation):
            raise ArgumentTypeError("adapt", "must be SA(...), EM(), Marginal() or Fixed()", adapt)
        self.adapt = self.adapt.thin(check_count("adapt_every", adapt_every))
        self._adapt_before = self.adapt
        if isinstance(self.adapt, Marginal) and not sigma_in_rho:
            raise ArgumentValueError("sigma_in_rho", f"must be True with {mark('adapt', Phrase('Marginal()'))}", False)
        self.learn_delta = learn_delta
        self.sigma_in_rho = sigma_in_rho
        self.evidence = check_choice("evidence", evidence, EVIDENCE)
        self._curvature = self._make_curvature(batch_size)
        self.foreach = foreach
        self._omega_sum = 0.0
        self._progress = 0.0
        self._conditioned = False
        self._rho: list[Tensor] = []
        self._rho_bar: list[Tensor] = []
        if self._chosen is not None and self.inverted:
            warn(
                f"The spike (standard deviation {self.spike.standard_deviation(self.v0):.3g} sigma) is wider than the "
                f"slab ({self.slab.standard_deviation(self.v1):.3g} sigma), so that rho is the probability that a "
                f"weight is small: choose {mark('v0')} smaller or {mark('v1')} larger unless you reproduce the "
                "paper's networks."
            )

    def __repr__(self) -> str:
        v0, v1 = self._chosen or (self._v0_given, self._v1_given)
        numbers = {"v0": v0, "v1": v1, "delta": max(self._deltas), "rho": self._initial_rho}
        words = [f"{name}={value if value is None else f'{value:.4g}'}" for name, value in numbers.items()]
        words.append(f"adapt={describe_schedule(self._adapt_before)}")
        if self._curvature is not None:
            words.append(f"evidence={self.evidence!r}, batch_size={self._curvature.batch_size}")
        return f"{type(self).__name__}({', '.join(words)})"

    @property
    def v0(self) -> float:
        """Scale of the spike."""
        return self._scales.v0

    @property
    def v1(self) -> float:
        """Variance of the slab."""
        return self._scales.v1

    @property
    def _scales(self) -> Scales:
        if self._chosen is None:
            raise ArgumentValueError(
                "prior",
                "must have scales",
                Phrase("no sampler has taken it yet"),
                f"give it to a sampler, which chooses them, or give {mark('v0')} and {mark('v1')}",
            )
        return self._chosen

    @property
    def _initial_kappa(self) -> tuple[float, float]:
        return self._kappa_given or ((1.0 - self._initial_rho) / self.v0, self._initial_rho / self.v1)

    def _default_adaptation(self) -> Adaptation:
        if self._v0_given is not None and self._steps is None:
            return SA(polynomial(1.0, power=0.75, offset=1000))
        if self._steps is None:
            warn(
                f"SpikeSlab does not know the length of the run: its latents move over {HORIZON:,} steps. Give "
                f"{mark('steps')}, or {mark('adapt')}."
            )
        return SA(choose_omega(self._steps or HORIZON))

    def _make_curvature(self, batch_size: int | None) -> Curvature | None:
        """Return the averages of ``evidence="curvature"``, after a check that this prior can use them."""
        if self.evidence == "magnitude":
            if batch_size is not None:
                raise ArgumentValueError(
                    "batch_size", f"must be None without {mark('evidence', 'curvature')}", batch_size
                )
            return None
        if self._ranks:
            raise ArgumentValueError("evidence", "must be 'magnitude' for sharded weights", self.evidence)
        if self._group_sizes() is not None:
            raise ArgumentValueError("evidence", "must be 'magnitude' for groups of weights", self.evidence)
        if self.slab is not GAUSSIAN:
            raise ArgumentValueError("evidence", f"must be 'magnitude' with a {self.slab.name} slab", self.evidence)
        if not isinstance(self.adapt, SA) or isinstance(self.adapt, EM):
            expectation = f"must be SA(...) with {mark('evidence', 'curvature')}, which is an average over many steps"
            raise ArgumentValueError("adapt", expectation, self.adapt)
        if batch_size is None:
            raise ArgumentValueError(
                "batch_size",
                f"must be the number of examples in a batch with {mark('evidence', 'curvature')}",
                None,
            )
        return Curvature(check_count("batch_size", batch_size))

    def attach(self, num_data: int, lr: float | ScheduleLike, weight_decay: float) -> None:
        """Take N, lr and weight decay of the sampler, and choose the scales that were not given."""
        if self._curvature is not None and self._curvature.batch_size >= num_data:
            expectation = f"must be smaller than {mark('num_data', num_data)}, since only the noise of batches tells"
            raise ArgumentValueError("batch_size", f"{expectation} the curvature", self._curvature.batch_size)
        rate = highest(lr, self._steps or HORIZON) if callable(lr) else float(lr)
        self._around = Surroundings(num_data, rate, weight_decay)
        self._choose_scales()

    def aim(self, sparsity: float) -> None:
        """Take the share of the units that a pruner will set to zero, and choose scales and delta that were not given.

        After the first step nothing changes.
        """
        self._sparsity = min(max(check_number("sparsity", sparsity, "[0, 1)"), LEAST), 1.0 - LEAST)
        self._choose_scales()

    def _choose_scales(self) -> None:
        if self._begun:
            return
        if self._sparsity is not None and self._delta_given is None:
            self._deltas = [1.0 - self._sparsity] * len(self._layers)
        if self._around is None or (self._v0_given is not None and self._v1_given is not None):
            return
        sparsity = SPARSITY if self._sparsity is None else self._sparsity
        sharded = list(self._layers.values()) if self._ranks else []
        units = self._units(self._betas())
        given = None if self._v1_given is None else self.slab.standard_deviation(self._v1_given) ** 2
        v0, v1 = choose_scales(units, self._group_sizes(), self._around, sparsity, sharded, v1=given)
        v0 = self.spike.from_standard_deviation(LAPLACE.standard_deviation(v0))
        v1 = self.slab.from_standard_deviation(GAUSSIAN.standard_deviation(v1))
        self._chosen = Scales(self._v0_given or v0, self._v1_given or v1)

    @property
    def inverted(self) -> bool:
        """True if the spike is wider than the slab, as in the paper's settings for images."""
        return self.spike.standard_deviation(self.v0) > self.slab.standard_deviation(self.v1)

    @property
    def sigma(self) -> float:
        """Current sigma."""
        return self.scale.sigma

    @property
    def delta(self) -> dict[str, float]:
        """Inclusion probability of each layer."""
        return dict(zip(self._layers, self._deltas, strict=True))

    @property
    def rho(self) -> dict[str, Tensor]:
        """Probability of the slab for every weight: smoothed with SA, at the current weights with ``Marginal``."""
        units = self._units(self._betas())
        if isinstance(self.adapt, Marginal):
            rhos = self._responsibilities(units)
        elif self._curvature:
            rhos = self._rho_bar if self._conditioned else self._responsibilities(units)
        else:
            rhos = self._rho or [torch.full_like(unit, self._initial_rho) for unit in units]
        return self._named(rhos)

    def _named(self, parts: Sequence[Tensor]) -> dict[str, Tensor]:
        """Return tensors of the weights by name, sharded as the weights are."""
        return {n: wrap(part, weight) for (n, weight), part in zip(self._layers.items(), parts, strict=True)}

    @property
    def log_odds(self) -> dict[str, Tensor] | None:
        """Log odds of the slab by ``evidence="curvature"``, of which :attr:`rho` is the sigmoid.

        They are ``None`` with other evidence, before the first step, and once the prior is conditioned on the zeros.
        """
        if not self._curvature or self._conditioned:
            return None
        odds = self._curvature.log_odds(self._slab_variance(), self._deltas)
        return dict(zip(self.weights, odds, strict=True))

    @property
    def saliency(self) -> dict[str, Tensor] | None:
        """Rise of the loss of all examples without each weight, in nats; ``None`` where :attr:`log_odds` are."""
        if not self._curvature or self._conditioned:
            return None
        return dict(zip(self.weights, self._curvature.saliencies(self._slab_variance()), strict=True))

    @property
    def kappa(self) -> dict[str, tuple[Tensor, Tensor]]:
        """Pair (kappa0, kappa1) of every weight."""
        units = self._units(self._betas())
        smoothed = self._rho_in_kappa(units) or [torch.zeros_like(unit) for unit in units]
        spike, slab = (self._named([k.base + k.slope * s for s in smoothed]) for k in self._kappa())
        return {name: (spike[name], slab[name]) for name in self._layers}

    def penalty(self, num_data: int = 1) -> float:
        """Return B/sigma + J/(2 sigma^2), the elastic net that the sampler descends, divided by ``num_data``.

        With ``Marginal`` it is the negative log density of the mixture.
        """
        units, sigma = self._units(self._betas()), self.scale.of_prior
        if isinstance(self.adapt, Marginal):
            layers = zip(units, self._deltas, self._group_sizes() or [1] * len(units), strict=True)
            logs = (mixture.log_marginal(u, **self._densities(), delta=d, size=m) for u, d, m in layers)
            return -self._ranks.total(list(self._layers.values()), [float(log.sum()) for log in logs]) / num_data
        b, j = self._ranks.sum(self._sums(units))
        return (b / sigma + j / (2.0 * sigma**2)) / num_data

    def diagnostics(self, num_data: int) -> Diagnostics:
        """Return the progress of the latents and the strength of the penalty, in units of the mean loss."""
        units = self._units(self._betas())
        smoothed = self._rho_in_kappa(units) or [torch.zeros_like(unit) for unit in units]
        totals = self._ranks.own([float(s[unit != 0].sum()) for unit, s in zip(units, smoothed, strict=True)])
        counts = self._ranks.own([float(unit.count_nonzero()) for unit in units])
        sums = self._ranks.sum([*totals, *counts])
        means = [t / max(1.0, n) for t, n in zip(sums[: len(units)], sums[len(units) :], strict=True)]
        l1, l2 = self._elastic_net(num_data)
        return Diagnostics(
            omega_sum=self._omega_sum,
            progress=self._progress,
            sigma=self.sigma,
            delta=self.delta,
            effective_l1={n: l1.base + l1.slope * m for n, m in zip(self._layers, means, strict=True)},
            effective_l2={n: l2.base + l2.slope * m for n, m in zip(self._layers, means, strict=True)},
            inverted=self.inverted,
        )

    def effective_penalty(self, num_data: int) -> tuple[float, float]:
        """Return the mean over layers, weighted by their non-zero weights."""
        found = self.diagnostics(num_data)
        counts = [float(local(weight).count_nonzero()) for weight in self._layers.values()]
        alive = dict(zip(self._layers, self._ranks.sum(self._ranks.own(counts)), strict=True))
        total = max(1, sum(alive.values()))
        l1, l2 = (
            sum(alive[name] * value for name, value in layers.items()) / total
            for layers in (found.effective_l1, found.effective_l2)
        )
        return l1, l2

    def latents(self) -> dict[str, Any]:
        """Return the scales, sigma, the delta of each layer and the sum of omega so far."""
        scales = {} if self._chosen is None else self._chosen._asdict()
        return {**scales, "sigma": self.sigma, "delta": self.delta, "omega_sum": self._omega_sum}

    def check_ready(self) -> None:
        """Choose the scales for the weights as they are before the first step; raise if residuals are missing."""
        self._choose_scales()
        self._begun = True
        if self.adapt.learns:
            self.scale.check_ready()

    @torch.no_grad()
    def observe(self, step: int, num_data: int) -> None:
        """Average pull and curvature of the gradients with ``evidence="curvature"``."""
        if self._curvature is not None and (omega := self.adapt.omega(step)) > 0.0:
            gradients = [weight.grad for weight in self.weights.values()]
            self._curvature.observe(self._betas(), gradients, omega, num_data)

    @torch.no_grad()
    def update(self, step: int, num_data: int) -> None:
        """Move rho, kappa, sigma and delta by one step of stochastic approximation (eqs. 12-15)."""
        omega = self.adapt.omega(step)
        if omega > 0.0:
            units = self._units(self._betas())
            rhos = self._responsibilities(units)
            if not isinstance(self.adapt, Marginal):
                self.allocate()
                if self._curvature is None:  # the averages of the evidence are smooth already
                    torch._foreach_lerp_(self._rho, rhos, omega)
                    rhos = self._rho
                torch._foreach_lerp_(self._rho_bar, rhos, omega)
            self._advance(omega)
            sums = self._sums(units) if self.scale.coupling == "conjugate" else (0.0, 0.0)
            rho_sums = torch.stack([rho.sum() for rho in rhos]).tolist() if self.learn_delta else []
            self._maximise(omega, num_data, *sums, rho_sums)
        self.scale.clear_residuals()

    @torch.no_grad()
    def condition_on_zeros(self) -> None:
        """Put all weights that are not zero now into the slab, and stop moving the latents.

        Once the zeros are final, so are the indicators. Given these, the prior of the other weights is the slab alone,
        without the spike's shrinkage.
        """
        self.allocate()
        for latents in (self._rho, self._rho_bar):
            for unit, latent in zip(self._units(self._betas()), latents, strict=False):
                latent.copy_(unit != 0)
        self._progress = 1.0
        self._conditioned = True
        self.adapt = Fixed()

    @property
    def fusible(self) -> bool:
        """False with ``Marginal``, whose gradient is no elastic net, and while the evidence needs the gradients."""
        return not isinstance(self.adapt, Marginal) and (self._curvature is None or self._conditioned)

    @torch.no_grad()
    def fused_latents(self, step: int) -> FusedLatents:
        """Return the move of rho and its smoothed copy at ``step`` (eqs. 12 and 13)."""
        omega = self.adapt.omega(step)
        if omega == 0.0:
            return FusedLatents(omega, [], [], all_sums=False)
        self.allocate()
        self._rho = [align(rho, local(weight)) for rho, weight in zip(self._rho, self.weights.values(), strict=True)]
        odds = mixture.log_odds(**self._densities(), deltas=self._deltas)
        # Only a conjugate sigma follows the weights (eq. 14); delta needs no more than the sum of rho.
        return FusedLatents(omega, self._rho, odds, all_sums=self.scale.coupling == "conjugate")

    @torch.no_grad()
    def fused_penalty(self, params: list[Tensor], num_data: int) -> FusedPenalty:
        """Return the elastic net at the present latents."""
        if not self._rho_bar:
            return FusedPenalty(*self._elastic_net(num_data))
        indices = [self._index[id(param)] for param in params]
        for i, param in zip(indices, params, strict=True):
            # A weight may have come into another memory format or dtype since.
            self._rho_bar[i] = align(self._rho_bar[i], local(param))
        return FusedPenalty(*self._elastic_net(num_data), [self._rho_bar[i] for i in indices])

    def update_from_sums(self, omega: float, num_data: int, sums: list[LatentSums]) -> None:
        """Move sigma and delta after rho and kappa have moved (eqs. 14 and 15)."""
        if omega > 0.0:
            self._advance(omega)
            b = j = 0.0
            if self.scale.coupling == "conjugate":
                total = LatentSums(*(sum(self._ranks.own(column)) for column in zip(*sums, strict=True)))
                l1, l2 = mixture.elastic_net(*self._kappa(), self.spike, self.slab)
                b = l1.of_sums(total.magnitude, total.smoothed_magnitude)
                j = l2.of_sums(total.square, total.smoothed_square)
            self._maximise(omega, num_data, b, j, [of_weight.rho for of_weight in sums])
        self.scale.clear_residuals()

    @torch.no_grad()
    def allocate(self) -> None:
        """Make the latents of all weights, unless they are there."""
        if not self._rho_bar:
            units = self._units(self._betas())
            if self._curvature is None:
                self._rho = [torch.full_like(unit, self._initial_rho) for unit in units]
            self._rho_bar = [torch.zeros_like(unit) for unit in units]

    def _advance(self, omega: float) -> None:
        self._omega_sum += omega
        self._progress += omega * (1.0 - self._progress)

    def _maximise(self, omega: float, num_data: int, b: float, j: float, rho_sums: list[float]) -> None:
        """Move sigma and delta towards the maxima of Q, given B, J and the sum of rho over each weight.

        Of sharded weights they are this rank's, and all ranks add them up in one tensor.
        """
        if self._ranks and (self.learn_delta or self.scale.coupling == "conjugate"):
            b, j, *rho_sums = self._ranks.sum([b, j, *(self._ranks.own(rho_sums) if self.learn_delta else [])])
        if self.scale.coupling != "fixed":
            self.scale.update(omega, b, j, sum(self._sizes), num_data)
        if self.learn_delta:
            for index, (rho_sum, count, beta_b) in enumerate(zip(rho_sums, self._counts, self._b, strict=True)):
                new = mixture.delta(rho_sum=rho_sum, num_weights=count, a=self._a, b=beta_b)
                self._deltas[index] += omega * (new - self._deltas[index])

    def _find_layers(self) -> dict[str, Tensor]:
        """Return the layers, each with its latents and its delta, and a tensor whose kind and place they share."""
        return self.weights

    def _units(self, betas: list[Tensor]) -> list[Tensor]:
        """Return the units that have an indicator each; the latents have their shape."""
        return betas

    def _shapes(self) -> list[tuple[int, ...]]:
        """Return the shape of the units of each whole weight."""
        return [tuple(weight.shape) for weight in self.weights.values()]

    def _group_sizes(self) -> list[int] | None:
        """Return the number of weights in a unit of each layer; ``None`` is 1."""
        return None

    def _slab_variance(self) -> float:
        return self.v1 * (self.scale.of_prior**2 if self.sigma_in_rho else 1.0)

    def _responsibilities(self, units: list[Tensor], indices: Sequence[int] | None = None) -> list[Tensor]:
        if self._curvature is not None:
            return [odds.sigmoid_() for odds in self._curvature.log_odds(self._slab_variance(), self._deltas)]
        deltas, sizes = self._deltas, self._group_sizes()
        if indices is not None:
            deltas, sizes = [deltas[i] for i in indices], None if sizes is None else [sizes[i] for i in indices]
        return mixture.rho(units, **self._densities(), deltas=deltas, sizes=sizes, foreach=self.foreach)

    def _densities(self) -> dict[str, Any]:
        """Return the arguments of eq. 12 that describe both components."""
        sigma = self.scale.of_prior if self.sigma_in_rho else 1.0
        return {"v0": self.v0, "v1": self.v1, "sigma": sigma, "spike": self.spike, "slab": self.slab}

    def _rho_in_kappa(self, units: list[Tensor], indices: Sequence[int] | None = None) -> list[Tensor] | None:
        """Return the rho in kappa, or ``None`` while no latent has moved and it is zero."""
        if isinstance(self.adapt, Marginal):
            return self._responsibilities(units, indices)
        if not self._rho_bar:
            return None
        return self._rho_bar if indices is None else [self._rho_bar[i] for i in indices]

    def _kappa(self) -> tuple[Affine, Affine]:
        """Return both kappas as functions of the smoothed rho."""
        progress = 1.0 if isinstance(self.adapt, Marginal) else self._progress
        kappa0, kappa1 = self._initial_kappa
        return (
            Affine((1.0 - progress) * kappa0 + progress / self.v0, -1.0 / self.v0),
            Affine((1.0 - progress) * kappa1, 1.0 / self.v1),
        )

    def _elastic_net(self, num_data: int) -> tuple[Affine, Affine]:
        """Return the weights of ``|w|`` and of ``w**2 / 2`` in the mean loss."""
        l1, l2 = mixture.elastic_net(*self._kappa(), self.spike, self.slab)
        sigma = self.scale.of_prior
        return l1.scale(1.0 / (sigma * num_data)), l2.scale(1.0 / (sigma**2 * num_data))

    def _sums(self, units: list[Tensor]) -> tuple[float, float]:
        """Return B and J, on this rank."""
        nets, smoothed = mixture.elastic_net(*self._kappa(), self.spike, self.slab), self._rho_in_kappa(units)
        if not self._ranks:
            return mixture.elastic_net_sums(units, smoothed, *nets)
        each = [
            mixture.elastic_net_sums([unit], None if smoothed is None else [smoothed[i]], *nets)
            for i, unit in enumerate(units)
        ]
        b, j = (sum(self._ranks.own(column)) for column in zip(*each, strict=True))
        return b, j

    def _add_gradient_(self, indices: list[int], betas: list[Tensor], outs: list[Tensor], num_data: int) -> None:
        smoothed = self._rho_in_kappa(betas, indices)
        l1, l2 = self._elastic_net(num_data)
        mixture.add_elastic_net_gradient_(outs, betas, smoothed, l1, l2, foreach=self.foreach)

    def settings_dict(self) -> dict[str, Any]:
        """Return the arguments; sigma and delta are the present ones."""
        return super().settings_dict() | {
            "v0": self._v0_given,
            "v1": self._v1_given,
            "sigma": self.sigma,
            "delta": None if self._delta_given is None else list(self._deltas),
            "a": self._a,
            "b": self._b_given,
            "rho": self._initial_rho,
            "kappa": self._kappa_given and list(self._kappa_given),
            "adapt": describe_schedule(self._adapt_before),
            "learn_delta": self.learn_delta,
            "sigma_in_rho": self.sigma_in_rho,
            "evidence": self.evidence,
            "batch_size": None if self._curvature is None else self._curvature.batch_size,
            **self.scale.settings_dict(),
        }

    def load_settings(self, settings: Mapping[str, Any]) -> None:
        """Set some of the settings, as if the prior had been made with them; latents stay, unless they are named."""
        unlike = {name: value for name, value in settings.items() if value != self.settings_dict()[name]}
        if "evidence" in unlike:
            raise ArgumentValueError("evidence", f"must stay {self.evidence!r}", unlike["evidence"])
        adapt = parse_call(unlike["adapt"], MAKERS | MODES) if "adapt" in unlike else self._adapt_before
        residuals, foreach = self.scale.residuals, self.foreach
        super().load_settings({**unlike, "adapt": adapt})
        self.scale.residuals, self.foreach = residuals, foreach
        self.scale.sigma = unlike.get("sigma", self.sigma)
        self._deltas = list(unlike.get("delta", self._deltas))

    def state_dict(self) -> dict[str, Any]:
        """Return latents and counters."""
        return super().state_dict() | {
            "scales": None if self._chosen is None else list(self._chosen),
            "sigma": self.sigma,
            "delta": list(self._deltas),
            "omega_sum": self._omega_sum,
            "progress": self._progress,
            "conditioned": self._conditioned,
            "rho": list(self._named(self._rho).values()) if self._rho else [],
            "rho_bar": list(self._named(self._rho_bar).values()) if self._rho_bar else [],
            "curvature": None if self._curvature is None else self._curvature.state_dict(),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Load latents and counters; a state of other weights is refused and changes nothing."""
        self.check_state(state)
        units = self._units(self._betas())
        if state.get("scales") is not None and None in (self._v0_given, self._v1_given):
            self._chosen, self._begun = Scales(*map(float, state["scales"])), True
        self.scale.sigma = float(state["sigma"])
        self.scale.clear_residuals()
        self._deltas = [float(value) for value in state["delta"]]
        self._omega_sum = float(state["omega_sum"])
        self._progress = float(state["progress"])
        self._conditioned = bool(state.get("conditioned", False))
        self.adapt = Fixed() if self._conditioned else self._adapt_before
        for target, kind in ((self._rho, "rho"), (self._rho_bar, "rho_bar")):
            parts = [part_of(t, weight) for t, weight in zip(state[kind], self._layers.values(), strict=False)]
            target[:] = [torch.empty_like(u).copy_(part) for u, part in zip(units, parts, strict=False)]
        if self._curvature is not None:
            self._curvature.load_state_dict(state["curvature"], units)

    def check_state(self, state: Mapping[str, Any]) -> None:
        """Raise if the state is not for these weights."""
        super().check_state(state)
        shapes = self._shapes()
        curvature = state.get("curvature")
        if (curvature is None) != (self._curvature is None):
            other = Phrase(f"it has {'magnitude' if curvature is None else 'curvature'!r}")
            raise ArgumentValueError("state_dict", f"must be of a prior with evidence={self.evidence!r}", other)
        tensors = {kind: state[kind] for kind in ("rho", "rho_bar")}
        tensors |= {} if curvature is None else {kind: curvature[kind] for kind in ("pull", "fisher")}
        for kind, found in tensors.items():
            got = [tuple(tensor.shape) for tensor in found]
            if got and got != shapes:
                raise ArgumentValueError("state_dict", f"must hold {kind} of the shapes {shapes}", got)


def _check_deltas(delta: float | Sequence[float], layers: int) -> list[float]:
    deltas = list(delta) if isinstance(delta, Sequence) else [delta] * layers
    if len(deltas) != layers:
        expectation = f"must be one number or {layers}, one for each layer"
        raise ArgumentValueError("delta", expectation, Phrase(f"got {len(deltas)}"))
    return [check_number("delta", value, "(0, 1)") for value in deltas]


def _check_kappa(kappa: tuple[float, float]) -> tuple[float, float]:
    if not isinstance(kappa, Sequence) or len(kappa) != 2:
        raise ArgumentTypeError("kappa", "must be a pair (kappa0, kappa1) of numbers >= 0 or None", kappa)
    return check_number("kappa[0]", kappa[0], ">= 0"), check_number("kappa[1]", kappa[1], ">= 0")
