r"""Calibration of variable selection: coverage of intervals, frequencies of inclusion, ranks of true parameters.

Simulation-based calibration draws parameters from the prior and data given them. The parameters are then themselves a
draw from the posterior, so the rank of any function of them among posterior draws is uniform. A wrong constant
anywhere in a sampler bends some ranks. Functions that also depend on the data, such as the log likelihood, find errors
that functions of the parameters alone can miss.

References:
    S. Talts, M. Betancourt, D. Simpson, A. Vehtari and A. Gelman (2018), Validating Bayesian inference algorithms with
    simulation-based calibration, arXiv 1804.06788.
    M. Modrák, A. H. Moon, S. Kim, P.-C. Bürkner, N. Huurre, K. Faltejsková, A. Gelman and A. Vehtari (2023),
    Simulation-based calibration checking for Bayesian computation: the choice of test quantities shapes sensitivity,
    Bayesian Analysis.
"""

from __future__ import annotations

import itertools
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from matplotlib.figure import Figure
from numpy.random import Generator
from numpy.typing import NDArray
from scipy.special import expit, log_expit, log_softmax
from scipy.stats import chisquare, kstest
from sklearn.exceptions import ConvergenceWarning

from spikeslab.bench.suites import BenchPlan, Findings
from spikeslab.paper.grid import Cell, CellFile, Record, run_cells
from spikeslab.report.figures import BLUE, GREY, SKY, VERMILION, WIDTH, new_figure, remove_y_axis
from spikeslab.report.tables import Column, Estimate, Table
from spikeslab.sklearn import SpikeSlabRegressor
from spikeslab.sklearn._chains import GibbsChain
from spikeslab.sklearn._gibbs_linear import ColumnChain, GramChain, GramData
from spikeslab.sklearn._gibbs_logistic import LogisticChain
from spikeslab.sklearn._gibbs_multinomial import MultinomialChain
from spikeslab.sklearn._sweep import PointMassPrior

Floats = NDArray[np.float64]

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

# Simulation-based calibration: bins of the histograms, data sets of one cell.
BINS, BLOCK = 16, 25
QUANTITIES = ("coefficient", "fit", "size", "slab", "intercept", "sigma", "log likelihood")
P_VALUES: dict[str, Callable[[list[float]], float]] = {
    "KS": lambda ranks: float(kstest(ranks, "uniform").pvalue),
    "χ²": lambda ranks: float(chisquare(np.histogram(ranks, BINS, (0.0, 1.0))[0]).pvalue),
}


class TrueParameters(NamedTuple):
    """Parameters drawn from the prior: coefficients (vectors, p), intercepts (vectors,), sqrt(s2) and sigma."""

    beta: Floats
    intercept: Floats
    slab: float
    sigma: float


def draw_parameters(prior: PointMassPrior, n_features: int, vectors: int, rng: Generator) -> TrueParameters:
    """Draw the parameters from the prior; the intercepts of several vectors have the mean 0, as in the sampler."""
    slab = _draw_scale(prior.slab_df, prior.slab_scale, rng)
    included = rng.random((vectors, n_features)) < rng.beta(prior.a, prior.b)
    beta = included * slab * rng.standard_normal((vectors, n_features))
    intercept = prior.intercept_scale * rng.standard_normal(vectors)
    if vectors > 1:
        intercept -= intercept.mean()
    return TrueParameters(beta, intercept, slab, _draw_scale(prior.noise_df, prior.noise_scale, rng))


def _draw_scale(df: float, scale: float, rng: Generator) -> float:
    """Return the square root of a draw from IG(df / 2, df scale^2 / 2)."""
    return float(np.sqrt(df * scale**2 / 2.0 / rng.standard_gamma(df / 2.0)))


def draw_correlated_rows(n: int, p: int, correlation: float, rng: Generator) -> Floats:
    """Draw rows whose columns follow a stationary autoregression."""
    x = rng.standard_normal((n, p))
    for j in range(1, p):
        x[:, j] = correlation * x[:, j - 1] + np.sqrt(1.0 - correlation**2) * x[:, j]
    return x


