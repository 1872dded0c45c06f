"""Interface of the fused update: moves of a sampler, terms of a prior, and the sums that the prior gets back."""

from __future__ import annotations

from typing import NamedTuple, Protocol, runtime_checkable

from torch import Tensor

from spikeslab.functional.mixture import Affine, LogOdds


class Move(NamedTuple):
    """Numbers with which the kernels move the parameters of a group.

    Attributes:
        lr: Learning rate of this step.
        noise_std: Standard deviation of the noise, added to the buffer or, without one, to the weight.
        momentum: Momentum of SGHMC.
        buffer: Name of the buffer in the sampler's state; ``None`` is SGLD.
    """

    lr: float
    noise_std: float
    momentum: float = 0.0
    buffer: str | None = None


class FusedPenalty(NamedTuple):
    r"""Gradient of the negative log prior over N, :math:`l_1\,\mathrm{sign}(w) + l_2\,w`.

    Attributes:
        l1: Factor of the sign, affine in ``smoothed``.
        l2: Factor of the weight, affine in ``smoothed``.
        smoothed: Smoothed rho of each weight, in its memory layout; ``None`` is zero.
    """

    l1: Affine
    l2: Affine
    smoothed: list[Tensor] | None = None


class FusedLatents(NamedTuple):
    """Move of the latents in one step: rho goes towards eq. 12 by omega, then its smoothed copy towards rho.

    Attributes:
        omega: Step size; 0 leaves the latents as they are.
        rho: Rho of each weight, in its memory layout.
        log_odds: Log odds of the slab for each weight, as a function of its magnitude.
        all_sums: If True, the prior needs all of :class:`LatentSums`; otherwise the sum of rho is enough.
    """

    omega: float
    rho: list[Tensor]
    log_odds: list[LogOdds]
    all_sums: bool


class LatentSums(NamedTuple):
    """Sums over one weight after its latents have moved; those that were not asked for are zero."""

    magnitude: float = 0.0
    square: float = 0.0
    smoothed_magnitude: float = 0.0
    smoothed_square: float = 0.0
    rho: float = 0.0


@runtime_checkable
class FusedPrior(Protocol):
    """Prior that takes part in the fused update, because its gradient is an elastic net.

    In one step the fused update asks for :meth:`fused_latents` and :meth:`fused_penalty`, moves the weights, rho and
    its smoothed copy in one pass over memory, and hands the sums to :meth:`update_from_sums`.
    """

    weights: dict[str, Tensor]

    def __contains__(self, weight: object) -> bool: ...

    @property
    def fusible(self) -> bool:
        """True while the gradient is an elastic net; torch moves the weights while it is not."""
        ...

    def fused_penalty(self, params: list[Tensor], num_data: int) -> FusedPenalty:
        """Return the gradient at ``params``, some of the prior's weights, before the latents move."""
        ...

    def fused_latents(self, step: int) -> FusedLatents | None:
        """Return the move of all latents at ``step``, or ``None`` for a prior without latents."""
        ...

    def update_from_sums(self, omega: float, num_data: int, sums: list[LatentSums]) -> None:
        """Move what depends on all weights together (eqs. 14 and 15), given the sums over each of them."""
        ...
