"""Interface between a prior and the fused update: the terms a prior gives, and the sums it gets back."""

from __future__ import annotations

from typing import NamedTuple, Protocol

from torch import Tensor

from spikeslab.functional.mixture import Affine, LogOdds


class Latents(NamedTuple):
    r"""Latents of one weight that move with it: rho towards eq. 12 by omega, then its smoothed copy towards rho.

    Attributes:
        rho: The rho of every element.
        log_odds: Log odds of the slab as a function of the magnitude.
        omega: How far rho and its smoothed copy go.
        sums: Whether to give all of :class:`LatentSums`; the sum of rho is always there.
    """

    rho: Tensor
    log_odds: LogOdds
    omega: float
    sums: bool = True


class FusedTerms(NamedTuple):
    r"""A prior's part in the fused update of one weight: :math:`l_1\,\mathrm{sign}(w) + l_2\,w`, its gradient over N.

    Attributes:
        l1: Weight of the sign, affine in ``smoothed``.
        l2: Weight of the weight.
        smoothed: The smoothed rho, in the weight's layout, or ``None`` for zero.
        latents: What moves with the weight, or ``None`` if nothing does in this step.
    """

    l1: Affine
    l2: Affine
    smoothed: Tensor | None = None
    latents: Latents | None = None


class LatentSums(NamedTuple):
    """Sums over one weight after its latents have moved, with ``s`` the smoothed rho; zero where nobody asked."""

    magnitude: float = 0.0
    square: float = 0.0
    smoothed_magnitude: float = 0.0
    smoothed_square: float = 0.0
    rho: float = 0.0


class FusedPrior(Protocol):
    """Prior whose gradient is an elastic net, so that the kernels can add it in their own pass."""

    weights: dict[str, Tensor]

    def __contains__(self, weight: object) -> bool: ...

    @property
    def fusible(self) -> bool:
        """True if :meth:`fused_terms` gives the whole gradient."""
        ...

    def fused_terms(self, params: list[Tensor], step: int, num_data: int) -> list[FusedTerms]:
        """Return the terms of ``params``, some of the prior's weights."""
        ...