def standardise(x: Floats) -> Floats:
    """Return columns scaled to mean 0 and standard deviation 1."""
    centred: Floats = (x - x.mean(axis=0)) / x.std(axis=0)
    return centred


def gram_data(x: Floats, y: Floats) -> GramData:
    """Return the sums of squares and products of standardised columns and a response, which is centred here."""
    centred = y - y.mean()
    return GramData(x.T @ x, x.T @ centred, float(centred @ centred), float(len(y)))


@dataclass(frozen=True)
class SBCCase:
    """Sampler, its data of n rows and p columns, the prior of both, and the number of draws.

    The family is "gram" or "columns" for linear regression from X'X and from X, "logistic" or "multinomial". The truth
    is ranked among ``kept`` draws with ``thin`` sweeps between them, after ``burn_in`` sweeps.
    """

    label: str
    family: str
    n: int
    p: int
    prior: PointMassPrior
    classes: int = 2
    kept: int = 63
    thin: int = 4
    burn_in: int = 100


_LINEAR = PointMassPrior(a=1.0, b=4.0, slab_df=4.0, slab_scale=0.7, noise_df=3.0, noise_scale=0.8)
_LOGISTIC = PointMassPrior(a=1.0, b=4.0, slab_df=4.0, slab_scale=1.0, intercept_scale=1.0)
_WIDE = _LOGISTIC._replace(intercept_scale=10.0)
CASES = {
    "gram": SBCCase("linear, from X'X", "gram", 20, 8, _LINEAR),
    "columns": SBCCase("linear, from X", "columns", 20, 8, _LINEAR),
    "logistic": SBCCase("logistic", "logistic", 40, 5, _LOGISTIC, thin=8, burn_in=200),
    "logistic-10": SBCCase("logistic, intercept N(0, 10²)", "logistic", 40, 5, _WIDE, thin=16, burn_in=400),
    "multinomial": SBCCase("3 classes", "multinomial", 40, 3, _LOGISTIC, classes=3, thin=8, burn_in=200),
    "multinomial-10": SBCCase("4 classes, intercepts N(0, 10²)", "multinomial", 40, 3, _WIDE, 4, thin=16, burn_in=400),
}


def sbc_ranks(case: SBCCase, seed: int) -> dict[str, float]:
    """Return the ranks in [0, 1] of functions of the true parameters among the draws of one chain.

    Ties are broken at random.
    """
    rng = np.random.default_rng([seed, *case.label.encode()])
    x = standardise(draw_correlated_rows(case.n, case.p, 0.5, rng))
    vectors = case.classes if case.family == "multinomial" else 1
    truth = draw_parameters(case.prior, case.p, vectors, rng)
    y = _response(case, x, truth, rng)
    chain = _chain(case, x, y, rng.spawn(1)[0])
    while chain.done < case.burn_in + case.kept * case.thin:
        chain.advance(case.burn_in + case.kept * case.thin - chain.done)
    draws = chain.collect()
    kept = slice(case.thin - 1, None, case.thin)
    coef = draws.coef.toarray().reshape(-1, vectors, case.p)[kept]
    sigma = draws.scalars.get("sigma", np.ones(draws.coef.shape[0]))
    posterior = _quantities(case, x, y, coef, draws.intercept[kept], sigma[kept])
    posterior["slab"] = draws.scalars["slab_scale"][kept]
    own = _quantities(case, x, y, truth.beta[None], truth.intercept[None], np.array([truth.sigma]))
    own["slab"] = np.array([truth.slab])
    return {name: _rank(posterior[name], float(own[name][0]), rng) for name in posterior}


