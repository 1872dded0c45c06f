"""False reassurance: inclusion probabilities of fits that call themselves converged, against runs ten times as long."""

from __future__ import annotations

import itertools
import time
import warnings
from collections.abc import Callable

import numpy as np
from numpy.random import Generator
from numpy.typing import NDArray
from scipy.special import expit
from sklearn.exceptions import ConvergenceWarning

from spikeslab.bench.calibration import CHECKPOINT, draw_correlated_rows
from spikeslab.bench.selection_ess import simulate_blocks, simulate_chain
from spikeslab.bench.suites import BenchPlan, Findings
from spikeslab.paper.grid import Cell, CellFile, Record, run_cells
from spikeslab.report.tables import Column, Table
from spikeslab.sklearn import Estimator, SpikeSlabClassifier, SpikeSlabRegressor

Floats = NDArray[np.float64]

LIMIT = 5.0  # seconds that a fit may take
LONGER = 10  # length of the other run, in units of the fit
LEAST_PIP, FAR = 0.05, 0.08


def simulate_sums(rng: Generator) -> tuple[Floats, Floats]:
    """Draw 10,000 rows of 16 columns, eight of which are sums of two others and a little noise; two sums matter."""
    x = rng.standard_normal((10_000, 16))
    x[:, 8:] = x[:, :8] + np.roll(x[:, :8], 1, axis=1) + 0.03 * x[:, 8:]
    return x, 0.5 * x[:, 0] + 0.5 * x[:, 1] + 0.3 * x[:, 9] + rng.standard_normal(10_000)


def simulate_factors(rng: Generator) -> tuple[Floats, Floats]:
    """Draw 80 rows of 500 columns that share 20 factors, as genes do, and 15 small effects that explain half of y."""
    loadings = rng.standard_normal((20, 500)) * (rng.random((20, 500)) < 0.15)
    x = rng.standard_normal((80, 20)) @ loadings + 0.7 * rng.standard_normal((80, 500))
    signal = x[:, rng.choice(500, 15, replace=False)] @ rng.standard_normal(15)
    return x, signal + signal.std() * rng.standard_normal(80)


def simulate_classes(rng: Generator) -> tuple[Floats, NDArray[np.bool_]]:
    """Draw 150 rows of two classes, with corr(x_i, x_j) = 0.7^|i-j| over 100 columns and four effects."""
    x = draw_correlated_rows(150, 100, 0.7, rng)
    return x, rng.random(150) < expit(x[:, [10, 30, 50, 70]] @ np.array([1.5, -1.0, 0.7, 0.5]))


DESIGNS: dict[str, tuple[str, Callable[[Generator], tuple[Floats, NDArray[np.generic]]]]] = {
    "chain": ("one chain, n = 100, p = 1,000", lambda rng: simulate_chain(1000, rng)),
    "blocks": ("blocks, n = 300, p = 1,000", lambda rng: simulate_blocks(1000, rng)),
    "sums": ("sums of columns, n = 10,000, p = 16", simulate_sums),
    "factors": ("factors, n = 80, p = 500", simulate_factors),
    "classes": ("two classes, n = 150, p = 100", simulate_classes),
}


def compare_with_longer(cell: Cell) -> Record:
    """Return the inclusion probabilities of a default fit and of a run ten times as long, where either is not small."""
    x, y = DESIGNS[cell.method][1](np.random.default_rng([cell.seed, *cell.method.encode()]))
    cls: type[Estimator] = SpikeSlabClassifier if cell.method == "classes" else SpikeSlabRegressor
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        begin = time.perf_counter()
        model = cls(max_time=LIMIT, random_state=cell.seed).fit(x, y)
        seconds = time.perf_counter() - begin
        steps = LONGER * model.n_iter_
        longer = cls(n_iter=steps, burn_in=steps // 2, random_state=cell.seed + 1_000_000).fit(x, y)
    chosen = np.flatnonzero(np.maximum(model.pip_, longer.pip_) >= LEAST_PIP)
    return {
        "converged": model.converged_,
        "seconds": round(seconds, 2),
        "steps": model.n_iter_,
        "rhat": round(model._convergence.largest_rhat, 4),
        "pip": [round(float(value), 4) for value in model.pip_[chosen]],
        "longer": [round(float(value), 4) for value in longer.pip_[chosen]],
    }


def run(plan: BenchPlan) -> Findings:
    """Compare fits with longer runs; finished fits are kept under ``out/selection`` and are not run again."""
    settings: dict[str, str | int] = {"limit": str(LIMIT), "longer": LONGER, "seed": plan.seed}
    file = CellFile.load(CHECKPOINT / f"reassurance{'-quick' if plan.quick else ''}.jsonl", settings)
    names = ["sums"] if plan.quick else [*DESIGNS]
    cells = {name: [Cell(name, plan.seed + seed) for seed in range(plan.repeats)] for name in names}
    everything = list(itertools.chain(*zip(*cells.values(), strict=True)))
    run_cells(file, everything, compare_with_longer, workers=plan.threads, on_done=plan.tick)
    if plan.quick:
        plan.tick((len(DESIGNS) - 1) * plan.repeats)
    found = {DESIGNS[name][0]: [file.records[cell] for cell in own] for name, own in cells.items()}
    found["all"] = list(itertools.chain(*found.values()))
    columns = [
        Column("design", "data"),
        Column("fits", "fits", ",d"),
        Column("seconds", "median s", ".2f"),
        Column("converged", "converged", ",d"),
        Column("probabilities", "their PIPs", ",d"),
        Column("far", f"off by more than {FAR} %", ".2f"),
        Column("largest", "largest difference", ".3f"),
        Column("others", "PIPs of the others", ",d"),
        Column("others_far", f"off by more than {FAR} %", ".2f"),
    ]
    notes = [
        f"PIPs of at least {LEAST_PIP}, in the fit or in another run with {LONGER} times its number of sweeps and a "
        f"seed of its own. A fit has the defaults and max_time={LIMIT:g}; converged is what it says of itself.",
        *(f"{label}: {' '.join((simulate.__doc__ or '').split())}" for label, simulate in _documented()),
    ]
    rows = [{"design": name, **_summarize(records)} for name, records in found.items()]
    return Findings({"reassurance": Table("Inclusion probabilities against longer runs", columns, rows, notes)})


def _documented() -> list[tuple[str, Callable[..., object]]]:
    plain = {"chain": simulate_chain, "blocks": simulate_blocks}
    return [(label, plain.get(name, simulate)) for name, (label, simulate) in DESIGNS.items()]


def _summarize(records: list[Record]) -> dict[str, float | int | None]:
    sure = _differences([record for record in records if record["converged"]])
    unsure = _differences([record for record in records if not record["converged"]])
    return {
        "fits": len(records),
        "seconds": float(np.median([record["seconds"] for record in records])),
        "converged": sum(record["converged"] for record in records),
        "probabilities": sure.size,
        "far": 100.0 * float(np.mean(sure > FAR)) if sure.size else None,
        "largest": float(sure.max()) if sure.size else None,
        "others": unsure.size,
        "others_far": 100.0 * float(np.mean(unsure > FAR)) if unsure.size else None,
    }


def _differences(records: list[Record]) -> Floats:
    pairs = [np.abs(np.subtract(record["pip"], record["longer"])) for record in records]
    return np.concatenate(pairs) if pairs else np.empty(0)
