r"""How a spike-and-slab prior follows the weights: its step size omega, and what it keeps.

============  =====================================================================================================
``SA``        the paper: every latent moves by :math:`\theta \leftarrow (1-\omega_k)\theta + \omega_k g_\theta(\beta)`
``EM``        omega = 1: each latent is at its conditional maximum, one step late
``Marginal``  the exact gradient of the log mixture density; sigma and delta move by SA, or stay
``Fixed``     omega = 0: an elastic net with the initial kappa
============  =====================================================================================================

Latents that move at every e-th step only (``adapt_every`` of the priors) move by the sum of e omegas, at most 1. Fixed
points do not depend on omega, and the sum of omega, which decides how far the latents get, is that of a move at every
step.

With ``EM`` and ``Marginal`` the weights follow the spike-and-slab posterior (Fisher's identity); with ``SA`` they
follow the elastic net at the fixed point :math:`\rho^* = E[\tilde\rho(\beta)]`, another and smoother target.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from spikeslab.schedules import ScheduleLike, constant, summed


@dataclass(frozen=True)
class Adaptation:
    """Base of the four modes."""

    @property
    def learns(self) -> bool:
        """Whether any latent ever moves."""
        return True

    def omega(self, step: int) -> float:
        """Step size of the stochastic approximation, in [0, 1]."""
        raise NotImplementedError

    def thinned(self, every: int) -> Adaptation:
        """The same in moves at every ``every``-th step, each for all the steps since the last one."""
        return self


@dataclass(frozen=True)
class SA(Adaptation):
    """Stochastic approximation with step size ``schedule``, clipped to [0, 1] (algorithm 1 of the paper).

    Theorem 1 wants omega to tend to 0 and its sum to diverge: ``polynomial(A, power, offset)`` with a power in (0, 1].
    """

    schedule: ScheduleLike

    def omega(self, step: int) -> float:
        """``schedule(step)``, clipped."""
        return min(max(float(self.schedule(step)), 0.0), 1.0)

    def thinned(self, every: int) -> SA:
        """With the omegas of ``every`` steps in one."""
        return self if every == 1 else replace(self, schedule=summed(self.schedule, every))


@dataclass(frozen=True)
class EM(SA):
    """The paper's SGLD-EM and SGHMC-EM: stochastic approximation with omega = 1."""

    schedule: ScheduleLike = field(default_factory=lambda: constant(1.0))


@dataclass(frozen=True)
class Marginal(Adaptation):
    """The indicators summed out at every step; ``schedule`` is the omega of sigma and delta, ``None`` fixes them."""

    schedule: ScheduleLike | None = None

    @property
    def learns(self) -> bool:
        """Whether sigma and delta move."""
        return self.schedule is not None

    def omega(self, step: int) -> float:
        """Step size for sigma and delta."""
        return 0.0 if self.schedule is None else min(max(float(self.schedule(step)), 0.0), 1.0)

    def thinned(self, every: int) -> Marginal:
        """With the omegas of ``every`` steps in one; the gradient is exact at every step as before."""
        return self if every == 1 or self.schedule is None else Marginal(summed(self.schedule, every))


@dataclass(frozen=True)
class Fixed(Adaptation):
    """No latent moves: the paper's plain SGLD and SGHMC baselines."""

    @property
    def learns(self) -> bool:
        """Nothing moves."""
        return False

    def omega(self, step: int) -> float:
        """Zero."""
        return 0.0
