r"""Modes in which a spike-and-slab prior follows the weights: the step size omega of its latents.

============  =====================================================================================================
``SA``        the paper: every latent moves by :math:`\theta \leftarrow (1-\omega_k)\theta + \omega_k g_\theta(\beta)`
``EM``        omega = 1: each latent is at its conditional maximum, one step late
``Marginal``  the exact gradient of the log mixture density; sigma and delta move by SA, or stay
``Fixed``     omega = 0: an elastic net with the initial kappa
============  =====================================================================================================

Latents that move at every e-th step only (``adapt_every`` of the priors) move by the sum of e omegas, at most 1. Fixed
points do not depend on omega, and the sum of omega, which decides how far the latents get, stays the same.

With ``EM`` and ``Marginal`` the weights follow the spike-and-slab posterior (Fisher's identity); with ``SA`` they
follow the elastic net at the fixed point :math:`\rho^* = E[\tilde\rho(\beta)]`, another and smoother target.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Self

from spikeslab.errors import ArgumentTypeError
from spikeslab.schedules import ScheduleLike, accumulate, constant, evaluate


@dataclass(frozen=True)
class Adaptation:
    """Base of the four modes: ``schedule`` is omega as a function of the step, ``None`` is zero."""

    schedule: ScheduleLike | None

    def __post_init__(self) -> None:
        if self.schedule is not None and not callable(self.schedule):
            raise ArgumentTypeError(
                "schedule", "must be a function of the step", self.schedule, "see spikeslab.schedules"
            )

    @property
    def learns(self) -> bool:
        """True if any latent ever moves."""
        return self.schedule is not None

    def omega(self, step: int) -> float:
        """Return the step size of the stochastic approximation, clipped to [0, 1]."""
        if self.schedule is None:
            return 0.0
        return min(max(evaluate("omega", self.schedule, step, "(-inf, inf)"), 0.0), 1.0)

    def thin(self, every: int) -> Self:
        """Return the mode that moves at every ``every``-th step, by the omegas of all steps since the last move."""
        if self.schedule is None or every == 1:
            return self
        return replace(self, schedule=accumulate(self.schedule, every))


@dataclass(frozen=True)
class SA(Adaptation):
    """Stochastic approximation with step size ``schedule``, clipped to [0, 1] (algorithm 1 of the paper).

    Theorem 1 requires omega to tend to 0 and its sum to diverge: ``polynomial(A, power, offset)`` with a power in
    (0, 1].
    """

    schedule: ScheduleLike


@dataclass(frozen=True)
class EM(SA):
    """The paper's SGLD-EM and SGHMC-EM: stochastic approximation with omega = 1."""

    schedule: ScheduleLike = field(default_factory=lambda: constant(1.0))


@dataclass(frozen=True)
class Marginal(Adaptation):
    """Indicators summed out at every step; ``schedule`` is the omega of sigma and delta, ``None`` fixes them."""

    schedule: ScheduleLike | None = None


@dataclass(frozen=True)
class Fixed(Adaptation):
    """No latent moves: the paper's plain SGLD and SGHMC baselines."""

    schedule: None = field(default=None, init=False, repr=False)


MODES: dict[str, type[Adaptation]] = {mode.__name__: mode for mode in (SA, EM, Marginal, Fixed)}
"""The four modes by name."""
