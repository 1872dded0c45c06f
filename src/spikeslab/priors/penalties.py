r"""L1 and L2 penalties on the sparse weights, the baselines that every sparse prior must beat.

Their strength is in units of the mean loss, like ``weight_decay`` of ``torch.optim.SGD``: L1 adds
:math:`s\sum|w|`, L2 adds :math:`\tfrac{s}{2}\sum w^2`.
"""

from __future__ import annotations

from abc import abstractmethod
from typing import Any

from torch import Tensor

from spikeslab.errors import check_number
from spikeslab.functional.mixture import Affine, add_elastic_net_gradient_, elastic_net_sums
from spikeslab.kernels.protocol import FusedPenalty, LatentSums
from spikeslab.priors.base import Prior
from spikeslab.weights import Weights

NOTHING = Affine(0.0, 0.0)


class FixedPenalty(Prior):
    """Elastic net that is constant and the same for all weights.

    Args:
        weights: Sparse weights.
        strength: Strength in units of the mean loss.
    """

    def __init__(self, weights: Weights, strength: float) -> None:
        super().__init__(weights)
        self.strength = check_number("strength", strength, ">= 0")

    def settings_dict(self) -> dict[str, Any]:
        """Return the strength."""
        return super().settings_dict() | {"strength": self.strength}

    @abstractmethod
    def _terms(self) -> tuple[Affine, Affine]:
        """Return the factors of ``|w|`` and of ``w**2 / 2`` in the mean loss."""

    def _add_gradient_(self, indices: list[int], betas: list[Tensor], outs: list[Tensor], num_data: int) -> None:
        add_elastic_net_gradient_(outs, betas, None, *self._terms())

    @property
    def fusible(self) -> bool:
        """Always True."""
        return True

    def fused_penalty(self, params: list[Tensor], num_data: int) -> FusedPenalty:
        """Return the gradient, the same function of all weights."""
        return FusedPenalty(*self._terms())

    def fused_latents(self, step: int) -> None:
        """Return ``None``: there are no latents."""

    def update_from_sums(self, omega: float, num_data: int, sums: list[LatentSums]) -> None:
        """Do nothing: there are no latents."""

    def penalty(self, num_data: int = 1) -> float:
        """Return the penalty in the mean loss, whatever ``num_data`` is."""
        betas, terms = self._betas(), self._terms()
        if not self._ranks:
            b, j = elastic_net_sums(betas, None, *terms)
            return b + 0.5 * j
        each = [elastic_net_sums([beta], None, *terms) for beta in betas]
        return self._ranks.sum([sum(self._ranks.own([b + 0.5 * j for b, j in each]))])[0]

    def effective_penalty(self, num_data: int) -> tuple[float, float]:
        """Return the strength, which is the same for all weights."""
        l1, l2 = self._terms()
        return l1.base, l2.base


class L1(FixedPenalty):
    """Laplace prior: adds ``strength * sum(|w|)`` to the mean loss.

    >>> import torch
    >>> L1([torch.tensor([1.0, -2.0])], strength=0.5).penalty()
    1.5
    """

    def _terms(self) -> tuple[Affine, Affine]:
        return Affine(self.strength, 0.0), NOTHING


class L2(FixedPenalty):
    """Gaussian prior: adds ``strength / 2 * sum(w**2)`` to the mean loss.

    >>> import torch
    >>> L2([torch.tensor([1.0, -2.0])], strength=0.5).penalty()
    1.25
    """

    def _terms(self) -> tuple[Affine, Affine]:
        return NOTHING, Affine(self.strength, 0.0)
