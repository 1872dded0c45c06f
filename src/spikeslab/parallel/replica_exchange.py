r"""Replica exchange (parallel tempering): hot replicas find the modes, cold ones describe them.

Between steps of the samplers, neighbouring rungs of a ladder of temperatures try to exchange their configurations.
:mod:`spikeslab.parallel.swaps` has the rule, for energies from mini-batches too, and
:mod:`spikeslab.parallel.exchanges` what changes places and which law that keeps.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor

from spikeslab.errors import NonFiniteError, check_choice, check_count, check_number
from spikeslab.parallel.distributed import Ranks
from spikeslab.parallel.exchanges import EXCHANGES, Loss
from spikeslab.parallel.replicas import LocalReplicas, RankReplicas, Replicas
from spikeslab.parallel.swaps import Journal, SwapReport, log_acceptance, mean_and_variance, pairs, uniform
from spikeslab.samplers.base import Sampler
from spikeslab.schedules import ScheduleLike, polynomial


class ReplicaExchange:
    """A ladder of temperatures over several samplers, in this process or in one process each.

    >>> import spikeslab as ss
    >>> models = [torch.nn.Linear(2, 1) for _ in range(3)]
    >>> samplers = [ss.SGLD(m.parameters(), lr=0.1, num_data=50, seed=i) for i, m in enumerate(models)]
    >>> exchange = ReplicaExchange(samplers, [1.0, 2.0, 4.0], seed=0)
    >>> exchange.step(lambda replica: models[replica](torch.ones(50, 2)).square().mean())
    True
    >>> exchange.report().attempts
    (1, 0)

    Args:
        samplers: One sampler for each rung, of equal models; with ``ranks`` the one sampler of this process. Their
            temperature is set by the ladder.
        temperatures: Temperatures of the rungs, rising from the one that is wanted, usually 1.
        seed: Seed of the decisions, the same on all processes: not ``ranks.seed``.
        every: Calls of :meth:`step` between two attempts.
        latents: ``"carried"`` by the weights, or ``"frozen"`` at the rung: see
            :class:`~spikeslab.parallel.exchanges.CarriedLatents` and
            :class:`~spikeslab.parallel.exchanges.FrozenLatents`.
        omega: Step size of the stochastic approximation of the variance, of a pair's count of attempts.
        ranks: Where given, every chain of them is a rung.
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
        self.seed = check_count("seed", seed, minimum=0)
        self.every = check_count("every", every)
        self.latents = check_choice("latents", latents, tuple(EXCHANGES))
        self.calls = 0
        self._omega = polynomial(1.0, power=0.75) if omega is None else omega
        self._journal = Journal(len(self.temperatures))
        settings = (self.temperatures, self.seed, self.every, self.latents)
        self._replicas: Replicas = LocalReplicas(samplers) if ranks is None else RankReplicas(samplers, ranks, settings)
        if self._replicas.count != len(self.temperatures):
            raise ValueError(
                f"temperatures must be one for each of {self._replicas.count} replicas, "
                f"but got {len(self.temperatures)}."
            )
        for replica, sampler in self._replicas.own.items():
            sampler.retemper(self.temperatures[replica])
        self._exchange = EXCHANGES[self.latents](self._replicas, self._journal, self.temperatures)

    def rung(self, replica: int) -> int:
        """The rung of a replica, a sampler's position or a process's chain, now; 0 is the lowest temperature."""
        return self._exchange.rung(replica)

    def replica(self, rung: int) -> int:
        """The replica at a rung now: collect the samples of ``replica(0)``."""
        return self._exchange.replica(rung)

    @torch.no_grad()
    def step(self, loss: Loss) -> bool:
        """Count a call, and try to swap if the turn has come; all processes must call it.

        Args:
            loss: From the number of a replica to the mean loss of its model at its present weights: one number for the
                loss of **all** data, or m >= 2 numbers of mini-batches drawn independently of the samplers' own,
                from which the noise is learnt. Take the same mini-batches for all replicas, which makes the
                difference of two far less noisy, and new ones for every attempt. Ranks that share a chain each give
                the losses of their own shards, of equal size.

        Returns:
            Whether swaps were attempted.

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
                raise RuntimeError(
                    f"the temperature of replica {replica} must be that of its rung, {expected}, but got "
                    f"{sorted(got)}: load the states of sampler and exchange together, and change neither."
                )

    def report(self) -> SwapReport:
        """Swap rates of the pairs, the noise in their energies and round trips."""
        return self._journal.report(self.temperatures)

    def state_dict(self) -> dict[str, Any]:
        """Who is where, the learnt variances, the counts and the seed; save the samplers' states with it."""
        return {
            "temperatures": list(self.temperatures),
            "latents": self.latents,
            "seed": self.seed,
            "calls": self.calls,
            "journal": self._journal.state_dict(),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue exactly; a state of another ladder is refused and changes nothing."""
        for name, own in (("temperatures", list(self.temperatures)), ("latents", self.latents)):
            if state[name] != own:
                raise ValueError(f"state_dict must be of a ladder with {name} {own!r}, but got {state[name]!r}.")
        self.seed = int(state["seed"])
        self.calls = int(state["calls"])
        self._journal.load_state_dict(state["journal"])


def _check_ladder(temperatures: Sequence[float]) -> tuple[float, ...]:
    ladder = tuple(check_number("temperatures", temperature, "> 0") for temperature in temperatures)
    if len(ladder) < 2 or any(low >= high for low, high in pairwise(ladder)):
        raise ValueError(f"temperatures must be at least two rising numbers, but got {list(ladder)}.")
    return ladder
