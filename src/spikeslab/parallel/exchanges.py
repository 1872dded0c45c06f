r"""What changes places in a swap, and what becomes of the latents of an adaptive prior.

The latents (rho, kappa, sigma, delta) are written :math:`\theta`, and
:math:`U(w; \theta) = N\,\mathrm{loss}(w) + \mathrm{penalty}(w; \theta)`. Without latents (no prior, ``L1``, ``L2``,
``Fixed``, ``Marginal`` with a fixed sigma and delta) both exchanges have one law.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import TypeAlias

from torch import Tensor

from spikeslab.parallel.replicas import Replicas
from spikeslab.parallel.swaps import Journal

Loss: TypeAlias = Callable[[int], Tensor]


class Exchange(ABC):
    """A way to exchange the configurations of neighbouring rungs.

    Args:
        replicas: The samplers.
        journal: Which configuration is at which rung.
        temperatures: Of the rungs.
    """

    def __init__(self, replicas: Replicas, journal: Journal, temperatures: tuple[float, ...]) -> None:
        self.replicas = replicas
        self.journal = journal
        self.temperatures = temperatures

    @abstractmethod
    def rung(self, replica: int) -> int:
        """The rung of a replica now."""

    @abstractmethod
    def replica(self, rung: int) -> int:
        """The replica at a rung now."""

    @abstractmethod
    def terms(self, lows: list[int], loss: Loss) -> dict[int, Tensor]:
        """What each rung of this process adds to the log ratio of its pair, for each mini-batch.

        The pairs are ``low`` and ``low + 1``; everything is as before afterwards.
        """

    @abstractmethod
    def swap(self, lows: list[int]) -> None:
        """Exchange the pairs, which the journal has already noted."""

    def _energies(self, lows: list[int], loss: Loss) -> dict[int, Tensor]:
        """Energies of the rungs of this process that meet another."""
        own = {self.rung(replica): replica for replica in self.replicas.own}
        meeting = [rung for low in lows for rung in (low, low + 1) if rung in own]
        return {rung: self.replicas.energy(own[rung], loss(own[rung])) for rung in meeting}


class CarriedLatents(Exchange):
    r"""The weights carry their latents, and the replicas exchange their temperatures.

    A configuration is :math:`x = (w, \theta)`, with its energy under its own latents:

    .. math:: \ell = \Bigl(\frac1{T_i} - \frac1{T_j}\Bigr)\,\bigl(U(w_i; \theta_i) - U(w_j; \theta_j)\bigr).

    Law: given which configuration is at a rung, its weights follow :math:`\exp(-U(w; \theta)/T)` with the latents that
    it carries. Latents that move by SA average over the temperatures that their configuration visits. A momentum is
    rescaled by :math:`\sqrt{T_{new}/T_{old}}`: that keeps its law, and over the pair also the volume.
    """

    def rung(self, replica: int) -> int:
        """Where the journal has its configuration."""
        return self.journal.walkers.index(replica)

    def replica(self, rung: int) -> int:
        """Whose configuration the journal has there."""
        return self.journal.walkers[rung]

    def terms(self, lows: list[int], loss: Loss) -> dict[int, Tensor]:
        """The energy times the difference of the inverse temperatures."""
        partners = {low: low + 1 for low in lows} | {low + 1: low for low in lows}
        return {
            rung: (1.0 / self.temperatures[rung] - 1.0 / self.temperatures[partners[rung]]) * energy
            for rung, energy in self._energies(lows, loss).items()
        }

    def swap(self, lows: list[int]) -> None:
        """Give the samplers their new temperatures."""
        moved = {self.replica(rung): rung for low in lows for rung in (low, low + 1)}
        for replica, sampler in self.replicas.own.items():
            if replica in moved:
                sampler.retemper(self.temperatures[moved[replica]])


class FrozenLatents(Exchange):
    r"""The latents belong to the rung and are held while its weights are exchanged.

    The weights change places, each is judged under the latents of the other, and they change back:

    .. math::
        \ell = \frac{U(w_i; \theta_i) - U(w_j; \theta_i)}{T_i} + \frac{U(w_j; \theta_j) - U(w_i; \theta_j)}{T_j}.

    Law: the weights of rung i follow :math:`\exp(-U(w; \theta_i)/T_i)`, so SA finds the fixed point that belongs to the
    temperature. A momentum stays with its rung, since it is independent of the weights. It costs a second evaluation,
    and between processes the sending of all weights.
    """

    def rung(self, replica: int) -> int:
        """Always its own."""
        return replica

    def replica(self, rung: int) -> int:
        """Always its own."""
        return rung

    def terms(self, lows: list[int], loss: Loss) -> dict[int, Tensor]:
        """By how much the rung prefers its own weights to those of its partner."""
        before = self._energies(lows, loss)
        self.replicas.exchange_weights(lows)
        try:
            after = self._energies(lows, loss)
        finally:
            self.replicas.exchange_weights(lows)
        return {rung: (before[rung] - after[rung]) / self.temperatures[rung] for rung in before}

    def swap(self, lows: list[int]) -> None:
        """Exchange the weights."""
        self.replicas.exchange_weights(lows)


EXCHANGES: dict[str, type[Exchange]] = {"carried": CarriedLatents, "frozen": FrozenLatents}
