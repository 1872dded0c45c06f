"""Timing of candidates that take turns in one process, and the ratios of their times.

A busy or throttled machine slows all candidates alike, so a ratio is stable where a time is not. Two ratios are kept:
that of the least times, which is the cost without disturbance, since noise only ever adds time; and the median over
rounds, in each of which every candidate has a turn, which is the cost met in practice. Trust a number where both agree.
"""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from importlib.util import find_spec
from statistics import median
from typing import Any, TypeAlias

import numpy as np
import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from spikeslab.bench.suites import BenchPlan
from spikeslab.report.tables import Cell, Column, Table

Candidates: TypeAlias = Mapping[str, Callable[[], object]]

HOW = "One process, candidates in turns."
CONTROL = "The control is the first row again: its distance from 1 is the error of the others."
MISSING = "not installed"
UNFUSED = "numba was not installed where this ran: our updates are those of torch's list operations."


@dataclass(frozen=True)
class Times:
    """Seconds of a call in each round, for each candidate."""

    seconds: dict[str, list[float]]

    def least(self, name: str) -> float:
        """Return the least time of a call in seconds."""
        return min(self.seconds[name])

    def microseconds(self) -> dict[str, float]:
        """Return the least times by name in microseconds, for the raw numbers."""
        return {name: round(1e6 * self.least(name), 3) for name in self.seconds}

    def ratio(self, name: str, base: str) -> float:
        """Return the least time in units of the least time of ``base``."""
        return self.least(name) / self.least(base)

    def median_ratio(self, name: str, base: str) -> float:
        """Return the median over rounds of the time in units of that of ``base`` in the same round.

        >>> Times({"sgd": [1.0, 2.0, 4.0], "ours": [2.0, 2.0, 6.0]}).median_ratio("ours", "sgd")
        1.5
        """
        pairs = zip(self.seconds[name], self.seconds[base], strict=True)
        return median(own / other for own, other in pairs)


def measure(candidates: Candidates, plan: BenchPlan, seconds: float) -> Times:
    """Time all candidates in turns of about ``seconds``; each round begins with another candidate.

    In a turn of many calls the first is not counted: it pays for the caches that the other candidates left behind.
    """
    calls = {name: _count_calls(run, seconds) for name, run in candidates.items()}
    names = list(candidates)
    taken: dict[str, list[float]] = {name: [] for name in names}
    for turn in range(plan.repeats):
        first = turn % max(1, len(names))
        for name in names[first:] + names[:first]:
            if calls[name] > 1:
                candidates[name]()
            taken[name].append(_time_calls(candidates[name], calls[name]))
        plan.tick(1)
    return Times(taken)


def training_step(
    model: nn.Module, optimizer: Optimizer, loss: Callable[..., Tensor], x: Tensor, y: Tensor
) -> Callable[[], None]:
    """Return a function that takes one step on the same batch: forward, backward and update."""

    def step() -> None:
        optimizer.zero_grad()
        loss(model(x), y).backward()
        optimizer.step()

    return step


def _count_calls(run: Callable[[], object], seconds: float) -> int:
    """Return the number of calls that fill a turn; the first call, which may compile, is not counted."""
    run()
    least = min(_time_calls(run, 1) for _ in range(3)) if seconds else 1.0
    return max(1, round(seconds / max(least, 1e-7)))


def _time_calls(run: Callable[[], object], calls: int) -> float:
    begin = time.perf_counter()
    for _ in range(calls):
        run()
    return (time.perf_counter() - begin) / calls


def log_slope(times: Mapping[int, float]) -> float:
    """Return the least-squares slope of log time against log size; 1 is linear.

    >>> round(log_slope({10: 5.0, 100: 50.0, 1000: 500.0}), 6)
    1.0
    """
    return float(np.polyfit(np.log(list(times)), np.log(list(times.values())), 1)[0])


def ratio_note(plan: BenchPlan) -> str:
    """Describe the columns of :func:`ratio_table`."""
    return f"{HOW} Ratio: of the least times of {plan.repeats} rounds; median: of the ratios of each round."


def ratio_table(
    title: str,
    times: Times,
    base: str,
    note: str,
    more: Mapping[Column, Callable[[str], Cell]] | None = None,
    *,
    spec: str = ".3f",
) -> Table:
    """Return the ratio and the median ratio of each candidate, and ``more`` columns."""
    columns: dict[Column, Callable[[str], Cell]] = {
        Column("what", ""): str,
        Column("ratio", "ratio", spec): partial(times.ratio, base=base),
        Column("median", "median", spec): partial(times.median_ratio, base=base),
    }
    raw = {"microseconds": times.microseconds()}
    return Table.build(title, times.seconds, columns | dict(more or {}), [note], raw)


def use_threads(threads: int) -> None:
    """Set the number of torch's threads where it differs."""
    if torch.get_num_threads() != threads:
        torch.set_num_threads(threads)


def is_installed(package: str) -> bool:
    """Return True if ``package`` can be imported.

    >>> is_installed("torch"), is_installed("a_package_that_nobody_wrote")
    (True, False)
    """
    return find_spec(package) is not None


def load(package: str) -> Any:
    """Import a peer's package without the warnings that it gives."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return import_module(package)
