"""Compression problem: the model, the weights to prune and the settings, with factories of sampler, prior and pruner.

Single weights become zero, or whole channels. A method does not know which: the problem tells it what to penalise, what
the prior is on, and what prunes.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Self

from torch import Tensor, nn

from spikeslab.compression.settings import Settings, Timeline
from spikeslab.priors import Prior, SpikeSlab
from spikeslab.priors.scales import Scales, Surroundings, choose_scales, fit_slab
from spikeslab.pruning import ChannelPruner, Pruner, UnitFamily, unit_prior
from spikeslab.samplers import SGHMC
from spikeslab.schedules import Schedule
from spikeslab.training import Prune

RESCALING = (nn.modules.batchnorm._NormBase, nn.GroupNorm)
"""Layers behind a layer that undo its scale."""


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
        num_data: N, the number of labels.
        seed: Seed of the noise.
        batch_size: Labels in a batch, ``None`` if they cannot be counted.
    """

    model: nn.Module
    weights: dict[str, nn.Parameter]
    sparsity: float
    network: nn.Module | None
    settings: Settings
    timeline: Timeline
    num_data: int
    seed: int
    batch_size: int | None = None

    def copy(self) -> Self:
        """Return the same problem in a copy of the model."""
        model = copy.deepcopy(self.model)
        parameters = dict(model.named_parameters())
        weights = {name: parameters[name] for name in self.weights}
        return replace(self, model=model, weights=weights, network=None if self.network is None else model)

    @property
    def scope(self) -> str:
        """Distribution of the zeros: as in the settings, or by one ranking of all weights."""
        return self.settings.scope or "global"

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

    @property
    def can_weigh(self) -> bool:
        """True if a prior can tell the saliency of what is pruned."""
        return self.batch_size is not None and self.batch_size < self.num_data

    def gradual_pruning(
        self, scope: str | None = None, sparsity: float | Schedule | None = None, prior: SpikeSlab | None = None
    ) -> Prune:
        """Return pruning along the ramp of the sparsity; zeros may come back until the mask is frozen.

        A prior is conditioned on the zeros when they are final. One that weighs the evidence ranks the weights.
        """
        ramp = self.timeline.sparsity(self.sparsity) if sparsity is None else sparsity
        every, freeze_at = self.timeline.prune_every, self.timeline.freeze
        rank = {"rank": "saliency"} if prior is not None and prior.evidence == "curvature" else {}
        return Prune(self.pruner(ramp, scope, every=every, freeze_at=freeze_at, prior=prior, **rank))

    def pruner(self, sparsity: float | Schedule, scope: str | None = None, **options: Any) -> Pruner | ChannelPruner:
        """Return a pruner with the scope and floor of the settings; it refuses a sparsity that the floor forbids."""
        return Pruner(
            self.weights,
            sparsity,
            scope=scope or self.scope,
            floor=self.floor,
            pattern=self.settings.pattern,
            network=self.network,
            **options,
        )

    @property
    def penalised(self) -> Mapping[str, Tensor]:
        """Tensors that a prior or a penalty is on."""
        return self.weights

    def spike_and_slab(self, **arguments: Any) -> SpikeSlab:
        """Return the prior, which knows the target; ``settings.prior`` overrides these arguments."""
        prior = self._make_prior(arguments | dict(self.settings.prior))
        prior.aim(self.share)
        return prior

    def _make_prior(self, arguments: Mapping[str, Any]) -> SpikeSlab:
        return SpikeSlab(dict(self.penalised), **arguments)

    @property
    def share(self) -> float:
        """Share of zeros among the units that are pruned, at the end."""
        pruner = self.pruner(self.sparsity)
        return pruner.zeros(1) / pruner.units

    @property
    def surroundings(self) -> Surroundings:
        """N, the highest lr and the weight decay."""
        return Surroundings(self.num_data, self.settings.highest_lr, self.settings.weight_decay)

    @property
    def slab(self) -> float | None:
        """Variance of the slab: given, or fitted to the weights that will be left; ``None`` is the weight decay's.

        In front of a normalisation only the ratios of weights matter, so that their size says nothing of the slab.
        """
        if self.settings.v1 is None and any(isinstance(module, RESCALING) for module in self.model.modules()):
            return None
        return self.settings.v1 or fit_slab(list(self.weights.values()), self.share, self.surroundings)

    @property
    def scales(self) -> Scales:
        """Scales of the prior by its rule, unless the settings give others."""
        v0, v1 = choose_scales(list(self.penalised.values()), None, self.surroundings, self.share, v1=self.slab)
        return Scales(self.settings.v0 or v0, v1)


@dataclass(frozen=True)
class ChannelProblem(Problem):
    """Problem in which whole channels become zero; the prior is on the parameters that scale them.

    Attributes:
        units: Families of channels and other units that may go.
    """

    units: Mapping[str, UnitFamily] = field(kw_only=True)

    def _make_prior(self, arguments: Mapping[str, Any]) -> SpikeSlab:
        return unit_prior(self.model, self.units, **arguments)

    @property
    def can_weigh(self) -> bool:
        """False: channels go by the size of their gates."""
        return False

    @property
    def slab(self) -> float | None:
        """Variance of the slab: given, or that of the weight decay."""
        return self.settings.v1

    @property
    def scope(self) -> str:
        """Distribution of the dead channels: as in the settings, or the same share of each layer."""
        return self.settings.scope or "layer"

    def pruner(self, sparsity: float | Schedule, scope: str | None = None, **options: Any) -> ChannelPruner:
        """Return a pruner with the scope and floor of the settings; it refuses a sparsity that the floor forbids."""
        return ChannelPruner(
            self.model,
            sparsity,
            units={name: replace(family, multiple=self.settings.multiple) for name, family in self.units.items()},
            scope=scope or self.scope,
            min_channels=self.floor,
            **options,
        )

    @property
    def penalised(self) -> Mapping[str, Tensor]:
        """Scales of the normalisations, or the filters where there is none, of heads all weights."""
        parameters = dict(self.model.named_parameters())
        return {gate.name: parameters[gate.name] for family in self.units.values() for gate in family.gates}
