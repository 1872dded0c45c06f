r"""Pruning: set the smallest weights to zero while the sampler runs, to exact targets.

``Pruner`` follows algorithm 1 of the paper: after every step, the bottom s(k) of the weights by magnitude become
zero. In ``"projected"`` mode, the paper's, a zero weight still has a gradient and noise and may come back; in
``"masked"`` mode it stays zero. ``RhoPruner`` zeroes what the prior believes to be in the spike.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from spikeslab.errors import check_choice, check_count, check_number
from spikeslab.functional.thresholds import apportion, smallest_overall, smallest_per_tensor
from spikeslab.priors.spike_slab import SpikeSlab
from spikeslab.samplers.base import Sampler
from spikeslab.schedules import Schedule, ScheduleLike, constant
from spikeslab.selection import Weights, named_weights

MODES = ("projected", "masked")


@dataclass(frozen=True)
class Sparsity:
    """How many weights are zero, counted over the sparse layers and over the whole network.

    Attributes:
        layers: Share of zeros in each sparse layer.
        sparse_zeros: Zeros in the sparse layers.
        sparse_total: Weights in the sparse layers.
        network_zeros: Zeros among all parameters, if the network is known.
        network_total: All parameters of the network, if it is known.
    """

    layers: dict[str, float]
    sparse_zeros: int
    sparse_total: int
    network_zeros: int | None = None
    network_total: int | None = None

    @property
    def sparse(self) -> float:
        """Share of zeros in the sparse layers."""
        return self.sparse_zeros / self.sparse_total

    @property
    def network(self) -> float | None:
        """Share of zeros in the whole network, if it is known."""
        if self.network_zeros is None or self.network_total is None:
            return None
        return self.network_zeros / self.network_total


def measure_sparsity(weights: Weights, network: nn.Module | None = None) -> Sparsity:
    """Count the zeros.

    >>> measure_sparsity([torch.tensor([0.0, 1.0, 0.0, 2.0])]).sparse
    0.5
    """
    named = named_weights(weights)
    zeros = {name: _count_zeros([weight]) for name, weight in named.items()}
    parameters = None if network is None else list(network.parameters())
    return Sparsity(
        layers={name: zeros[name] / weight.numel() for name, weight in named.items()},
        sparse_zeros=sum(zeros.values()),
        sparse_total=sum(weight.numel() for weight in named.values()),
        network_zeros=None if parameters is None else _count_zeros(parameters),
        network_total=None if parameters is None else sum(p.numel() for p in parameters),
    )


def _count_zeros(tensors: Iterable[Tensor]) -> int:
    return sum(tensor.numel() - int(tensor.count_nonzero()) for tensor in tensors)


class _Masks:
    """What both pruners share: the clock, zeroing, and the masks of weights that stay zero."""

    def __init__(self, weights: dict[str, Tensor], mode: str, sampler: Sampler | None) -> None:
        self.weights = weights
        self.mode = check_choice("mode", mode, MODES)
        self.steps = 0
        self._sampler = sampler
        self._pruned: list[Tensor] = []

    def _tick(self) -> int:
        """Count a call, or read the sampler's count, which a step skipped by a GradScaler does not advance."""
        self.steps = self.steps + 1 if self._sampler is None else self._sampler.steps
        return self.steps

    def _scores(self, scores: Sequence[Tensor]) -> list[Tensor]:
        """Scores of which the smallest go first: those pruned for good, before all."""
        if self.mode == "projected" or not self._pruned:
            return list(scores)
        return [score.masked_fill(pruned, -1.0) for score, pruned in zip(scores, self._pruned, strict=True)]

    def _zero(self, masks: Sequence[Tensor]) -> None:
        if self.mode == "masked":
            self._pruned = list(masks)
        for weight, mask in zip(self.weights.values(), masks, strict=True):
            weight.masked_fill_(mask, 0.0)

    def freeze(self) -> None:
        """From now on the weights that are zero stay zero: masked mode, from the present zeros on.

        Samples of a posterior that share their zeros are as sparse together as each of them is.
        """
        self.mode = "masked"
        self._pruned = [weight.detach() == 0 for weight in self.weights.values()]

    def state_dict(self) -> dict[str, Any]:
        """The count of steps, the mode and, in masked mode, which weights are pruned."""
        return {
            "steps": self.steps,
            "names": list(self.weights),
            "mode": self.mode,
            "pruned": list(self._pruned),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take over a state; one of other weights is refused and changes nothing."""
        shapes = [tuple(mask.shape) for mask in state["pruned"]]
        own = [tuple(weight.shape) for weight in self.weights.values()]
        if list(state["names"]) != list(self.weights) or (shapes and shapes != own):
            raise ValueError(
                f"state_dict must be for the weights {list(self.weights)} of shapes {own}, "
                f"but got {list(state['names'])} of shapes {shapes}."
            )
        self.mode = check_choice("mode", state["mode"], MODES)
        self.steps = int(state["steps"])
        self._pruned = [
            mask.to(weight.device, torch.bool, copy=True)
            for mask, weight in zip(state["pruned"], self.weights.values(), strict=False)
        ]


class Pruner(_Masks):
    """Zero the smallest weights by magnitude, following a schedule of the sparsity.

    >>> layer = nn.Linear(10, 10)
    >>> pruner = Pruner([layer.weight], 0.9)
    >>> pruner.step()
    >>> pruner.sparsity().sparse
    0.9

    Args:
        weights: Weights that may become zero.
        sparsity: Share of zeros in [0, 1): a number or a schedule of the step.
        scope: ``"layer"`` prunes each layer at the same rate, ``"global"`` ranks all weights together. Neither ever
            empties a layer.
        mode: ``"projected"`` (weights may return) or ``"masked"``.
        network: Where given, sparsity counts over all of its parameters, so that the sparse layers are pruned harder.
        sampler: Where given, its steps are counted instead of the calls, so that a step which a GradScaler skipped
            does not count.
    """

    def __init__(
        self,
        weights: Weights,
        sparsity: float | ScheduleLike,
        *,
        scope: str = "layer",
        mode: str = "projected",
        network: nn.Module | None = None,
        sampler: Sampler | None = None,
    ) -> None:
        super().__init__(named_weights(weights), mode, sampler)
        self.scope = check_choice("scope", scope, ("layer", "global"))
        self.schedule = sparsity if callable(sparsity) else constant(check_number("sparsity", sparsity, "[0, 1)"))
        self._network = network
        self._sizes = [weight.numel() for weight in self.weights.values()]
        self._total = sum(self._sizes)
        if network is not None:
            inside = {id(parameter) for parameter in network.parameters()}
            if any(id(weight) not in inside for weight in self.weights.values()):
                raise ValueError("weights must be parameters of the network, but some are not.")
            self._total = sum(parameter.numel() for parameter in network.parameters())
        if isinstance(self.schedule, Schedule):
            settings = dict(self.schedule.settings)
            self._zeros(settings.get("target", settings.get("value", 0.0)))

    def zeros(self, step: int) -> int:
        """How many weights are zero at ``step``: exactly round(S * total)."""
        return self._zeros(self.schedule(step))

    def _zeros(self, sparsity: object) -> int:
        sparsity = check_number("sparsity", sparsity, "[0, 1)")
        zeros, room = round(sparsity * self._total), sum(self._sizes) - len(self._sizes)
        if zeros > room:
            raise ValueError(
                f"sparsity must be at most {room / self._total:.6g}, since each of {len(self._sizes)} sparse layers "
                f"keeps a weight, but got {sparsity:.6g}, which is {zeros} zeros of {self._total}."
            )
        return zeros

    @torch.no_grad()
    def step(self) -> None:
        """Prune to the sparsity of this step."""
        zeros = self.zeros(max(self._tick(), 1))
        pruned = [int(mask.sum()) for mask in self._pruned] or [0] * len(self._sizes)
        if self._pruned and sum(pruned) >= zeros:
            self._zero(self._pruned)
            return
        scores = self._scores([weight.detach().abs() for weight in self.weights.values()])
        if self.scope == "global":
            self._zero(smallest_overall(scores, zeros))
        else:
            self._zero(smallest_per_tensor(scores, apportion(zeros, self._sizes, pruned)))

    def sparsity(self) -> Sparsity:
        """Count the zeros now."""
        return measure_sparsity(self.weights, self._network)


class RhoPruner(_Masks):
    """Zero the weights whose probability of being in the slab is below a threshold.

    In each layer the weight with the largest probability stays, whatever it is.

    Args:
        prior: A spike-and-slab prior whose spike is narrower than its slab.
        threshold: Weights with a smaller rho become zero.
        start: First step that prunes: rho means little before the latents have moved.
        mode: ``"projected"`` (weights may return) or ``"masked"``.
        sampler: Where given, its steps are counted instead of the calls.
    """

    def __init__(
        self,
        prior: SpikeSlab,
        threshold: float = 0.5,
        *,
        start: int = 1,
        mode: str = "projected",
        sampler: Sampler | None = None,
    ) -> None:
        super().__init__(dict(prior.weights), mode, sampler)
        self.threshold = check_number("threshold", threshold, "(0, 1)")
        self.start = check_count("start", start)
        if prior.inverted:
            raise ValueError(
                f"prior must have a spike narrower than its slab, but got v0={prior.v0} and v1={prior.v1}, where a "
                "large rho means a small weight."
            )
        self._prior = prior

    @torch.no_grad()
    def step(self) -> None:
        """Prune what is in the spike now."""
        if self._tick() < self.start:
            return
        scores = self._scores(list(self._prior.rho.values()))
        masks = []
        for score in scores:
            # Flat and contiguous: a channels_last score has no flat view to write through.
            flat = score.reshape(-1)
            mask = flat < self.threshold
            mask[flat.argmax()] = False
            masks.append(mask.view(score.shape))
        self._zero(masks)

    def sparsity(self) -> Sparsity:
        """Count the zeros now."""
        return measure_sparsity(self.weights)
