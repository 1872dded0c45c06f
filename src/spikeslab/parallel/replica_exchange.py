r"""Replica exchange (parallel tempering): hot replicas find the modes, cold ones sample them.

Between steps of the samplers, neighbouring rungs of a ladder of temperatures try to swap their configurations.
:mod:`spikeslab.parallel.swaps` has the acceptance rule, also for energies estimated from mini-batches.
:class:`CarriedLatents` and :class:`FrozenLatents` define what is swapped if the prior adapts. There :math:`\theta` are
the latents (rho, kappa, sigma, delta), and :math:`U(w; \theta) = N\,\mathrm{loss}(w) + \mathrm{penalty}(w; \theta)`.
Without latents (no prior, ``L1``, ``L2``, ``Fixed``, ``Marginal`` with fixed sigma and delta) both have the same law.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise
from typing import Any, TypeAlias

import torch
from torch import Tensor

from spikeslab.errors import ArgumentValueError, NonFiniteError, StateError, check_choice, check_count, check_number
from spikeslab.parallel._replicas import RankReplicas, Replicas
from spikeslab.parallel.distributed import Ranks
from spikeslab.parallel.swaps import Journal, SwapStatistics, log_acceptance, mean_and_variance, pairs, uniform
from spikeslab.samplers.base import Sampler
from spikeslab.schedules import ScheduleLike, polynomial

Loss: TypeAlias = Callable[[int], Tensor]


class Exchange(ABC):
    """Swap move between neighbouring rungs."""

    def __init__(self, replicas: Replicas, journal: Journal, temperatures: tuple[float, ...]) -> None:
        self.replicas = replicas
        self.journal = journal
        self.temperatures = temperatures

    @property
    @abstractmethod
    def positions(self) -> list[int]:
        """Replica that is now at each rung."""

    @abstractmethod
    def terms(self, lows: list[int], loss: Loss) -> dict[int, Tensor]:
        """Return each local rung's term in the log ratio of its pair (``low``, ``low + 1``), per mini-batch."""

    @abstractmethod
    def swap(self, lows: list[int]) -> None:
        """Swap the accepted pairs, which the journal has already recorded."""

    def _energies(self, lows: list[int], loss: Loss) -> dict[int, Tensor]:
        """Return the energies of the local rungs that belong to a pair."""
        meeting = {rung: self.positions[rung] for low in lows for rung in (low, low + 1)}
        own = {rung: replica for rung, replica in meeting.items() if replica in self.replicas.own}
        return {rung: self.replicas.energy(replica, loss(replica)) for rung, replica in own.items()}


class CarriedLatents(Exchange):
    r"""Swap move in which weights keep their latents, and replicas swap temperatures.

    A configuration is :math:`x = (w, \theta)`, with its energy under its own latents:

    .. math:: \ell = \Bigl(\frac1{T_i} - \frac1{T_j}\Bigr)\,\bigl(U(w_i; \theta_i) - U(w_j; \theta_j)\bigr).

    Law: the weights of the configuration at a rung follow :math:`\exp(-U(w; \theta)/T)` with the latents that they
    carry. Latents that adapt by SA average over the temperatures that their configuration visits. A momentum is
    rescaled by :math:`\sqrt{T_{new}/T_{old}}`, which keeps its law and, over the pair, the volume.
    """

    @property
    def positions(self) -> list[int]:
        """Replica that the journal has at each rung."""
        return self.journal.walkers

    def terms(self, lows: list[int], loss: Loss) -> dict[int, Tensor]:
        """Return the energies times the differences of the inverse temperatures."""
        partners = {low: low + 1 for low in lows} | {low + 1: low for low in lows}
        return {
            rung: (1.0 / self.temperatures[rung] - 1.0 / self.temperatures[partners[rung]]) * energy
            for rung, energy in self._energies(lows, loss).items()
        }

    def swap(self, lows: list[int]) -> None:
        """Set the new temperatures of the samplers."""
        moved = {self.positions[rung]: rung for low in lows for rung in (low, low + 1)}
        for replica, sampler in self.replicas.own.items():
            if replica in moved:
                sampler.retemper(self.temperatures[moved[replica]])