def _response(case: SBCCase, x: Floats, truth: TrueParameters, rng: Generator) -> Floats:
    psi: Floats = x @ truth.beta.T
    if case.family == "logistic":
        y = rng.random(case.n) < expit(psi[:, 0] + truth.intercept[0])
    elif case.family == "multinomial":
        y = (psi + truth.intercept + rng.gumbel(size=psi.shape)).argmax(axis=1)
    else:
        y = psi[:, 0] + truth.sigma * rng.standard_normal(case.n)
        y -= y.mean()
    return np.asarray(y, dtype=np.float64)


def _chain(case: SBCCase, x: Floats, y: Floats, rng: Generator) -> GibbsChain:
    columns = np.ascontiguousarray(x.T)
    if case.family == "gram":
        return GramChain(gram_data(x, y), case.prior, case.burn_in, rng)
    if case.family == "columns":
        return ColumnChain(columns, y, case.prior, case.burn_in, rng)
    if case.family == "logistic":
        return LogisticChain(columns, y, case.prior, case.burn_in, rng)
    return MultinomialChain(columns, y.astype(np.int64), case.classes, case.prior, case.burn_in, rng)


def _quantities(
    case: SBCCase, x: Floats, y: Floats, coef: Floats, intercept: Floats, sigma: Floats
) -> dict[str, Floats]:
    """Compute functions of the parameters, one entry per draw: coef (draws, vectors, p), intercept (draws, vectors)."""
    psi = np.einsum("dcp,np->dnc", coef, x)
    found = {"size": np.count_nonzero(coef, axis=(1, 2)).astype(np.float64), "coefficient": coef[:, 0, 0]}
    if case.family in ("gram", "columns"):  # the flat intercept is integrated out, and y is centred
        squares = np.square(y - psi[:, :, 0]).sum(axis=1)
        log_likelihood = -case.n * np.log(sigma) - squares / (2.0 * sigma**2)
        return {**found, "fit": psi[:, 0, 0], "log likelihood": log_likelihood, "sigma": sigma}
    psi += intercept[:, None, :]
    found |= {"intercept": intercept[:, 0]}
    if case.family == "logistic":
        signed = np.where(y == 1, psi[:, :, 0], -psi[:, :, 0])
        return {**found, "fit": psi[:, 0, 0], "log likelihood": log_expit(signed).sum(axis=1)}
    chosen = log_softmax(psi, axis=2)[:, np.arange(case.n), y.astype(np.int64)]
    return {**found, "fit": psi[:, 0, 0] - psi[:, 0, 1], "log likelihood": chosen.sum(axis=1)}


def _rank(draws: Floats, truth: float, rng: Generator) -> float:
    below, equal = int(np.sum(draws < truth)), int(np.sum(draws == truth))
    return float((below + rng.random() * (equal + 1)) / (len(draws) + 1))


def fit_and_score(cell: Cell) -> Record:
    """Return the inclusion probabilities and the intervals that cover, on one data set drawn from `PRIOR`."""
    rng = np.random.default_rng(cell.seed)
    x = draw_correlated_rows(ROWS + NEW_ROWS, VARIABLES, CORRELATION, rng)
    x = (x - x[:ROWS].mean(axis=0)) / x[:ROWS].std(axis=0)
    truth = draw_parameters(PRIOR, VARIABLES, 1, rng)
    beta = truth.beta[0]
    y = x @ beta + truth.sigma * rng.standard_normal(len(x))
    fit = _fit_gibbs if cell.method == "exact" else _fit_estimator
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


def _fit_gibbs(cell: Cell, x: Floats, y: Floats) -> tuple[Floats, Floats, Floats]:
    """Run the Gibbs sampler under `PRIOR`; the flat intercept is drawn given sigma."""
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


def _fit_estimator(cell: Cell, x: Floats, y: Floats) -> tuple[Floats, Floats, Floats]:
    """Fit the estimator with its defaults and two chains."""
    method = "auto" if cell.method == "default" else cell.method
    warnings.simplefilter("ignore", ConvergenceWarning)
    model = SpikeSlabRegressor(method, n_chains=2, n_jobs=1, random_state=cell.seed).fit(x[:ROWS], y)
    return model.pip_, model.coef_interval(LEVEL), model.predict_interval(x[ROWS:], LEVEL)


