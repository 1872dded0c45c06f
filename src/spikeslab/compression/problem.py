"""Compression problem: the model, the weights to prune and the settings, with factories of sampler, prior and pruner.

Single weights become zero, or whole channels. A method does not know which: the problem tells it what to penalise, what
the prior is on, and what prunes.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Self

import torch
from torch import Tensor, nn

from spikeslab.compression.settings import Settings, Timeline
from spikeslab.functional import groups
from spikeslab.functional.mixture import GAUSSIAN, LAPLACE, norm_weight
from spikeslab.priors import GroupSpikeSlab, Prior, SpikeSlab
from spikeslab.pruning import ChannelPruner, Pruner, channel_gates
from spikeslab.samplers import SGHMC
from spikeslab.schedules import Schedule
from spikeslab.training import Prune


@dataclass(frozen=True)
class Problem:
    """Problem in which single weights become zero.

    Attributes:
        model: The model that holds ``weights``.
        weights: Weights to prune, by name.
        sparsity: Share of zeros at the end.
        network: The model, if the share is of all its parameters; ``None`` if it is of ``weights``.
        settings: Hyper-parameters.
        timeline: The same in steps.
        num_data: N.
        seed: Seed of the noise.
    """

    model: nn.Module
    weights: dict[str, nn.Parameter]
    sparsity: float
    network: nn.Module | None
    settings: Settings
    timeline: Timeline
    num_data: int
    seed: int

    def copy(self) -> Self:
        """Return the same problem in a copy of the model."""
        model = copy.deepcopy(self.model)
        parameters = dict(model.named_parameters())
        weights = {name: parameters[name] for name in self.weights}
        return replace(self, model=model, weights=weights, network=None if self.network is None else model)

    @property
    def floor(self) -> float:
        """Number or share of weights that every sparse layer keeps at least."""
        return 1 if self.settings.floor is None else self.settings.floor

    def sampler(self, temperature: float | Schedule, prior: Prior | None = None) -> SGHMC:
        """Return SGHMC with the lr, momentum and weight decay of the settings."""
        return SGHMC(
            self.model.parameters(),
            lr=self.timeline.lr(),
            momentum=self.settings.momentum,
            num_data=self.num_data,
            temperature=temperature,
            weight_decay=self.settings.weight_decay,
            prior=prior,
            seed=self.seed,
        )

    def gradual_pruning(self, scope: str | None = None, sparsity: float | Schedule | None = None) -> Prune:
        """Return magnitude pruning along the ramp of the sparsity; zeros may come back until the mask is frozen."""
        ramp = self.timeline.sparsity(self.sparsity) if sparsity is None else sparsity
        return Prune(self.pruner(ramp, scope, every=self.timeline.prune_every), freeze_at=self.timeline.freeze)

    def pruner(self, sparsity: float | Schedule, scope: str | None = None, **options: Any) -> Pruner | ChannelPruner:
        """Return a pruner with the scope and floor of the settings; it refuses a sparsity that the floor forbids."""
        return Pruner(
            self.weights,
            sparsity,
            scope=scope or self.settings.scope,
            floor=self.floor,
            network=self.network,
            **options,
        )

    @property
    def penalised(self) -> Mapping[str, Tensor]:
        """Tensors that a prior or a penalty is on."""
        return self.weights

    def spike_and_slab(self, **arguments: Any) -> SpikeSlab:
        """Return the prior; ``settings.prior`` overrides these arguments."""
        return SpikeSlab(dict(self.penalised), **arguments | dict(self.settings.prior))

    @property
    def v1(self) -> float:
        """Variance of the slab: that of the settings, or the one equivalent to the weight decay."""
        return self.settings.v1 or 1.0 / (self.num_data * self.settings.weight_decay)

    @property
    def v0(self) -> float:
        """Scale of the spike: that of the settings, or the one at which spike and slab are equally likely when pruned.

        The latter is never so narrow that a step of the lr jumps out of it, nor so wide that it is no spike.
        """
        if self.settings.v0 is not None:
            return self.settings.v0
        narrowest = math.sqrt(self.settings.lr / self.num_data)
        return min(max(self._even_scale(), narrowest), math.sqrt(self.v1) / 4.0)

    def _even_scale(self) -> float:
        """Return the v0 at which spike and slab are equally likely at the pruning threshold."""
        sizes = torch.cat([weight.detach().abs().flatten().float() for weight in self.weights.values()])
        total = sizes.numel() if self.network is None else sum(p.numel() for p in self.network.parameters())
        return spike_scale(_smallest(sizes, self.sparsity * total), self.v1, 1.0 - self.sparsity)


@dataclass(frozen=True)
class ChannelProblem(Problem):
    """Problem in which whole channels become zero; the prior is on the parameters that scale them.

    Attributes:
        followers: Normalisation behind each of ``weights``, or ``None``.
    """

    followers: Mapping[str, str | None]

    def pruner(self, sparsity: float | Schedule, scope: str | None = None, **options: Any) -> ChannelPruner:
        """Return a pruner with the scope and floor of the settings; it refuses a sparsity that the floor forbids."""
        return ChannelPruner(
            self.model,
            sparsity,
            followers=self.followers,
            scope=scope or self.settings.scope,
            min_channels=self.floor,
            **options,
        )

    @property
    def penalised(self) -> Mapping[str, Tensor]:
        """Scales of the normalisations, or the filters where there is none."""
        return channel_gates(self.model, self.followers)

    def spike_and_slab(self, **arguments: Any) -> SpikeSlab:
        """Return the prior on groups; ``settings.prior`` overrides these arguments."""
        return GroupSpikeSlab(dict(self.penalised), **arguments | dict(self.settings.prior))

    def _even_scale(self) -> float:
        """Return the smallest v0 over the layers: a wider one takes nearly all channels of some layer for small."""
        scales = []
        for gate in self.penalised.values():
            size = groups.group_size(gate)
            sizes = groups.norms([gate.detach().float()])[0] / math.sqrt(size)
            threshold = _smallest(sizes, self.sparsity * sizes.numel())
            scales.append(spike_scale(threshold, self.v1, 1.0 - self.sparsity, size))
        return min(scales)


def _smallest(sizes: Tensor, count: float) -> float:
    return float(sizes.kthvalue(max(1, round(count))).values)


def spike_scale(threshold: float, v1: float, delta: float, size: int = 1) -> float:
    r"""Return the scale v0 at which weights of root mean square ``threshold`` are equally likely in spike and slab.

    For single weights it solves :math:`c\,v_0 = t` with
    :math:`c = \tfrac12\log(\pi v_1/(2 v_0^2)) + \log((1-\delta)/\delta)`, where rho is one half, up to the slab's own
    fall over so short a way; for groups of m, the same with the densities of :mod:`spikeslab.functional.groups`.

    >>> round(spike_scale(0.05, v1=0.04, delta=0.1), 4), round(spike_scale(0.05, v1=0.04, delta=0.1, size=64), 4)
    (0.0091, 0.0118)
    """
    steepness = norm_weight(size) * math.sqrt(size)
    slab = GAUSSIAN.log_normaliser(v1, size) + math.log((1.0 - delta) / delta)
    scale = threshold / 5.0
    for _ in range(50):
        odds = (slab - LAPLACE.log_normaliser(scale, size)) / steepness if scale > 0.0 else 1.0
        scale = threshold / max(odds, 2.0)
    return scale