class FrozenLatents(Exchange):
    r"""Swap move in which latents stay at their rung, and replicas swap weights.

    Each rung compares its own weights with those of its partner under its own latents:

    .. math::
        \ell = \frac{U(w_i; \theta_i) - U(w_j; \theta_i)}{T_i} + \frac{U(w_j; \theta_j) - U(w_i; \theta_j)}{T_j}.

    Law: the weights of rung i follow :math:`\exp(-U(w; \theta_i)/T_i)`, so SA finds the fixed point of its temperature.
    Momenta stay at their rung, since they are independent of the weights. An attempt costs a second evaluation and,
    between processes, sending all weights.
    """

    @property
    def positions(self) -> list[int]:
        """Replica at each rung, which stays the same."""
        return list(range(len(self.temperatures)))

    def terms(self, lows: list[int], loss: Loss) -> dict[int, Tensor]:
        """Return the difference of the energies of own and partner's weights, over the temperature."""
        before = self._energies(lows, loss)
        self.replicas.exchange_weights(lows)
        try:
            after = self._energies(lows, loss)
        finally:
            self.replicas.exchange_weights(lows)
        return {rung: (before[rung] - after[rung]) / self.temperatures[rung] for rung in before}

    def swap(self, lows: list[int]) -> None:
        """Swap the weights."""
        self.replicas.exchange_weights(lows)


EXCHANGES: dict[str, type[Exchange]] = {"carried": CarriedLatents, "frozen": FrozenLatents}


