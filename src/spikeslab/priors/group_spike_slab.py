r"""The adaptive spike-and-slab prior on groups of weights: one indicator, one rho for each filter.

For a group :math:`w_g` of m weights, the slice ``weight[o]`` of a layer l,

.. math::
    w_g \mid \sigma, \gamma_g \sim (1-\gamma_g)\, f_0(w_g) + \gamma_g\, N(0, \sigma^2 v_1 I_m), \quad
    f_0(w) \propto \exp\!\big(-k_m\lVert w\rVert/(\sigma v_0)\big), \quad \gamma_g \sim \mathrm{Bernoulli}(\delta_l),

with :math:`k_m = \sqrt{(m+1)/2}`, so that v0 and v1 mean the same for a weight in a group of any size as they do in
:class:`~spikeslab.SpikeSlab`. The sampler sees :math:`\kappa_0 k_m\lVert w\rVert/\sigma +
\kappa_1\lVert w\rVert^2/(2\sigma^2)`; the latents move as there, with the sums over groups. The arithmetic, and why
:math:`k_m`, is in :mod:`spikeslab.functional.groups`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from torch import Tensor

from spikeslab.functional import groups, mixture
from spikeslab.priors.spike_slab import Diagnostics, SpikeSlab


class GroupSpikeSlab(SpikeSlab):
    """Spike-and-slab prior under which whole filters go: the rows of a linear layer, the filters of a convolution.

    >>> import torch, spikeslab as ss
    >>> conv = torch.nn.Conv2d(3, 8, kernel_size=5)
    >>> prior = ss.priors.GroupSpikeSlab({"conv.weight": conv.weight}, v0=1e-3, v1=0.04, delta=0.5)
    >>> prior.rho["conv.weight"].shape
    torch.Size([8])

    A group is ``weight[o]``; of a vector, such as the scales of a batch normalisation, each number is one, and the
    prior is that of ``SpikeSlab``. Put it on what decides a channel: a filter in front of a batch normalisation has no
    scale of its own, its normalisation has; :func:`spikeslab.pruning.channel_gates` picks the right one.

    The arguments are those of ``SpikeSlab``. Of those, ``delta``, ``a`` and ``b`` are about groups: by default b is
    the number of groups of the layer. In large groups rho is nearly 0 or 1, and delta decides little. ``foreach``
    changes nothing. The fused update does not apply: torch's operations move these weights.

    ``diagnostics``' ``effective_l1`` is the weight of a group's norm.
    """

    @property
    def fusible(self) -> bool:
        """Always False: the gradient of a norm is no elastic net."""
        return False

    def diagnostics(self, num_data: int) -> Diagnostics:
        """How far the latents have come and how strong the penalty is, in units of the mean loss."""
        single = super().diagnostics(num_data)
        factors = zip(single.effective_l1.items(), self._group_sizes(), strict=True)
        return replace(single, effective_l1={name: value * groups.norm_weight(size) for (name, value), size in factors})

    def _group_sizes(self) -> list[int]:
        return [groups.group_size(weight) for weight in self.weights.values()]

    def _units(self, betas: list[Tensor]) -> list[Tensor]:
        return groups.norms(betas)

    def _responsibilities(self, units: list[Tensor], indices: Sequence[int] | None = None) -> list[Tensor]:
        odds = groups.log_odds(**self._densities(), deltas=self._deltas, sizes=self._group_sizes())
        return groups.rho(units, odds if indices is None else [odds[i] for i in indices])

    def _log_marginals(self, units: list[Tensor]) -> list[Tensor]:
        densities: dict[str, Any] = self._densities()
        return [
            groups.log_marginal(unit, **densities, delta=delta, size=size)
            for unit, delta, size in zip(units, self._deltas, self._group_sizes(), strict=True)
        ]

    def _sums(self, units: list[Tensor]) -> tuple[float, float]:
        l1, l2 = mixture.elastic_net(*self._kappa(), self.spike, self.slab)
        return groups.penalty_sums(units, self._smoothed(units), self._group_sizes(), l1, l2)

    def _add_gradient_(self, indices: list[int], betas: list[Tensor], outs: list[Tensor], num_data: int) -> None:
        units = self._units(betas)
        groups.add_gradient_(outs, betas, units, self._smoothed(units, indices), *self._elastic_net(num_data))
