"""Time of `SpikeSlabRegressor` to a given effective sample size, against scikit-learn's LassoCV."""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable
from functools import partial
from math import ceil
from statistics import median

import numpy as np
from numpy.typing import NDArray
from sklearn.exceptions import ConvergenceWarning
from sklearn.linear_model import LassoCV

from spikeslab.bench.suites import BenchPlan, Findings
from spikeslab.bench.timing import load
from spikeslab.functional.convergence import ess_bulk
from spikeslab.report.tables import Cell, Column, Table
from spikeslab.sklearn import SpikeSlabRegressor

Array = NDArray[np.float64]

LEAST_PIP, KEPT, SHORT, WIDE = 0.05, 1000, 1000, 20_000


def simulate_chain(p: int, rng: np.random.Generator) -> tuple[Array, Array]:
    """Draw 100 rows of the paper's regression: corr(x_i, x_j) = 0.6^|i-j|, effects 3, 2, 1 of the first columns."""
    x = _autoregressive(rng.standard_normal((100, p)), 0.6, p)
    return x, x[:, :3] @ [3.0, 2.0, 1.0] + 3**0.5 * rng.standard_normal(100)


def simulate_blocks(p: int, rng: np.random.Generator) -> tuple[Array, Array]:
    """Draw 300 rows with corr(x_i, x_j) = 0.9^|i-j| in blocks of ten columns, and ten effects that explain half of y.

    The effects are 0.3 to 1 in equal steps, of alternating sign, each in the middle of a block of its own.
    """
    x = _autoregressive(rng.standard_normal((300, p)), 0.9, 10)
    signal = x[:, 5 :: p // 10][:, :10] @ (np.linspace(0.3, 1.0, 10) * (-1.0) ** np.arange(10))
    return x, signal + signal.std() * rng.standard_normal(300)


def _autoregressive(noise: Array, correlation: float, block: int) -> Array:
    for j in range(1, noise.shape[1]):
        if j % block:
            noise[:, j] = correlation * noise[:, j - 1] + (1.0 - correlation**2) ** 0.5 * noise[:, j]
    return noise


DESIGNS: dict[str, Callable[[int, np.random.Generator], tuple[Array, Array]]] = {
    "one chain, n = 100": simulate_chain,
    "blocks, n = 300": simulate_blocks,
}

FIRST_ESS = {
    ("one chain, n = 100", SHORT): 1592.0,
    ("one chain, n = 100", WIDE): 309.0,
    ("blocks, n = 300", SHORT): 657.0,
    ("blocks, n = 300", WIDE): 309.0,
}
"""Least effective sample sizes of the sampler that scanned all variables in every sweep (commit bb121ce), with the same
data and four chains of 1,500 sweeps: medians over the seeds 0 to 6."""


def smallest_ess(model: SpikeSlabRegressor) -> float:
    """Return the smallest bulk effective sample size of the coefficients with a PIP of at least .05."""
    return min(ess_bulk(model._posterior.coef_of(int(j))) for j in np.flatnonzero(model.pip_ >= LEAST_PIP))


def run(plan: BenchPlan) -> Findings:
    """Time a default fit, and a fit that reaches the effective sample size of before, against LassoCV."""
    sizes = (SHORT,) if plan.quick else (SHORT, WIDE)
    rows = []
    with load("threadpoolctl").threadpool_limits(plan.threads), warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        for p in sizes:
            rows += [_compare(name, p, plan) for name in DESIGNS]
    if plan.quick:
        plan.tick(len(DESIGNS) * plan.repeats)
    columns = [
        Column("design", "data"),
        Column("p", "p", ",d"),
        Column("lasso", "LassoCV, s", ".2f"),
        Column("target", "least ESS before", ",.0f"),
        Column("ess", "now", ",.0f"),
        Column("default", "default call", ".2f"),
        Column("draws", "draws for the ESS of before", ",d"),
        Column("reached", "ESS", ",.0f"),
        Column("ratio", "time for it", ".2f"),
    ]
    notes = [
        "Processor time in units of scikit-learn's LassoCV() in the same round, candidates in turns, "
        f"medians of {plan.repeats} rounds with a seed each; compilation is not in them. Four chains; the default call "
        "runs until it has converged, the shorter one discards 500 sweeps and keeps the draws of its column.",
        f"The least ESS is that of the coefficients with an inclusion probability of at least {LEAST_PIP}, now after "
        f"{KEPT:,} draws; that of before is the median of seven seeds of the sampler that scanned all variables in "
        "every sweep.",
        *(f"{name}: {' '.join((simulate.__doc__ or '').split())}" for name, simulate in DESIGNS.items()),
    ]
    title = f"Time of a fit to an effective sample size, {plan.words}"
    return Findings({"ess": Table(title, columns, rows, notes)})


def _compare(name: str, p: int, plan: BenchPlan) -> dict[str, Cell]:
    x, y = DESIGNS[name](p, np.random.default_rng(plan.seed))
    target = FIRST_ESS[name, p]
    SpikeSlabRegressor(n_iter=4, burn_in=4, random_state=0).fit(x, y)  # compiles
    first = median(smallest_ess(_fit(x, y, KEPT, seed)) for seed in range(plan.repeats))
    draws = max(50, ceil(KEPT * target / first))
    turns: dict[str, Callable[[int], object]] = {
        "lasso": lambda _: LassoCV().fit(x, y),
        "default": lambda seed: SpikeSlabRegressor(random_state=seed).fit(x, y),
        "ratio": partial(_fit, x, y, draws),
    }
    seconds: dict[str, list[float]] = {key: [] for key in turns}
    reached = []
    for seed in range(plan.repeats):
        for key, turn in turns.items():
            begin = time.process_time()
            model = turn(seed)
            seconds[key].append(time.process_time() - begin)
        assert isinstance(model, SpikeSlabRegressor)
        reached.append(smallest_ess(model))
        plan.tick(1)
    ratios = {
        key: median(own / lasso for own, lasso in zip(seconds[key], seconds["lasso"], strict=True))
        for key in ("default", "ratio")
    }
    cells: dict[str, Cell] = {"design": name, "p": p, "lasso": median(seconds["lasso"]), "target": target}
    return {**cells, "ess": first, "draws": draws, "reached": median(reached), **ratios}


def _fit(x: Array, y: Array, draws: int, seed: int) -> SpikeSlabRegressor:
    return SpikeSlabRegressor(n_iter=draws, random_state=seed).fit(x, y)