class ReplicaExchange:
    """Ladder of temperatures over several samplers, all in this process or one per chain of ``ranks``.

    >>> import spikeslab as ss
    >>> models = [torch.nn.Linear(2, 1) for _ in range(3)]
    >>> samplers = [ss.SGLD(m.parameters(), lr=0.1, num_data=50, seed=i) for i, m in enumerate(models)]
    >>> exchange = ReplicaExchange(samplers, [1.0, 2.0, 4.0], seed=0)
    >>> exchange.step(lambda replica: models[replica](torch.ones(50, 2)).square().mean())
    True
    >>> exchange.statistics().attempts
    (1, 0)

    Args:
        samplers: One sampler per rung, of equal models; with ``ranks`` the one sampler of this process. The ladder sets
            their temperatures.
        temperatures: Rising temperatures of the rungs; the lowest is the one of interest, usually 1.
        seed: Seed of the acceptance decisions, the same on all processes: not ``ranks.seed``.
        every: Number of :meth:`step` calls per attempt.
        latents: ``"carried"`` by the weights (:class:`CarriedLatents`) or ``"frozen"`` at the rung
            (:class:`FrozenLatents`).
        omega: Step size of the stochastic approximation of the variance, as a function of a pair's attempts.
        ranks: If given, each of their chains is a rung.
    """

    def __init__(
        self,
        samplers: Sequence[Sampler],
        temperatures: Sequence[float],
        *,
        seed: int,
        every: int = 1,
        latents: str = "carried",
        omega: ScheduleLike | None = None,
        ranks: Ranks | None = None,
    ) -> None:
        self.temperatures = _check_ladder(temperatures)
        self.seed = check_count("seed", seed, minimum=0, bits=64)
        self.every = check_count("every", every)
        self.latents = check_choice("latents", latents, tuple(EXCHANGES))
        self.calls = 0
        self._omega = polynomial(1.0, power=0.75) if omega is None else omega
        self._journal = Journal(len(self.temperatures))
        settings = (self.temperatures, self.seed, self.every, self.latents)
        self._replicas = Replicas(samplers) if ranks is None else RankReplicas(samplers, ranks, settings)
        if self._replicas.count != len(self.temperatures):
            expectation = f"must be one for each of {self._replicas.count} replicas"
            raise ArgumentValueError("temperatures", expectation, len(self.temperatures))
        for replica, sampler in self._replicas.own.items():
            sampler.retemper(self.temperatures[replica])
        self._exchange = EXCHANGES[self.latents](self._replicas, self._journal, self.temperatures)

    def rung(self, replica: int) -> int:
        """Return the present rung of a replica (position of the sampler, or chain); 0 is the lowest temperature."""
        return self._exchange.positions.index(replica)

    def replica(self, rung: int) -> int:
        """Return the replica that is now at a rung; collect the samples of ``replica(0)``."""
        return self._exchange.positions[rung]

    @torch.no_grad()
    def step(self, loss: Loss) -> bool:
        """Attempt swaps on every ``every``-th call; all processes must call it.

        Args:
            loss: Function from the index of a replica to the mean loss of its model at its present weights: one number
                over **all** data, or m >= 2 numbers of mini-batches drawn independently of the samplers' own, from
                which the noise is estimated. Use the same mini-batches for all replicas, so that the noise of the
                differences is small, and new ones for every attempt. Ranks that share a chain each return the losses
                of their own shards, of equal size.

        Returns:
            True if swaps were attempted.

        Raises:
            NonFiniteError: If a loss is not finite.
        """
        due = (self.calls + 1) % self.every == 0
        if due:
            self._attempt(loss)
        self.calls += 1
        return due

    def _attempt(self, loss: Loss) -> None:
        self._check_temperatures()
        lows = pairs(self._journal.attempt, len(self.temperatures))
        terms = self._replicas.gather(self._exchange.terms(lows, loss))
        for rung, term in sorted(terms.items()):
            if not bool(term.isfinite().all()):
                raise NonFiniteError(
                    f"the loss of replica {self.replica(rung)} must be finite, but got NaN or Inf at the temperature "
                    f"{self.temperatures[rung]:g}: try a lower lr or a lower highest temperature."
                )
        self._exchange.swap([low for low in lows if self._decide(low, terms[low] + terms[low + 1])])
        self._journal.attempt += 1

    def _decide(self, low: int, log_ratios: Tensor) -> bool:
        journal = self._journal
        estimate, variance = mean_and_variance(log_ratios)
        omega = min(max(float(self._omega(journal.attempts[low] + 1)), 0.0), 1.0)
        journal.variances[low] += omega * (variance - journal.variances[low])
        u = uniform(self.seed, journal.attempt, low)
        accepted = math.log(u) < log_acceptance(estimate, journal.variances[low])
        journal.record(low, accepted)
        return accepted

    def _check_temperatures(self) -> None:
        for replica, sampler in self._replicas.own.items():
            expected = self.temperatures[self.rung(replica)]
            got = {group["temperature"] for group in sampler.param_groups}
            if got != {expected}:
                raise StateError(
                    f"the temperature of replica {replica} must be that of its rung, {expected}, but got "
                    f"{sorted(got)}: load the states of sampler and exchange together, and change neither."
                )

    def statistics(self) -> SwapStatistics:
        """Return the swap rates of the pairs, the noise in their energies and the round trips."""
        return self._journal.statistics(self.temperatures)

    def state_dict(self) -> dict[str, Any]:
        """Return the state of the ladder; save the samplers' states with it."""
        return {
            "temperatures": list(self.temperatures),
            "latents": self.latents,
            "seed": self.seed,
            "calls": self.calls,
            "journal": self._journal.state_dict(),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Load a state; one of another ladder raises ``ValueError`` and changes nothing."""
        for name, own in (("temperatures", list(self.temperatures)), ("latents", self.latents)):
            if state[name] != own:
                raise ArgumentValueError("state_dict", f"must be of a ladder with {name} {own!r}", state[name])
        self.seed = int(state["seed"])
        self.calls = int(state["calls"])
        self._journal.load_state_dict(state["journal"])


def _check_ladder(temperatures: Sequence[float]) -> tuple[float, ...]:
    ladder = tuple(check_number("temperatures", temperature, "> 0") for temperature in temperatures)
    if len(ladder) < 2 or any(low >= high for low, high in pairwise(ladder)):
        raise ArgumentValueError("temperatures", "must be at least two rising numbers", list(ladder))
    return ladder
