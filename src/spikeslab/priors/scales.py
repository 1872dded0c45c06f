r"""Default scales of the spike-and-slab priors: one rule for own loops and for ``compress``.

Given N, the weight decay wd, the highest lr, the share S of the weights that will be zero and the K steps of the run:

============  =====================================================================================================
slab          its penalty is the weight decay, :math:`v_1 = 1/(N\,\mathrm{wd})`; in ``compress``, which begins with a
              trained network, empirical Bayes: :func:`fit_slab`
spike         at the pruning threshold, the S-quantile t of the sizes of the weights, spike and slab are equally likely:
              :math:`v_0 = t/c` with :math:`c = \tfrac12\log(\pi v_1/(2 v_0^2)) + t^2/(2 v_1) +
              \log((1-\delta)/\delta)`; never so narrow that a step of the lr jumps out of it,
              :math:`\sqrt{\mathrm{lr}/N}`, nor wider than :math:`\sqrt{v_1}/4`
start         all weights in the slab, :math:`\rho = 1`, so that the prior begins as the weight decay; :math:`\delta =
              1 - S`, with a flat Beta prior
omega         a straight line from 0 with the sum 1 over the run: latents go 63 % of their way, most of it late, so
              that a network that starts from random weights first learns which of them it needs
============  =====================================================================================================

So the spike takes hold of small weights slowly, while they are being pruned, and large ones keep their weight decay.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from spikeslab.functional.mixture import GAUSSIAN, LAPLACE, norm_weight
from spikeslab.schedules import Schedule, ScheduleLike, rising
from spikeslab.shards import Reduction, locate

SPARSITY = 0.9
"""Share of zeros that the rule expects where no pruner names one."""
WEIGHT_DECAY = 5e-4
"""Weight decay that the rule takes for the slab where the sampler has none."""
HORIZON = 10_000
"""Steps over which omega has its sum where the length of the run is not given."""
OMEGA_SUM = 1.0
"""Sum of omega over the run."""
GROWTH = 2.0
"""Growth of the mean square of the weights that are left, which take over what the others did."""
STRONGEST = 10.0
"""Most weight decays that a fitted slab may be worth."""
MOST_SIZES = 1 << 22
"""Most weights among which the threshold is looked for; of more, every n-th is taken."""


class Surroundings(NamedTuple):
    """Settings of the sampler that takes a prior: N, the highest lr and the weight decay."""

    num_data: int
    lr: float
    weight_decay: float


class Scales(NamedTuple):
    """Scale of the Laplace spike and variance of the Gaussian slab."""

    v0: float
    v1: float


def choose_scales(
    sizes: Sequence[Tensor],
    group_sizes: Sequence[int] | None,
    around: Surroundings,
    sparsity: float,
    weights: Sequence[Tensor] = (),
    *,
    v1: float | None = None,
) -> Scales:
    """Return the scales of a prior whose units have these sizes, of which a share ``sparsity`` will be zero.

    Args:
        sizes: Sizes of the units of each layer: absolute weights or norms of groups.
        group_sizes: Number of weights in a unit of each layer; ``None`` is 1. Groups of different sizes cannot be
            ranked together, so that the narrowest spike of all layers is taken: a wider one would take nearly all
            groups of some layer for small.
        around: N, lr and weight decay.
        sparsity: Share of the units that will be zero.
        weights: Sharded weights, of which ``sizes`` are this rank's parts.
        v1: Variance of the slab; ``None`` takes that of the weight decay.
    """
    v1 = v1 or slab_variance(around.num_data, around.weight_decay)
    if group_sizes is None:
        even = spike_scale(find_threshold(sizes, sparsity, weights), v1, 1.0 - sparsity)
    else:
        even = min(
            spike_scale(find_threshold([norms], sparsity) / math.sqrt(size), v1, 1.0 - sparsity, size)
            for norms, size in zip(sizes, group_sizes, strict=True)
        )
    return Scales(min(max(even, math.sqrt(around.lr / around.num_data)), math.sqrt(v1) / 4.0), v1)


def slab_variance(num_data: int, weight_decay: float) -> float:
    """Return the variance of the slab whose penalty is the weight decay, 1/(N wd)."""
    return 1.0 / (num_data * (weight_decay or WEIGHT_DECAY))


def fit_slab(weights: Sequence[Tensor], sparsity: float, around: Surroundings) -> float:
    """Return the slab variance of a trained network of which a share ``sparsity`` of the weights will be zero.

    It is :data:`GROWTH` times the mean square of the weights above the threshold, which alone would be their variance
    by maximum likelihood; but its penalty is at most :data:`STRONGEST` times the weight decay: with little data a mode
    of the posterior, unlike its mean, is at zero.

    >>> fit_slab([torch.tensor([0.1, -3.0, 0.2, 1.0])], 0.5, Surroundings(num_data=1000, lr=0.1, weight_decay=5e-4))
    10.0
    """
    threshold, left = find_threshold(weights, sparsity), [weight.detach().abs().double() for weight in weights]
    left = [size[size > threshold] for size in left]
    count = max(1, sum(size.numel() for size in left))
    fitted = GROWTH * sum(float(size.square().sum()) for size in left) / count
    return max(fitted, slab_variance(around.num_data, around.weight_decay) / STRONGEST)


def find_threshold(sizes: Sequence[Tensor], sparsity: float, weights: Sequence[Tensor] = ()) -> float:
    """Return the size below which a share ``sparsity`` of all units lies; arguments as in :func:`choose_scales`."""
    if weights:
        every = -(-sum(weight.numel() for weight in weights) // MOST_SIZES)
        chosen = [_take(size.detach().flatten(), locate(w), every) for size, w in zip(sizes, weights, strict=True)]
        count = sum(-(-weight.numel() // every) for weight in weights)
        scores = [size.abs().float() for size in chosen]
        return Reduction(weights).quantile(scores, min(count, max(1, round(sparsity * count))))
    every = -(-sum(size.numel() for size in sizes) // MOST_SIZES)
    flat = torch.cat([size.detach().flatten()[::every].abs().float() for size in sizes])
    return float(flat.kthvalue(min(len(flat), max(1, round(sparsity * len(flat))))).values)


def _take(part: Tensor, place: int | Tensor, every: int) -> Tensor:
    """Return every n-th element of a whole tensor, as far as this rank has it."""
    return part[-place % every :: every] if isinstance(place, int) else part[(place % every == 0).to(part.device)]


def spike_scale(threshold: float, v1: float, delta: float, size: int = 1) -> float:
    r"""Return the scale v0 at which weights of root mean square ``threshold`` are equally likely in spike and slab.

    For single weights it solves :math:`c\,v_0 = t` with
    :math:`c = \tfrac12\log(\pi v_1/(2 v_0^2)) + t^2/(2 v_1) + \log((1-\delta)/\delta)`, where rho is one half; for
    groups of m, the same with the densities of :mod:`spikeslab.functional.groups`.

    >>> round(spike_scale(0.05, v1=0.04, delta=0.1), 4), round(spike_scale(0.05, v1=0.04, delta=0.1, size=64), 4)
    (0.009, 0.0116)
    """
    steepness = norm_weight(size) * math.sqrt(size)
    slab = GAUSSIAN.log_normaliser(v1, size) + size * threshold**2 / (2.0 * v1) + math.log((1.0 - delta) / delta)
    scale = threshold / 5.0
    for _ in range(50):
        odds = (slab - LAPLACE.log_normaliser(scale, size)) / steepness if scale > 0.0 else 1.0
        scale = threshold / max(odds, 2.0)
    return scale


def choose_omega(steps: int, total: float = OMEGA_SUM) -> Schedule:
    """Return the omega of a run of ``steps`` steps, which rises from 0 and has a given sum.

    >>> omega = choose_omega(1000)
    >>> round(sum(omega(step) for step in range(1, 1001)), 9)
    1.0
    """
    return rising(total, steps)


def highest(schedule: ScheduleLike, steps: int) -> float:
    """Return the highest of some values of a schedule over its first ``steps`` steps."""
    return max(float(schedule(max(1, round(part * steps / 50)))) for part in range(51))
