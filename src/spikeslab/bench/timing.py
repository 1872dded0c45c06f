"""Candidates that take turns in one process, and the ratios of their times.

A machine that is busy, hot or throttled slows all of them, so a ratio survives where a time does not. Two ratios are
kept. That of the least times is the cost without disturbance: noise on a machine only ever adds. The median of the
ratios of each round, in which all have a turn, is the cost as it is met; where both agree, both can be trusted.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from statistics import median
from typing import TYPE_CHECKING, TypeAlias

import torch

from spikeslab.errors import pluralize
from spikeslab.report.tables import Table

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Candidates: TypeAlias = Mapping[str, Callable[[], object]]

HOW = "One process, candidates in turns."
MISSING = "not installed"
UNFUSED = "numba was not installed where this ran: our updates are those of torch's list operations."


@dataclass(frozen=True)
class Plan:
    """How to measure.

    Attributes:
        repeats: Rounds, in each of which every candidate has a turn.
        threads: Threads of torch.
        seed: Seed of data, weights and noise.
        quick: Whether to take small sizes, to see that a suite runs.
        tick: Called after every round.
    """

    repeats: int
    threads: int = 1
    seed: int = 0
    quick: bool = False
    tick: Callable[[], None] = field(default=lambda: None, compare=False)

    @property
    def words(self) -> str:
        """How it was measured, for a title."""
        return pluralize(self.threads, "thread") + (", a quick look" if self.quick else "")


@dataclass(frozen=True)
class Findings:
    """Tables by the name of their file, and a figure where there is one."""

    tables: dict[str, Table]
    figure: Figure | None = None


@dataclass(frozen=True)
class Times:
    """Seconds of a call in each round, for each candidate."""

    seconds: dict[str, list[float]]

    def least(self, name: str) -> float:
        """Least time of a call."""
        return min(self.seconds[name])

    def microseconds(self) -> dict[str, float]:
        """Least times of all, for the raw numbers: they say more about the machine than about the candidates."""
        return {name: round(1e6 * self.least(name), 3) for name in self.seconds}

    def ratio(self, name: str, base: str) -> float:
        """Least time in units of the least of ``base``."""
        return self.least(name) / self.least(base)

    def median_ratio(self, name: str, base: str) -> float:
        """Median over rounds of the time in units of that of ``base`` in the same round.

        >>> Times({"sgd": [1.0, 2.0, 4.0], "ours": [2.0, 2.0, 6.0]}).median_ratio("ours", "sgd")
        1.5
        """
        pairs = zip(self.seconds[name], self.seconds[base], strict=True)
        return median(own / other for own, other in pairs)


def measure(candidates: Candidates, plan: Plan, seconds: float) -> Times:
    """Let all candidates take turns of about ``seconds``; each round begins with another one.

    A turn of many calls begins with one that does not count: it finds the caches full of what the others left there,
    and would weigh most on those that have the fewest calls.
    """
    calls = {name: _calls(run, seconds) for name, run in candidates.items()}
    names = list(candidates)
    taken: dict[str, list[float]] = {name: [] for name in names}
    for turn in range(plan.repeats):
        first = turn % max(1, len(names))
        for name in names[first:] + names[:first]:
            if calls[name] > 1:
                candidates[name]()
            taken[name].append(_clocked(candidates[name], calls[name]))
        plan.tick()
    return Times(taken)


def _calls(run: Callable[[], object], seconds: float) -> int:
    """How many calls fill a turn; the first call, which may compile, does not count."""
    run()
    least = min(_clocked(run, 1) for _ in range(3)) if seconds else 1.0
    return max(1, round(seconds / max(least, 1e-7)))


def _clocked(run: Callable[[], object], calls: int) -> float:
    begin = time.perf_counter()
    for _ in range(calls):
        run()
    return (time.perf_counter() - begin) / calls


def use_threads(threads: int) -> None:
    """Let torch use so many threads."""
    if torch.get_num_threads() != threads:
        torch.set_num_threads(threads)
