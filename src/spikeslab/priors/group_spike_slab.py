r"""The adaptive spike-and-slab prior on groups of weights: one indicator, one rho for each filter.

For a group :math:`w_g` of m weights, the slice ``weight[o]`` of a layer l,

.. math::
    w_g \mid \sigma, \gamma_g \sim (1-\gamma_g)\, f_0(w_g) + \gamma_g\, N(0, \sigma^2 v_1 I_m), \quad
    f_0(w) \propto \exp\!\big(-k_m\lVert w\rVert/(\sigma v_0)\big), \quad \gamma_g \sim \mathrm{Bernoulli}(\delta_l),

with :math:`k_m = \sqrt{(m+1)/2}`, so that v0 and v1 mean the same for a weight in a group of any size as they do in
:class:`~spikeslab.SpikeSlab`. The sampler sees :math:`\kappa_0 k_m\lVert w\rVert/\sigma +
\kappa_1\lVert w\rVert^2/(2\sigma^2)`; the latents move as there, with sums over groups. The reason for :math:`k_m`
is given in :mod:`spikeslab.functional.groups`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Self

from torch import Tensor

from spikeslab.errors import ArgumentValueError, Phrase, quote
from spikeslab.functional import groups, mixture
from spikeslab.functional.groups import GroupPart
from spikeslab.priors.spike_slab import Diagnostics, SpikeSlab
from spikeslab.weights import Weights


class GroupSpikeSlab(SpikeSlab):
    """Spike-and-slab prior on whole filters: the rows of a linear layer, the filters of a convolution.

    >>> import torch, spikeslab as ss
    >>> conv = torch.nn.Conv2d(3, 8, kernel_size=5)
    >>> prior = ss.priors.GroupSpikeSlab({"conv.weight": conv.weight}, v0=1e-3, v1=0.04, delta=0.5)
    >>> prior.rho["conv.weight"].shape
    torch.Size([8])

    A group is ``weight[o]``. In a vector, such as the scales of a batch normalisation, each number is a group, and the
    prior is that of ``SpikeSlab``. Put it on the parameter that scales a channel: for a filter in front of a batch
    normalisation that is the normalisation's scale; :func:`spikeslab.pruning.channel_gates` picks the right one.

    With ``groups`` a group may be spread over several parameters, as a head over its queries, keys, values and outputs:
    it then has one indicator, one rho and one norm.

    >>> parts = (ss.functional.groups.GroupPart("q", 0, torch.arange(4).view(2, 2)),
    ...          ss.functional.groups.GroupPart("out", 1, torch.arange(4).view(2, 2)))
    >>> matrices = {"q": torch.nn.Parameter(torch.ones(4, 3)), "out": torch.nn.Parameter(torch.ones(3, 4))}
    >>> prior = ss.priors.GroupSpikeSlab(matrices, groups={"heads": parts}, v0=1e-3, v1=0.04)
    >>> prior.rho["heads"].shape
    torch.Size([2])

    The arguments are those of ``SpikeSlab`` and ``groups``: for each layer the slices of ``weights`` that make up its
    groups, as in the ``gates`` of :func:`spikeslab.pruning.find_units`. ``delta``, ``a`` and ``b`` are about groups,
    and by default b is the layer's number of groups. In large groups rho is nearly 0 or 1, and delta decides little.
    The fused update does not apply: torch moves these weights. The ``effective_l1`` of ``diagnostics`` is the factor of
    a group's norm.
    """

    def __init__(
        self, weights: Weights, *, groups: Mapping[str, Sequence[GroupPart]] | None = None, **arguments: Any
    ) -> None:
        self._groups = None if groups is None else {name: tuple(parts) for name, parts in groups.items()}
        super().__init__(weights, **arguments)
        self._sizes = [count * size for count, size in zip(self._counts, self._group_sizes(), strict=True)]

    @property
    def fusible(self) -> bool:
        """Always False: the gradient of a norm is no elastic net."""
        return False

    def diagnostics(self, num_data: int) -> Diagnostics:
        """Return the progress of the latents and the strength of the penalty, in units of the mean loss."""
        single = super().diagnostics(num_data)
        factors = zip(single.effective_l1.items(), self._group_sizes(), strict=True)
        return replace(
            single, effective_l1={name: value * mixture.norm_weight(size) for (name, value), size in factors}
        )

    def _make_twin(self, arguments: Mapping[str, Any]) -> Self:
        return type(self)(self.weights, groups=self._groups, **arguments)

    def _find_layers(self) -> dict[str, Tensor]:
        if self._groups is None:
            return self.weights
        given = [part.name for parts in self._groups.values() for part in parts]
        if not given or (unknown := [name for name in given if name not in self.weights]):
            raise ArgumentValueError(
                "groups",
                f"must be made of the weights {quote(self.weights)}",
                Phrase(f"got {quote(unknown) if given else 'none'}"),
            )
        return {name: self.weights[parts[0].name] for name, parts in self._groups.items()}

    def _group_sizes(self) -> list[int]:
        if self._groups is None:
            return [groups.group_size(weight) for weight in self.weights.values()]
        return [sum(part.size(self.weights[part.name]) for part in parts) for parts in self._groups.values()]

    def _shapes(self) -> list[tuple[int, ...]]:
        if self._groups is None:
            return [tuple(weight.shape[:1]) for weight in self.weights.values()]
        return [(len(parts[0].places),) for parts in self._groups.values()]

    def _units(self, betas: list[Tensor]) -> list[Tensor]:
        if self._groups is None:
            return groups.norms(betas)
        tensors = dict(zip(self.weights, betas, strict=True))
        return [groups.joint_norms(parts, tensors) for parts in self._groups.values()]

    def _sums(self, units: list[Tensor]) -> tuple[float, float]:
        l1, l2 = mixture.elastic_net(*self._kappa(), self.spike, self.slab)
        return groups.penalty_sums(units, self._rho_in_kappa(units), self._group_sizes(), l1, l2)

    def _add_gradient_(self, indices: list[int], betas: list[Tensor], outs: list[Tensor], num_data: int) -> None:
        l1, l2 = self._elastic_net(num_data)
        if self._groups is None:
            units = self._units(betas)
            groups.add_gradient_(outs, betas, units, self._rho_in_kappa(units, indices), l1, l2)
            return
        units, names = self._units(self._betas()), list(self.weights)
        smoothed = self._rho_in_kappa(units)
        for place, (parts, norm, size) in enumerate(
            zip(self._groups.values(), units, self._group_sizes(), strict=True)
        ):
            factor = groups.gradient_factor(norm, None if smoothed is None else smoothed[place], size, l1, l2)
            for index, beta, out in zip(indices, betas, outs, strict=True):
                for part in parts:
                    if part.name == names[index]:
                        out.addcmul_(part.spread(factor, beta), beta)
