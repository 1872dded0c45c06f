r"""Swaps of replicas: pairs of rungs, and the Metropolis rule for energies that are only estimated.

Rung r of a ladder :math:`T_0 < T_1 < \dots` samples :math:`\exp(-U(w)/T_r)`, with U the negative log posterior of all N
examples (N times the mean loss and the prior). To exchange the configurations of the rungs i and j multiplies the
density of the ladder by :math:`e^\ell`,

.. math:: \ell = \Bigl(\frac1{T_i} - \frac1{T_j}\Bigr)\,\bigl(U(w_i) - U(w_j)\bigr),

and is accepted with probability :math:`\min(1, e^\ell)`.

From mini-batches we have an estimate :math:`z \sim N(\ell, v)` instead. The rule :math:`\min(1, e^z)` accepts too much,
and the more so the worse the swap: rungs become too warm or too cold. The rule here is

.. math:: a(z) = \min\bigl(1, e^{z - v/2}\bigr), \qquad v = \Bigl(\frac1{T_i} - \frac1{T_j}\Bigr)^2 s^2,

with :math:`s^2` the variance of the estimated difference of the energies. It is exact. The factor
:math:`e^{z - v/2}` turns the density of :math:`N(\ell, v)` into :math:`e^\ell` times that of :math:`N(\ell + v, v)`, so

.. math::
    A(\ell) = E\,a(z) = \Phi\Bigl(\frac{\ell - v/2}{\sqrt v}\Bigr)
        + e^\ell\,\Phi\Bigl(\frac{-\ell - v/2}{\sqrt v}\Bigr),

which satisfies detailed balance, :math:`A(\ell) = e^\ell A(-\ell)`, for every v. Noise costs acceptance (at
:math:`\ell = 0` it is :math:`2\Phi(-\sqrt v/2)`), not the law. That holds for normal noise, fresh at every attempt, of
known variance; here v is estimated by stochastic approximation, so the law is exact in the limit. In the units of Deng
et al., where each of two independent energies has variance :math:`\sigma^2`, so :math:`s^2 = 2\sigma^2`, it is their
correction with F = 1.

References: Deng, Feng, Gao, Liang and Lin, "Non-convex Learning via Replica Exchange Stochastic Gradient MCMC", ICML
2020; Ceperley and Dewing, "The Penalty Method for Random Walks with Uncertain Energies", J. Chem. Phys. 110, 1999;
Okabe, Kawata, Okamoto and Mikami, "Replica-exchange Monte Carlo Method for the Isobaric-isothermal Ensemble", Chem.
Phys. Lett. 335, 2001, and Syed, Bouchard-Côté, Deligiannidis and Doucet, "Non-reversible Parallel Tempering", JRSS B
84, 2022, for the alternation of even and odd pairs.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from spikeslab.errors import check_count, check_number
from spikeslab.kernels.noise import mix64

NOWHERE, UP, DOWN = range(3)


def temperature_ladder(low: float, high: float, rungs: int) -> list[float]:
    """Return temperatures from ``low`` to ``high`` with a constant ratio between neighbours.

    >>> temperature_ladder(1.0, 4.0, rungs=3)
    [1.0, 2.0, 4.0]
    """
    low, rungs = check_number("low", low, "> 0"), check_count("rungs", rungs, minimum=2)
    high = check_number("high", high, f"> {low}")
    return [low * (high / low) ** (rung / (rungs - 1)) for rung in range(rungs)]


def pairs(attempt: int, rungs: int) -> list[int]:
    """Return the lower rungs of the pairs of an attempt: even and odd ones in turn.

    >>> pairs(0, rungs=5), pairs(1, rungs=5), pairs(1, rungs=2)
    ([0, 2], [1, 3], [0])
    """
    return list(range(attempt % min(2, rungs - 1), rungs - 1, 2))


def uniform(seed: int, attempt: int, pair: int) -> float:
    """Return a random number in (0, 1), a pure function of its arguments, so the same on every process."""
    bits = mix64(mix64(mix64(seed) ^ attempt) ^ pair)
    return ((bits >> 12) + 0.5) * 2.0**-52


def log_acceptance(estimate: float, variance: float) -> float:
    """Return the log of the acceptance probability, given the estimate z of the log ratio and its variance v."""
    return min(0.0, estimate - 0.5 * variance)


def mean_and_variance(log_ratios: Tensor) -> tuple[float, float]:
    """Return the mean of the log ratios of m mini-batches and the variance of this mean, 0 if m = 1."""
    if len(log_ratios) == 1:
        return float(log_ratios), 0.0
    return float(log_ratios.mean()), float(log_ratios.var() / len(log_ratios))


@dataclass(frozen=True)
class SwapStatistics:
    """Swap statistics of a ladder.

    Attributes:
        temperatures: Temperatures of the rungs.
        attempts: Attempted swaps of each pair of neighbours.
        accepted: Accepted swaps of each pair.
        noise: Standard deviation of the estimated log ratio of each pair. Above 2 or so it costs most swaps: use more
            examples for the energies.
        round_trips: Number of trips from the lowest rung to the highest and back, over all configurations.
    """

    temperatures: tuple[float, ...]
    attempts: tuple[int, ...]
    accepted: tuple[int, ...]
    noise: tuple[float, ...]
    round_trips: int

    @property
    def rates(self) -> tuple[float, ...]:
        """Share of accepted swaps of each pair; NaN without attempts."""
        return tuple(a / n if n else math.nan for a, n in zip(self.accepted, self.attempts, strict=True))


class Journal:
    """State of a ladder: the configuration at each rung, and counts of swaps."""

    def __init__(self, rungs: int) -> None:
        self.attempt = 0
        self.walkers = list(range(rungs))
        self.attempts = [0] * (rungs - 1)
        self.accepted = [0] * (rungs - 1)
        self.variances = [0.0] * (rungs - 1)
        self.round_trips = 0
        self.headings = [NOWHERE] * rungs
        self._arrive()

    def record(self, pair: int, accepted: bool) -> None:
        """Record an attempt; if accepted, swap the two configurations."""
        self.attempts[pair] += 1
        if accepted:
            self.accepted[pair] += 1
            self.walkers[pair : pair + 2] = reversed(self.walkers[pair : pair + 2])
            self._arrive()

    def _arrive(self) -> None:
        """Turn the headings at both ends around; a round trip begins and ends at the lowest rung."""
        coldest, hottest = self.walkers[0], self.walkers[-1]
        self.round_trips += self.headings[coldest] == DOWN
        self.headings[coldest] = UP
        if self.headings[hottest] == UP:
            self.headings[hottest] = DOWN

    def statistics(self, temperatures: Sequence[float]) -> SwapStatistics:
        """Return the swap statistics."""
        noise = tuple(math.sqrt(variance) for variance in self.variances)
        return SwapStatistics(tuple(temperatures), tuple(self.attempts), tuple(self.accepted), noise, self.round_trips)

    def state_dict(self) -> dict[str, Any]:
        """Return all counts and positions."""
        return {name: list(value) if isinstance(value, list) else value for name, value in vars(self).items()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Load a state."""
        for name, value in self.state_dict().items():
            setattr(self, name, list(state[name]) if isinstance(value, list) else state[name])