def run_coverage(plan: BenchPlan) -> Findings:
    """Compare probabilities with frequencies, and intervals with their coverage, on data from the model's own prior.

    Finished fits are kept under ``out/selection``, so that a stopped run continues.
    """
    file = CellFile.load(CHECKPOINT / "calibration.jsonl", {"rows": ROWS, "variables": VARIABLES})
    cells = {method: [Cell(method, seed) for seed in range(SETS[method] * plan.repeats)] for method in METHODS}
    everything = list(itertools.chain(*cells.values()))
    run_cells(file, everything, fit_and_score, workers=plan.threads, on_done=plan.tick)
    found = {method: [file.records[cell] for cell in wanted] for method, wanted in cells.items()}
    curves = {method: _bin_probabilities(records) for method, records in found.items()}
    tables = {"calibration": _coverage_table(found, curves), "inclusion": _curve_table(curves)}
    return Findings(tables, {"calibration": _curve_figure(curves)})


def _bin_probabilities(records: list[Record]) -> list[dict[str, Any]]:
    """Return, for each bin of the inclusion probability, its mean, the share of real variables and their number."""
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


def _coverage_table(found: dict[str, list[Record]], curves: dict[str, list[dict[str, Any]]]) -> Table:
    middle = {method: next(part for part in bins if part["bin"] == "0.4 to 0.6") for method, bins in curves.items()}
    columns: dict[Column, Callable[[str], Any]] = {
        Column("method", "Method"): METHODS.__getitem__,
        Column("prediction", "predictions covered %", ".1f"): lambda method: Estimate.of(
            [100.0 * record["covered"] / NEW_ROWS for record in found[method]]
        ),
        Column("coefficient", "coefficients covered %", ".1f"): lambda method: _pool_coverage(found[method]),
        Column("sure", "coefficients", ","): lambda method: sum(record["sure"] for record in found[method]),
        Column("middle", "PIP 0.4 to 0.6: real %", ".0f"): lambda method: (
            Estimate(100.0 * middle[method]["real"], 100.0 * middle[method]["error"])
            if middle[method]["count"]
            else None
        ),
        Column("count", "variables", ","): lambda method: middle[method]["count"],
        Column("sets", "data sets", ","): lambda method: len(found[method]),
    }
    notes = [
        f"Data sets with n = {ROWS}, p = {VARIABLES}, neighbouring columns correlated by {CORRELATION}, and "
        "parameters drawn from the prior of the first row, under which 90 % intervals "
        "must cover 90 % and a probability must be a frequency. The default's prior is scaled by the response and so "
        "differs; SGLD-SA has the paper's settings and a prior of its own. Covered are new responses, and coefficients "
        "of variables with a PIP above 0.9. ± is the standard error over data sets."
    ]
    return Table.build("Coverage of 90 % intervals on data from the prior", found, columns, notes)


def _pool_coverage(records: list[Record]) -> Estimate | None:
    """Return the percentage of coefficients covered, with the error of a ratio of sums over independent data sets."""
    hits, counts = (np.array([each[key] for each in records if each["sure"]]) for key in ("coef_covered", "sure"))
    if len(counts) < 2:
        return None
    share = hits.sum() / counts.sum()
    error = np.sqrt(np.square(hits - share * counts).sum()) / counts.sum()
    return Estimate(100.0 * float(share), 100.0 * float(error))


def _curve_table(curves: dict[str, list[dict[str, Any]]]) -> Table:
    rows = [{"method": METHODS[method], **part} for method, bins in curves.items() for part in bins]
    columns = [
        Column("method", "Method"),
        Column("bin", "PIP from"),
        Column("mean", "mean PIP", ".3f"),
        Column("real", "share of real ones", ".3f"),
        Column("error", "standard error", ".3f"),
        Column("count", "variables", ","),
    ]
    return Table("Inclusion probabilities and frequencies on data from the prior", columns, rows)


