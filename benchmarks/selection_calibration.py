"""Whether the probabilities and intervals of variable selection are what they say."""

from __future__ import annotations

import itertools
import warnings
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.figure import Figure
from scipy.stats import chisquare, kstest
from sklearn.exceptions import ConvergenceWarning

from spikeslab.bench.calibration import (
    CASES,
    correlated_rows,
    draw_truth,
    gram_data,
    sbc_ranks,
)
from spikeslab.paper.cells import Cell, CellFile, Record, run_cells
from spikeslab.report.figures import BLUE, GREY, SKY, VERMILION, WIDTH, remove_y_axis, style
from spikeslab.report.tables import Column, Estimate, Table
from spikeslab.sklearn import SpikeSlabRegressor
from spikeslab.sklearn._gibbs_linear import GramChain
from spikeslab.sklearn._sweep import PointMassPrior

Results = tuple[dict[str, Table], dict[str, Figure]]

# Calibration: n rows to fit, some more to predict, p columns of which about three are real.
ROWS, NEW_ROWS, VARIABLES, CORRELATION = 60, 20, 60, 0.7
PRIOR = PointMassPrior(a=1.0, b=20.0, slab_df=4.0, slab_scale=0.5, noise_df=4.0, noise_scale=0.7)
LEVEL = 0.9
EDGES = (0.0, 0.05, 0.2, 0.4, 0.6, 0.8, 0.95, 1.0)
METHODS = {
    "exact": "Gibbs with the prior of the data",
    "default": "SpikeSlabRegressor()",
    "sgld-sa": 'SpikeSlabRegressor("sgld-sa")',
}
SETS = {"exact": 4, "default": 1, "sgld-sa": 1}  # data sets in units of --repeats: the first is the fastest
COLOURS = {"exact": BLUE, "default": SKY, "sgld-sa": VERMILION}
CHECKPOINT = Path("out/selection")

# Simulation-based calibration.
BINS, BLOCK = 16, 25
QUANTITIES = ("coefficient", "fit", "size", "slab", "intercept", "sigma", "log likelihood")


def fit_and_score(cell: Cell) -> Record:
    """Inclusion probabilities, and which intervals cover, on one data set drawn from `PRIOR`."""
    rng = np.random.default_rng(cell.seed)
    x = correlated_rows(ROWS + NEW_ROWS, VARIABLES, CORRELATION, rng)
    x = (x - x[:ROWS].mean(axis=0)) / x[:ROWS].std(axis=0)
    truth = draw_truth(PRIOR, VARIABLES, 1, rng)
    beta = truth.beta[0]
    y = x @ beta + truth.sigma * rng.standard_normal(len(x))
    fit = exact if cell.method == "exact" else estimator
    pip, coef_ends, ends = fit(cell, x, y[:ROWS])
    sure = np.flatnonzero(pip > 0.9)
    covered = (ends[:, 0] < y[ROWS:]) & (y[ROWS:] < ends[:, 1])
    coef_covered = (coef_ends[sure, 0] < beta[sure]) & (beta[sure] < coef_ends[sure, 1])
    return {
        "pip": [round(float(value), 4) for value in pip],
        "real": np.flatnonzero(beta).tolist(),
        "covered": int(covered.sum()),
        "coef_covered": int(coef_covered.sum()),
        "sure": len(sure),
    }


