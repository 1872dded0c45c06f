"""The rule of a swap: detailed balance under noise, the alternation of pairs, and the decisions' randomness."""

from __future__ import annotations

import math
from itertools import pairwise

import numpy as np
import pytest
import torch
from scipy import integrate, stats

from spikeslab.parallel.swaps import (
    Journal,
    log_acceptance,
    mean_and_variance,
    pairs,
    temperature_ladder,
    uniform,
)


def mean_acceptance(log_ratio: float, variance: float) -> float:
    """Acceptance averaged over normal noise, by quadrature on both sides of the kink."""
    law = stats.norm(log_ratio, math.sqrt(variance))
    kink, far = 0.5 * variance, 40.0 * math.sqrt(variance)

    def density(z: float) -> float:
        return law.pdf(z) * math.exp(log_acceptance(z, variance))

    ends = sorted({log_ratio - far, kink, log_ratio, log_ratio + far})
    return sum(integrate.quad(density, a, b, epsabs=1e-13, limit=200)[0] for a, b in pairwise(ends))


@pytest.mark.parametrize("variance", [0.01, 1.0, 9.0])
@pytest.mark.parametrize("log_ratio", [0.3, 2.0, 5.0])
def test_noise_keeps_detailed_balance_exactly(log_ratio: float, variance: float) -> None:
    forth, back = mean_acceptance(log_ratio, variance), mean_acceptance(-log_ratio, variance)
    assert forth == pytest.approx(math.exp(log_ratio) * back, rel=1e-7)
    root = math.sqrt(variance)
    formula = stats.norm.cdf((log_ratio - variance / 2) / root) + math.exp(log_ratio) * stats.norm.cdf(
        (-log_ratio - variance / 2) / root
    )
    assert forth == pytest.approx(formula, rel=1e-7)


def test_even_and_odd_pairs_take_turns() -> None:
    assert [pairs(attempt, 6) for attempt in range(3)] == [[0, 2, 4], [1, 3], [0, 2, 4]]
    assert [pairs(attempt, 3) for attempt in range(2)] == [[0], [1]]
    assert [pairs(attempt, 2) for attempt in range(3)] == [[0], [0], [0]]


def test_the_decisions_are_uniform_and_independent_over_attempts_pairs_and_seeds() -> None:
    numbers = np.array([[[uniform(s, a, p) for p in range(4)] for a in range(4000)] for s in (0, 1)])
    assert 0.0 < numbers.min() < numbers.max() < 1.0
    assert stats.kstest(numbers.ravel(), "uniform").pvalue > 1e-3
    columns = np.concatenate([numbers[0].T, numbers[1].T])
    correlations = np.corrcoef(columns) - np.eye(8)
    assert np.abs(correlations).max() < 5 / math.sqrt(4000)
    lagged = np.corrcoef(numbers[0, 1:, 0], numbers[0, :-1, 0])[0, 1]
    assert abs(lagged) < 5 / math.sqrt(4000)


def test_the_variance_is_that_of_the_mean() -> None:
    values = torch.tensor([1.0, 3.0, 5.0, 7.0], dtype=torch.float64)
    assert mean_and_variance(values) == (4.0, pytest.approx(20 / 3 / 4))
    assert mean_and_variance(values[:1]) == (1.0, 0.0)


def test_a_round_trip_begins_and_ends_at_the_lowest_rung() -> None:
    journal = Journal(3)
    journal.record(1, True)  # 0 2 1: the walker that began at the top goes down, which is half a trip
    journal.record(0, True)  # 2 0 1
    assert journal.walkers == [2, 0, 1]
    assert journal.round_trips == 0
    journal.record(1, True)  # 2 1 0: walker 0 has reached the top
    journal.record(0, True)  # 1 2 0
    journal.record(1, False)
    journal.record(1, True)  # 1 0 2
    assert journal.round_trips == 0
    journal.record(0, True)  # 0 1 2: and is back
    assert journal.round_trips == 1
    report = journal.statistics([1.0, 2.0, 4.0])
    assert report.attempts == (3, 4)
    assert report.accepted == (3, 3)
    assert report.rates == (1.0, 0.75)


def test_the_journal_is_saved_and_loaded_whole() -> None:
    journal, other = Journal(3), Journal(3)
    for pair, accepted in [(1, True), (0, True), (1, True), (0, False)]:
        journal.record(pair, accepted)
    journal.attempt, journal.variances[1] = 4, 0.5
    other.load_state_dict(journal.state_dict())
    assert vars(other) == vars(journal)
    other.record(0, True)
    assert other.walkers != journal.walkers, "a loaded state must not share its lists"


def test_a_rate_without_attempts_is_unknown() -> None:
    assert math.isnan(Journal(2).statistics([1.0, 2.0]).rates[0])


def test_the_ladder_rises_by_a_constant_ratio() -> None:
    ladder = temperature_ladder(0.5, 40.0, rungs=5)
    assert ladder[0] == 0.5
    assert ladder[-1] == pytest.approx(40.0, rel=1e-15)
    assert np.allclose(np.diff(np.log(ladder)), math.log(80) / 4)
    with pytest.raises(ValueError, match=r"^high must be a number > 1\.0, but got 0\.5\.$"):
        temperature_ladder(1.0, 0.5, rungs=3)