def _curve_figure(curves: dict[str, list[dict[str, Any]]]) -> Figure:
    with new_figure(4.2, width=0.62 * WIDTH) as figure:
        axes = figure.add_subplot()
        axes.plot([0, 1], [0, 1], color=GREY, linewidth=0.9, linestyle="--")
        for method, bins in curves.items():
            parts = [part for part in bins if part["count"] >= 20]
            mean, real, error = (np.array([part[key] for part in parts]) for key in ("mean", "real", "error"))
            look: dict[str, Any] = {"color": COLOURS[method], "label": METHODS[method], "markersize": 4, "capsize": 2}
            axes.errorbar(mean, real, 2.0 * error, marker="o", **look)
        axes.set(xlabel="inclusion probability, mean of a bin", ylabel="share of the variables that are real")
        axes.set(xlim=(-0.02, 1.02), ylim=(-0.02, 1.06), title="Are the probabilities frequencies?")
        axes.legend(loc="lower right")
    return figure


def rank_block(cell: Cell) -> Record:
    """Return the ranks of each quantity over a block of data sets."""
    found = [sbc_ranks(CASES[cell.method], seed) for seed in range(BLOCK * cell.seed, BLOCK * (cell.seed + 1))]
    return {name: [round(ranks[name], 5) for ranks in found] for name in found[0]}


def run_sbc(plan: BenchPlan) -> Findings:
    """Rank true parameters among draws, for each Gibbs sampler; finished blocks are kept under ``out/selection``."""
    repeats = plan.repeats
    file = CellFile.load(CHECKPOINT / "sbc.jsonl", {"block": BLOCK})
    blocks = range(-(-repeats // BLOCK))
    cells = [Cell(key, block) for block in blocks for key in CASES]
    run_cells(file, cells, rank_block, workers=plan.threads, on_done=lambda count: plan.tick(BLOCK * count))
    ranks = {
        case.label: {
            name: [rank for block in blocks for rank in file.records[Cell(key, block)].get(name, ())][:repeats]
            for name in QUANTITIES
        }
        for key, case in CASES.items()
    }
    rows = [
        {"case": label, "test": test, **{name: p_value(found[name]) if found[name] else None for name in QUANTITIES}}
        for label, found in ranks.items()
        for test, p_value in P_VALUES.items()
    ]
    tests = [value for row in rows for name in QUANTITIES if (value := row[name]) is not None]
    columns = [Column("case", "Sampler"), Column("test", ""), *(Column(name, name, ".3f") for name in QUANTITIES)]
    notes = [
        f"p-values of the uniformity of the ranks of the truth over {repeats:,} data sets, ties broken at random: "
        f"Kolmogorov and Smirnov's test, and χ² on {BINS} bins. The smallest of all {len(tests)} is {min(tests):.4f}; "
        f"one below {1 / len(tests):.3f} is expected if all is right. "
        + " ".join(f"{case.label}: n = {case.n}, p = {case.p}." for case in CASES.values())
    ]
    table = Table("Simulation-based calibration: p-values", columns, rows, notes)
    return Findings({"sbc": table}, {"sbc": _rank_figure(ranks)})


def _rank_figure(ranks: dict[str, dict[str, list[float]]]) -> Figure:
    with new_figure(1.0 * len(ranks) + 0.6) as figure:
        grid = figure.subplots(len(ranks), len(QUANTITIES), sharex=True, squeeze=False)
        for axes, name in zip(grid[0], QUANTITIES, strict=True):
            axes.set_title(name, fontsize=9.5)
        for row, (label, found) in zip(grid, ranks.items(), strict=True):
            row[0].set_ylabel(label.replace(", ", ",\n", 1), rotation=0, ha="right", va="center", fontsize=8.5)
            for axes, name in zip(row, QUANTITIES, strict=True):
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