def exact(cell: Cell, x: np.ndarray, y: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The Gibbs sampler under `PRIOR`; the flat intercept is drawn given sigma."""
    rng = np.random.default_rng([cell.seed, 1])
    chain = GramChain(gram_data(x[:ROWS], y), PRIOR, 300, rng)
    while chain.done < 2300:
        chain.advance(2300 - chain.done)
    draws = chain.collect()
    coef, sigma = draws.coef.toarray(), draws.scalars["sigma"][:, None]
    level = y.mean() + sigma / np.sqrt(ROWS) * rng.standard_normal(sigma.shape)
    new = coef @ x[ROWS:].T + level
    tails = [0.5 - LEVEL / 2, 0.5 + LEVEL / 2]
    ends = np.quantile(new + sigma * rng.standard_normal(new.shape), tails, axis=0)
    return draws.pip, np.quantile(coef, tails, axis=0).T, ends.T


def estimator(cell: Cell, x: np.ndarray, y: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The estimator as it comes, with two chains."""
    method = "auto" if cell.method == "default" else cell.method
    warnings.simplefilter("ignore", ConvergenceWarning)
    model = SpikeSlabRegressor(method, n_chains=2, n_jobs=1, random_state=cell.seed).fit(x[:ROWS], y)
    return model.pip_, model.coef_interval(LEVEL), model.predict_interval(x[ROWS:], LEVEL)


def calibration(repeats: int) -> Results:
    """Data from the model's own prior: are probabilities frequencies, and do intervals cover?

    Finished fits are kept under ``out/selection``, so that a stopped run goes on.
    """
    file = CellFile(CHECKPOINT / "calibration.jsonl", {"rows": ROWS, "variables": VARIABLES})
    cells = {method: [Cell(method, seed) for seed in range(SETS[method] * repeats)] for method in METHODS}
    run_cells(file, list(itertools.chain(*cells.values())), fit_and_score, workers=2)
    found = {method: [file[cell] for cell in wanted] for method, wanted in cells.items()}
    curves = {method: curve(records) for method, records in found.items()}
    tables = {"calibration": coverage_table(found, curves), "inclusion": curve_table(curves)}
    return tables, {"calibration": curve_figure(curves)}


def curve(records: list[Record]) -> list[dict[str, Any]]:
    """For each bin of the inclusion probability: its mean, the share of real variables, and the number of both."""
    pip = np.array([record["pip"] for record in records])
    real = np.zeros(pip.shape, bool)
    for row, record in zip(real, records, strict=True):
        row[record["real"]] = True
    bins = []
    for low, high in itertools.pairwise(EDGES):
        inside = (pip >= low) & ((pip < high) | (high == 1.0))
        count = int(inside.sum())
        mean = float(pip[inside].mean()) if count else None
        share = float(real[inside].mean()) if count else None
        # Variables of one data set are not independent: the error is that of a ratio of sums over data sets, about a
        # share with one more hit and one more miss, so that a bin without misses has an error too.
        excess = (inside * (real - (real[inside].sum() + 1) / (count + 2))).sum(axis=1)
        error = float(np.sqrt(np.sum(excess**2)) / count) if count else None
        bins.append({"bin": f"{low:g} to {high:g}", "mean": mean, "real": share, "error": error, "count": count})
    return bins


def coverage_table(found: dict[str, list[Record]], curves: dict[str, list[dict[str, Any]]]) -> Table:
    rows = []
    for method, records in found.items():
        sure = [record for record in records if record["sure"]]
        middle = next(part for part in curves[method] if part["bin"] == "0.4 to 0.6")
        rows.append(
            {
                "method": METHODS[method],
                "prediction": Estimate.of([100.0 * record["covered"] / NEW_ROWS for record in records]),
                "coefficient": pooled([record["coef_covered"] for record in sure], [record["sure"] for record in sure]),
                "sure": sum(record["sure"] for record in sure),
                "middle": None if middle["real"] is None else Estimate(100.0 * middle["real"], 100.0 * middle["error"]),
                "count": middle["count"],
                "sets": len(records),
            }
        )
    columns = [
        Column("method", "Method"),
        Column("prediction", "predictions covered %", ".1f"),
        Column("coefficient", "coefficients covered %", ".1f"),
        Column("sure", "coefficients", ","),
        Column("middle", "PIP 0.4 to 0.6: real %", ".0f"),
        Column("count", "variables", ","),
        Column("sets", "data sets", ","),
    ]
    notes = [
        f"Data sets with n = {ROWS}, p = {VARIABLES}, neighbouring columns correlated by {CORRELATION}, and "
        "parameters drawn from the prior of the first row, under which 90 % intervals "
        "must cover 90 % and a probability must be a frequency. The default's prior is scaled by the response and so "
        "differs; SGLD-SA has the paper's settings and a prior of its own. Covered are new responses, and coefficients "
        "of variables with a PIP above 0.9. ± is the standard error over data sets."
    ]
    return Table("Coverage of 90 % intervals on data from the prior", columns, rows, notes)


def pooled(hits: list[int], counts: list[int]) -> Estimate | None:
    """Percentage of all hits, with the error of a ratio of sums over independent data sets."""
    if len(counts) < 2:
        return None
    share = sum(hits) / sum(counts)
    excess = np.array(hits) - share * np.array(counts)
    return Estimate(100.0 * share, 100.0 * float(np.sqrt(np.sum(excess**2))) / sum(counts))


def curve_table(curves: dict[str, list[dict[str, Any]]]) -> Table:
    rows = [
        {"method": METHODS[method], "error": part["error"], **{k: part[k] for k in ("bin", "mean", "real", "count")}}
        for method, bins in curves.items()
        for part in bins
    ]
    columns = [
        Column("method", "Method"),
        Column("bin", "PIP from"),
        Column("mean", "mean PIP", ".3f"),
        Column("real", "share of real ones", ".3f"),
        Column("error", "standard error", ".3f"),
        Column("count", "variables", ","),
    ]
    return Table("Inclusion probabilities and frequencies on data from the prior", columns, rows)


def curve_figure(curves: dict[str, list[dict[str, Any]]]) -> Figure:
    with style():
        figure = Figure(figsize=(0.62 * WIDTH, 4.2), layout="constrained")
        axes = figure.add_subplot()
        axes.plot([0, 1], [0, 1], color=GREY, linewidth=0.9, linestyle="--")
        for method, bins in curves.items():
            parts = [part for part in bins if part["count"] >= 20]
            axes.errorbar(
                [part["mean"] for part in parts],
                [part["real"] for part in parts],
                [2.0 * part["error"] for part in parts],
                marker="o",
                markersize=4,
                capsize=2,
                color=COLOURS[method],
                label=METHODS[method],
            )
        axes.set(xlabel="inclusion probability, mean of a bin", ylabel="share of the variables that are real")
        axes.set(xlim=(-0.02, 1.02), ylim=(-0.02, 1.06))
        axes.set_title("Are the probabilities frequencies?")
        axes.legend(loc="lower right")
    return figure


def rank_block(cell: Cell) -> Record:
    """Ranks of each quantity over a block of data sets."""
    found = [sbc_ranks(CASES[cell.method], seed) for seed in range(BLOCK * cell.seed, BLOCK * (cell.seed + 1))]
    return {name: [round(ranks[name], 5) for ranks in found] for name in found[0]}


def sbc(repeats: int) -> Results:
    """Ranks of the truth among draws, for each Gibbs sampler; finished blocks are kept under ``out/selection``."""
    file = CellFile(CHECKPOINT / "sbc.jsonl", {"block": BLOCK})
    blocks = range(-(-repeats // BLOCK))
    run_cells(file, [Cell(key, block) for block in blocks for key in CASES], rank_block, workers=2)
    ranks = {
        case.label: {
            name: [rank for block in blocks for rank in file[Cell(key, block)].get(name, ())][:repeats]
            for name in QUANTITIES
        }
        for key, case in CASES.items()
    }
    names = list(next(iter(ranks.values())))
    rows = [
        {"case": label, "test": test, **{name: p_value(test, found[name]) for name in names}}
        for label, found in ranks.items()
        for test in ("KS", "χ²")
    ]
    tests = [value for row in rows for name in names if (value := row[name]) is not None]
    columns = [Column("case", "Sampler"), Column("test", ""), *(Column(name, name, ".3f") for name in names)]
    notes = [
        f"p-values of the uniformity of the ranks of the truth over {repeats:,} data sets, ties broken at random: "
        f"Kolmogorov and Smirnov's test, and χ² on {BINS} bins. The smallest of all {len(tests)} is {min(tests):.4f}; "
        f"one below {1 / len(tests):.3f} is expected if all is right. "
        + " ".join(f"{case.label}: n = {case.n}, p = {case.p}." for case in CASES.values())
    ]
    return {"sbc": Table("Simulation-based calibration: p-values", columns, rows, notes)}, {"sbc": rank_figure(ranks)}


def p_value(test: str, ranks: list[float]) -> float | None:
    """The p-value of a test of uniformity; None where there are no ranks."""
    if not ranks:
        return None
    if test == "KS":
        return float(kstest(ranks, "uniform").pvalue)
    return float(chisquare(np.histogram(ranks, BINS, (0.0, 1.0))[0]).pvalue)


def rank_figure(ranks: dict[str, dict[str, list[float]]]) -> Figure:
    names = list(next(iter(ranks.values())))
    with style():
        figure = Figure(figsize=(WIDTH, 1.0 * len(ranks) + 0.6), layout="constrained")
        grid = figure.subplots(len(ranks), len(names), sharex=True, squeeze=False)
        for axes, name in zip(grid[0], names, strict=True):
            axes.set_title(name, fontsize=9.5)
        for row, (label, found) in zip(grid, ranks.items(), strict=True):
            row[0].set_ylabel(label.replace(", ", ",\n", 1), rotation=0, ha="right", va="center", fontsize=8.5)
            for axes, name in zip(row, names, strict=True):
                remove_y_axis(axes)
                if not found[name]:
                    axes.spines["bottom"].set_visible(False)
                    axes.tick_params(bottom=False)
                    continue
                expected = len(found[name]) / BINS
                band = 2.0 * np.sqrt(expected * (1.0 - 1.0 / BINS))
                axes.axhspan(expected - band, expected + band, color=GREY, alpha=0.25, linewidth=0)
                axes.hist(found[name], BINS, (0.0, 1.0), color=BLUE, alpha=0.85)
                axes.set_ylim(0, 1.6 * expected)
                axes.set_xticks([0, 1])
        figure.supxlabel("rank of the truth among posterior draws; grey: two standard errors about uniform", fontsize=9)
    return figure
