"""Cost of the kernels of variable selection against the numbers of variables and of classes."""

from __future__ import annotations

import time

import numpy as np
from matplotlib.figure import Figure

from spikeslab.bench.calibration import gram_data, standardise
from spikeslab.bench.suites import BenchPlan, Findings
from spikeslab.bench.timing import log_slope
from spikeslab.report.figures import BLUE, GREEN, GREY, ORANGE, VERMILION, WIDTH, new_figure
from spikeslab.report.tables import Column, Table
from spikeslab.sklearn import SGLDOptions
from spikeslab.sklearn._chains import Chain
from spikeslab.sklearn._gibbs_linear import ColumnChain, GramChain
from spikeslab.sklearn._gibbs_logistic import LogisticChain
from spikeslab.sklearn._gibbs_multinomial import MultinomialChain
from spikeslab.sklearn._sgld import SGLDChain
from spikeslab.sklearn._sweep import PointMassPrior

SIZES = (100, 300, 1000, 3000, 10_000, 30_000, 100_000)
MOST_GRAM = 3000  # columns for which X'X is formed


def _cost(chain: Chain, budget: float, repeats: int) -> float:
    """Return the least processor time per step, in microseconds, over ``repeats`` turns of about ``budget`` seconds."""
    chain.advance(1)
    best, steps = float("inf"), 1
    for _ in range(repeats):
        begin, start = time.process_time(), chain.done
        while chain.done - start < steps:
            chain.advance(steps - (chain.done - start))
        elapsed = (time.process_time() - begin) / (chain.done - start)
        best = min(best, elapsed)
        steps = max(1, min(2000, int(budget / elapsed)))
    return 1e6 * best


def _wide_chains(p: int, n: int = 100) -> dict[str, Chain]:
    """Return the chains for n rows of p independent columns, one of which is real."""
    rng = np.random.default_rng(0)
    x = standardise(rng.standard_normal((n, p)))
    y = 2.0 * x[:, 0] + rng.standard_normal(n)
    y -= y.mean()
    prior = PointMassPrior(a=1.0, b=float(p), slab_df=3.0, slab_scale=0.4, noise_scale=0.5)
    settings = SGLDOptions(step=(1e-6, 0.0, 1 / 3))
    columns = np.ascontiguousarray(x.T)

    def sgld(kind: type) -> SGLDChain:
        rng = np.random.default_rng(1)
        return SGLDChain(x.astype(kind), y.astype(kind), 0, "sgld-sa", settings, 10**9, 10**9, rng)

    chains: dict[str, Chain] = {
        "SGLD-SA step, float32": sgld(np.float32),
        "SGLD-SA step, float64": sgld(np.float64),
        "linear sweep, from X": ColumnChain(columns, y, prior, 10**9, np.random.default_rng(1)),
        "logistic sweep": LogisticChain(columns, (y > 0).astype(float), prior, 10**9, np.random.default_rng(1)),
    }
    if p <= MOST_GRAM:
        chains["linear sweep, from X'X"] = GramChain(gram_data(x, y), prior, 10**9, np.random.default_rng(1))
    return chains


COLOURS = {
    "SGLD-SA step, float32": ORANGE,
    "SGLD-SA step, float64": VERMILION,
    "linear sweep, from X'X": GREY,
    "linear sweep, from X": BLUE,
    "logistic sweep": GREEN,
}


def run_variables(plan: BenchPlan) -> Findings:
    """Time a step and a sweep against the number of variables, with the slopes of their logarithms."""
    sizes = SIZES[:5] if plan.quick else SIZES
    found: dict[str, dict[int, float]] = {name: {} for name in COLOURS}
    for p in sizes:
        for name, chain in _wide_chains(p).items():
            found[name][p] = _cost(chain, 0.1, plan.repeats)
        plan.tick(plan.repeats)
    if plan.quick:
        plan.tick(plan.repeats * (len(SIZES) - len(sizes)))
    rows = [
        {"what": name, **{str(p): times.get(p) for p in sizes}, "slope": _slope(times)} for name, times in found.items()
    ]
    columns = [
        Column("what", "µs per"),
        *(Column(str(p), f"p = {p:,}", ",.0f") for p in sizes),
        Column("slope", "slope", ".2f"),
    ]
    notes = [
        "100 rows, batches of 50; least processor time of repeated turns on one core. The slope is that of log time "
        "against log p from p = 1,000 on (from 100 on where X'X is formed): 1 is linear. A step reads half of X, which "
        "leaves the caches on the way: 0.8 MB at p = 1,000 and 80 MB at p = 100,000 in float64. A linear sweep of more "
        "than 256 variables visits those often included and 3 % of the others."
    ]
    table = Table("Cost against the number of variables", columns, rows, notes)
    return Findings({"scaling": table}, {"scaling": _figure(found)})


def _slope(times: dict[int, float]) -> float:
    """Return the least-squares slope of log time against log p, without the sizes where overhead counts."""
    return log_slope({p: time for p, time in times.items() if p >= 1000 or max(times) <= MOST_GRAM})


def _figure(found: dict[str, dict[int, float]]) -> Figure:
    with new_figure(3.8, width=0.75 * WIDTH) as figure:
        axes = figure.add_subplot()
        for name, times in found.items():
            label = f"{name}, slope {_slope(times):.2f}"
            axes.loglog(list(times), list(times.values()), "o-", color=COLOURS[name], markersize=4, label=label)
        axes.set(xlabel="number of variables, p", ylabel="µs", title="Time of a step and of a sweep, n = 100")
        axes.set_xticks([100, 1000, 10_000, 100_000], ["100", "1,000", "10,000", "100,000"])
        axes.minorticks_off()
        axes.legend(loc="upper left")
    return figure


def run_classes(plan: BenchPlan) -> Findings:
    """Time a sweep of the logistic and the multinomial sampler against the number of classes."""
    n, p = 500, 100
    rows = []
    for count in (2, 3, 4, 6, 8, 10):
        rng = np.random.default_rng(0)
        x = standardise(rng.standard_normal((n, p)))
        psi = np.zeros((n, count))
        psi[:, : min(count, 5)] = 1.5 * x[:, : min(count, 5)]
        labels = (psi + rng.gumbel(size=psi.shape)).argmax(axis=1)
        columns, prior = np.ascontiguousarray(x.T), PointMassPrior(1.0, float(p * count), 3.0, 1.0)
        chain: Chain
        if count == 2:
            chain = LogisticChain(columns, labels.astype(float), prior, 10**9, rng)
        else:
            chain = MultinomialChain(columns, labels, count, prior, 10**9, rng)
        for _ in range(50):
            chain.advance(1)
        microseconds = _cost(chain, 0.2, plan.repeats)
        vectors = 1 if count == 2 else count
        rows.append({"classes": count, "ms": microseconds / 1e3, "each": microseconds / 1e3 / vectors})
        plan.tick(plan.repeats)
    columns_ = [Column("classes", "classes"), Column("ms", "ms per sweep", ".2f"), Column("each", "per vector", ".2f")]
    note = f"n = {n}, p = {p}; least processor time of repeated turns on one core. Two classes have one vector."
    return Findings({"classes": Table("A Gibbs sweep against the number of classes", columns_, rows, [note])})
