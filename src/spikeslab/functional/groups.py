r"""The spike-and-slab mixture on groups of weights, such as the filters of a convolution.

A group :math:`w` of m weights, one slice ``weight[o]``, has one indicator. Both densities depend on its norm alone:

.. math::
    f_0(w) \propto \exp\!\Big(-\frac{k_m \lVert w\rVert}{\sigma v_0}\Big), \qquad
    f_1(w) = N(w; 0, \sigma^2 v_1 I_m), \qquad k_m = \sqrt{(m+1)/2}.

In polar coordinates :math:`\int e^{-\lVert w\rVert/c}\,dw = 2\pi^{m/2}\,\Gamma(m)\,c^m / \Gamma(m/2)`, here with
:math:`c = \sigma v_0/k_m`, and the norm under the spike is :math:`\mathrm{Gamma}(m, c)`. Both normalisers carry
:math:`\sigma^m`: it cancels in rho, and the p of eq. 14 is the number of weights. That of eq. 15 is the number of
groups.

Why :math:`k_m`: with :math:`\exp(-\lVert w\rVert/(\sigma v_0))` each weight would have the variance
:math:`(m+1)\sigma^2 v_0^2`, so that the spike of a wide layer is wider than that of a narrow one, and soon wider than
the slab. With :math:`k_m` every weight has the variance :math:`2\sigma^2 v_0^2` of a Laplace density of scale
:math:`\sigma v_0`, whatever m is. One v0 then serves layers of any fan-in: the root mean square
:math:`\lVert w\rVert/\sqrt m` at which rho is 1/2 tends to the same number for all large groups, the first root of
:math:`r/s_0 - r^2/(2 s_1^2) + \log(s_0/s_1) = 1/2` with the standard deviations :math:`s_0 = \sqrt2\,\sigma v_0` and
:math:`s_1 = \sigma\sqrt{v_1}`. The penalty grows as :math:`\sqrt m \lVert w\rVert`, as in the group lasso.

Equation 12 for groups is that of :mod:`~spikeslab.functional.mixture` with ``sizes``; here are the norms, the gradient
and the sums.

References: Yuan and Lin, "Model Selection and Estimation in Regression with Grouped Variables", JRSS B 2006; Kyung,
Gill, Ghosh and Casella, "Penalized Regression, Standard Errors, and Bayesian Lassos", Bayesian Analysis 2010.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from spikeslab.functional import mixture
from spikeslab.functional.mixture import Affine, norm_weight

SMALLEST = 1e-30  # norms below it count as it: w / 0 is then 0, and 1 / norm is finite in float32


class GroupPart(NamedTuple):
    """Slices of a parameter, one or more for each group.

    >>> weight = torch.tensor([[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]])
    >>> rows = GroupPart("weight", 0, torch.tensor([[0], [1]]))
    >>> rows.squares(weight)
    tensor([ 5., 25.])

    Attributes:
        name: Name of the parameter.
        dim: Dimension along which the slices lie.
        places: Their places, of shape (groups, slices of a group).
    """

    name: str
    dim: int
    places: Tensor

    def size(self, tensor: Tensor) -> int:
        """Return the number of weights of a group in this parameter."""
        return int(self.places.shape[1]) * tensor.numel() // tensor.shape[self.dim]

    def squares(self, tensor: Tensor) -> Tensor:
        """Return the sum of the squares of each group."""
        others = [dim for dim in range(tensor.ndim) if dim != self.dim]
        squared = tensor.detach().square()
        return (squared.sum(others) if others else squared)[self.places.to(tensor.device)].sum(1)

    def spread(self, values: Tensor, tensor: Tensor) -> Tensor:
        """Return one value for each group in a shape that broadcasts over the parameter, 0 outside of the groups."""
        spread = values.new_zeros(tensor.shape[self.dim])
        spread[self.places.to(values.device)] = values[:, None].expand(self.places.shape)
        return spread.view([-1 if dim == self.dim else 1 for dim in range(tensor.ndim)])

    def zero_(self, tensor: Tensor, mask: Tensor) -> None:
        """Zero the groups that a mask marks."""
        tensor.index_fill_(self.dim, self.places[mask.cpu()].flatten().to(tensor.device), 0.0)


def joint_norms(parts: Sequence[GroupPart], tensors: Mapping[str, Tensor]) -> Tensor:
    """Return the norm of every group over all of its parts."""
    return torch.stack([part.squares(tensors[part.name]) for part in parts]).sum(0).sqrt()


def norms(betas: Sequence[Tensor]) -> list[Tensor]:
    """Return the norm of every group, a slice along the first dimension; in a vector every number is a group.

    >>> norms([torch.tensor([[3.0, 4.0], [0.0, 0.0]]), torch.tensor([-2.0])])
    [tensor([5., 0.]), tensor([2.])]
    """
    # By dimensions, not by a view of rows, which a channels_last weight does not have.
    return [
        beta.abs() if beta.ndim < 2 else torch.linalg.vector_norm(beta, dim=tuple(range(1, beta.ndim)))
        for beta in betas
    ]


def group_size(beta: Tensor) -> int:
    """Return the number of weights in a group of ``beta``.

    >>> group_size(torch.zeros(8, 3, 5, 5)), group_size(torch.zeros(8))
    (75, 1)
    """
    return math.prod(beta.shape[1:])


def add_gradient_(
    outs: Sequence[Tensor],
    betas: Sequence[Tensor],
    group_norms: Sequence[Tensor],
    smoothed: Sequence[Tensor] | None,
    l1: Affine,
    l2: Affine,
) -> None:
    r"""Add :math:`l_1 k_m w/\lVert w\rVert + l_2 w` to ``outs``, with ``l1`` and ``l2`` affine in ``smoothed``.

    At w = 0 the gradient of the norm is taken as 0, an element of its subdifferential, so a pruned group is not pushed.
    No step of a sampler lands on 0 either: as for single weights, only a pruner makes groups exactly zero.
    """
    for index, (out, beta, norm) in enumerate(zip(outs, betas, group_norms, strict=True)):
        factor = gradient_factor(norm, None if smoothed is None else smoothed[index], group_size(beta), l1, l2)
        out.addcmul_(factor.view(-1, *[1] * (beta.ndim - 1)) if beta.ndim else factor, beta)


def gradient_factor(norm: Tensor, smoothed: Tensor | None, size: int, l1: Affine, l2: Affine) -> Tensor:
    r"""Return :math:`l_1 k_m/\lVert w\rVert + l_2` for each group, by which its weights are multiplied."""
    s = torch.zeros_like(norm) if smoothed is None else smoothed
    factor = (l1.base + l1.slope * s).mul_(norm_weight(size)).div_(norm.clamp_min(SMALLEST))
    return factor.add_(l2.base + l2.slope * s)


def penalty_sums(
    group_norms: list[Tensor], smoothed: list[Tensor] | None, sizes: Sequence[int], l1: Affine, l2: Affine
) -> tuple[float, float]:
    r"""Return the sums :math:`B = \sum l_1 k_m\lVert w\rVert` and :math:`J = \sum l_2\lVert w\rVert^2` of eq. 14."""
    weighted = [norm * norm_weight(size) for norm, size in zip(group_norms, sizes, strict=True)]
    return (
        mixture.elastic_net_sums(weighted, smoothed, l1, l2)[0],
        mixture.elastic_net_sums(group_norms, smoothed, l1, l2)[1],
    )
