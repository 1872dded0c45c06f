"""How long the estimators of variable selection and their kernels take."""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from matplotlib.figure import Figure
from sklearn.linear_model import LassoCV

import spikeslab as ss
from spikeslab.datasets import simulate_linear
from spikeslab.experiments.own_prior import gram_data, standardised
from spikeslab.experiments.peers import best_subset, is_installed
from spikeslab.report.figures import BLUE, GREEN, GREY, ORANGE, VERMILION, WIDTH, style
from spikeslab.report.tables import Column, Table
from spikeslab.sklearn import SGLDSettings, SpikeSlabRegressor
from spikeslab.sklearn._chains import Chain
from spikeslab.sklearn._gibbs_linear import ColumnChain, GramChain
from spikeslab.sklearn._gibbs_logistic import LogisticChain
from spikeslab.sklearn._gibbs_multinomial import MultinomialChain
from spikeslab.sklearn._prior import Prior
from spikeslab.sklearn._sgld import SGLDChain

Results = tuple[dict[str, Table], dict[str, Figure]]

OURS, LASSO, ABESS, HORSESHOE = "SpikeSlabRegressor()", "LassoCV()", "abess", "numpyro, horseshoe, NUTS"
NUTS_DRAWS = 500  # of warm-up, and as many kept
SLOW_SETS = 2  # data sets for NUTS
MOST_GRAM = 3000  # columns for which X'X is formed


class Time(NamedTuple):
    """Seconds of the clock on the wall, and of the processor in all threads, which a busy machine hardly changes."""

    wall: float
    cpu: float


def timed(work: Callable[[], Any]) -> Time:
    wall, cpu = time.perf_counter(), time.process_time()
    work()
    return Time(time.perf_counter() - wall, time.process_time() - cpu)


def median(times: Sequence[Time]) -> Time:
    return Time(*(statistics.median(values) for values in zip(*times, strict=True)))


def horseshoe(x: np.ndarray, y: np.ndarray) -> Callable[[int], None]:
    """A function of a seed that draws from the horseshoe posterior by NUTS; the first call also compiles."""
    import jax
    import numpyro
    from numpyro import distributions as dist
    from numpyro.infer import MCMC, NUTS

    def model(x: Any, y: Any) -> None:
        p = x.shape[1]
        sigma = numpyro.sample("sigma", dist.HalfNormal(3.0))
        tau = numpyro.sample("tau", dist.HalfCauchy(0.01))
        local = numpyro.sample("local", dist.HalfCauchy(np.ones(p)))
        unit = numpyro.sample("unit", dist.Normal(np.zeros(p), 1.0))
        level = numpyro.sample("level", dist.Normal(0.0, 10.0))
        numpyro.sample("y", dist.Normal(level + x @ (tau * local * unit), sigma), obs=y)

    sampler = MCMC(NUTS(model), num_warmup=NUTS_DRAWS, num_samples=NUTS_DRAWS, progress_bar=False)

    def draw(seed: int) -> None:
        sampler.run(jax.random.PRNGKey(seed), x, y)
        jax.block_until_ready(sampler.get_samples())

    return draw


def speed(repeats: int) -> Results:
    """A default fit at n = 100, p = 1000 beside what users would take instead, in one process."""
    times: dict[str, list[Time]] = {name: [] for name in (OURS, LASSO, ABESS, HORSESHOE)}
    compiling = []
    for seed in range(repeats):
        data = simulate_linear(seed)
        x, y = data.x_train.double().numpy(), data.y_train.double().numpy()
        fits: dict[str, Callable[[], Any]] = {
            OURS: lambda x=x, y=y, seed=seed: SpikeSlabRegressor(random_state=seed).fit(x, y),
            LASSO: lambda x=x, y=y: LassoCV().fit(x, y),
        }
        if is_installed("abess"):
            fits[ABESS] = lambda x=x, y=y: best_subset(x, y)
        if seed == 0:
            for fit in fits.values():
                fit()
        turns: dict[str, list[Time]] = {name: [] for name in fits}
        for _ in range(5):
            for name, fit in fits.items():
                turns[name].append(timed(fit))
        for name, found in turns.items():
            times[name].append(median(found))
        if seed < SLOW_SETS and is_installed("numpyro"):
            draw = horseshoe(x, y)
            first, second = (timed(lambda draw=draw: draw(0)) for _ in range(2))
            times[HORSESHOE].append(second)
            compiling.append(first.cpu - second.cpu)
    rows = []
    for name, found in times.items():
        ratios = [Time(a.wall / b.wall, a.cpu / b.cpu) for a, b in zip(times[OURS], found, strict=False)]
        empty = {"wall": None, "cpu": None, "ratio": None, "low": None, "high": None, "cpu_ratio": None}
        measured = (
            {
                "wall": median(found).wall,
                "cpu": median(found).cpu,
                "ratio": median(ratios).wall,
                "low": min(ratio.wall for ratio in ratios),
                "high": max(ratio.wall for ratio in ratios),
                "cpu_ratio": median(ratios).cpu,
            }
            if found
            else empty
        )
        rows.append({"method": name, **measured, "sets": len(found)})
    columns = [
        Column("method", "Method"),
        Column("wall", "s", ".2f"),
        Column("cpu", "CPU s", ".2f"),
        Column("ratio", "ours / this", ".3f"),
        Column("low", "least", ".3f"),
        Column("high", "most", ".3f"),
        Column("cpu_ratio", "in CPU time", ".3f"),
        Column("sets", "data sets"),
    ]
    notes = [
        "Medians over data sets; a fit is the median of five in turns with the others, but NUTS runs once on each. "
        "Ours is four chains of 1,500 sweeps, in as many threads as there are cores "
        f"(here {os.cpu_count()}); NUTS is one chain of {NUTS_DRAWS} draws after {NUTS_DRAWS} of warm-up. Others used "
        "the machine meanwhile, so the ratios and the CPU times say more than the seconds."
    ]
    if compiling:
        notes.append(
            "Compilation is not in the times: the first run of NUTS, which compiles, took "
            f"{statistics.median(compiling):.0f} CPU seconds more than the second."
        )
    missing = [name for name, package in ((ABESS, "abess"), (HORSESHOE, "numpyro")) if not is_installed(package)]
    if missing:
        notes.append(f"Not installed where this ran, and so not measured: {', '.join(missing)}.")
    return {"speed": Table("Time of a fit, n = 100, p = 1000", columns, rows, notes)}, {}


def torch_step(dtype: torch.dtype, fused: bool) -> Callable[[int], None]:
    """The step of SGLD-SA of the paper's linear set-up with the library's torch classes; batches are drawn too."""
    data = simulate_linear(0)
    x, y = data.x_train.to(dtype), data.y_train.to(dtype)
    preset = ss.presets.paper_linear()
    model = torch.nn.Linear(x.shape[1], 1, bias=False, dtype=dtype)
    prior = ss.SpikeSlab(dict(model.named_parameters()), **preset.prior)
    likelihood = ss.GaussianLikelihood(prior)
    sampler = ss.SGLD(model.parameters(), **preset.sampler, prior=prior, fused=fused, seed=0)

    def run(steps: int) -> None:
        for _ in range(steps):
            batch = torch.randperm(len(x))[:50]
            sampler.zero_grad()
            likelihood(model(x[batch])[:, 0], y[batch]).backward()
            sampler.step()

    return run


def kernel_step(dtype: torch.dtype) -> Callable[[int], None]:
    """The same step of the estimators' kernel."""
    data = simulate_linear(0)
    x, y = data.x_train.to(dtype).numpy(), data.y_train.to(dtype).numpy()
    chain = SGLDChain(x, y, 0, "sgld-sa", SGLDSettings(), 10**9, 10**9, np.random.default_rng(0))

    def run(steps: int) -> None:
        target = chain.done + steps
        while chain.done < target:
            chain.advance(target - chain.done)

    return run


def step(repeats: int) -> Results:
    """A step of SGLD-SA at p = 1000, batch 50, in the kernel and in torch."""
    rows = []
    for dtype, name in ((torch.float32, "float32"), (torch.float64, "float64")):
        runs = {
            "kernel of the estimators": kernel_step(dtype),
            "torch, SGLD(fused=True)": torch_step(dtype, fused=True),
            "torch, SGLD(fused=False)": torch_step(dtype, fused=False),
        }
        best = dict.fromkeys(runs, float("inf"))
        for run in runs.values():
            run(50)
        for _ in range(repeats):
            for label, run in runs.items():
                begin = time.process_time()  # one thread: what others do meanwhile does not count
                run(200)
                best[label] = min(best[label], (time.process_time() - begin) / 200)
        kernel = best["kernel of the estimators"]
        for label, found in best.items():
            rows.append({"what": label, "dtype": name, "us": 1e6 * found, "ratio": found / kernel})
    columns = [
        Column("what", "Step"),
        Column("dtype", "type"),
        Column("us", "µs", ".0f"),
        Column("ratio", "times the kernel's", ".1f"),
    ]
    note = "Least processor time of turns of 200 steps on one thread. A step draws its batch, and updates all latents."
    return {"step": Table("A step of SGLD-SA, p = 1000, batch 50", columns, rows, [note])}, {}


def cost(chain: Chain, budget: float, repeats: int) -> float:
    """Least processor time per step, in microseconds, over ``repeats`` turns of about ``budget`` seconds."""
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


def wide_chains(p: int, n: int = 100) -> dict[str, Chain]:
    """The chains for n rows of p independent columns, one of which is real."""
    rng = np.random.default_rng(0)
    x = standardised(rng.standard_normal((n, p)))
    y = 2.0 * x[:, 0] + rng.standard_normal(n)
    y -= y.mean()
    prior = Prior(a=1.0, b=float(p), slab_df=3.0, slab_scale=0.4, noise_scale=0.5)
    settings = SGLDSettings(step=(1e-6, 0.0, 1 / 3))
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


COLOURS = dict(
    zip(
        (
            "SGLD-SA step, float32",
            "SGLD-SA step, float64",
            "linear sweep, from X'X",
            "linear sweep, from X",
            "logistic sweep",
        ),
        (ORANGE, VERMILION, GREY, BLUE, GREEN),
        strict=True,
    )
)


def scaling(repeats: int) -> Results:
    """Cost of a step and of a sweep against the number of columns, and the slopes of their logarithms."""
    sizes = (100, 300, 1000, 3000, 10_000, 30_000, 100_000)
    found: dict[str, dict[int, float]] = {name: {} for name in COLOURS}
    for p in sizes:
        for name, chain in wide_chains(p).items():
            found[name][p] = cost(chain, 0.1, repeats)
    rows = [
        {"what": name, **{str(p): times.get(p) for p in sizes}, "slope": slope(times)} for name, times in found.items()
    ]
    columns = [
        Column("what", "µs per"),
        *(Column(str(p), f"p = {p:,}", ",.0f") for p in sizes),
        Column("slope", "slope", ".2f"),
    ]
    notes = [
        "100 rows, batches of 50; least processor time of repeated turns on one core. The slope is that of log time "
        "against log p from p = 1,000 on (from 100 on where X'X is formed): 1 is linear. A step reads half of X, which "
        "leaves the caches on the way: 0.8 MB at p = 1,000 and 80 MB at p = 100,000 in float64."
    ]
    return {"scaling": Table("Cost against the number of variables", columns, rows, notes)}, {"scaling": curves(found)}


def slope(times: dict[int, float]) -> float:
    """Least-squares slope of log time against log p, without the sizes where overhead counts."""
    sizes = [p for p in times if p >= 1000 or max(times) <= MOST_GRAM]
    return float(np.polyfit(np.log(sizes), np.log([times[p] for p in sizes]), 1)[0])


def curves(found: dict[str, dict[int, float]]) -> Figure:
    with style():
        figure = Figure(figsize=(0.75 * WIDTH, 3.8), layout="constrained")
        axes = figure.add_subplot()
        ends: list[tuple[float, float, str]] = []
        for name, times in found.items():
            axes.loglog(list(times), list(times.values()), "o-", color=COLOURS[name], markersize=4)
            ends.append((list(times.values())[-1], max(times), name))
        for y, x, name in spread(ends):
            text = f"{name}, slope {slope(found[name]):.2f}"
            axes.annotate(text, (x, y), (8, 0), textcoords="offset points", va="center", color=COLOURS[name])
        axes.set(xlabel="number of variables, p", ylabel="µs")
        axes.set_title("Time of a step and of a sweep, n = 100")
        axes.set_xlim(right=6e6)
        axes.set_ylim(top=8e4)
        axes.set_xticks([100, 1000, 10_000, 100_000], ["100", "1,000", "10,000", "100,000"])
        axes.minorticks_off()
    return figure


def spread(ends: Sequence[tuple[float, float, str]], least: float = 1.7) -> list[tuple[float, float, str]]:
    """The ends of curves, moved apart by the factor ``least`` so that their labels do not touch."""
    placed: list[tuple[float, float, str]] = []
    for y, x, name in sorted(ends):
        near = [other for other in placed if other[1] == x]
        placed.append((max(y, near[-1][0] * least) if near else y, x, name))
    return placed


def classes(repeats: int) -> Results:
    """Cost of a sweep of the logistic and the multinomial sampler against the number of classes."""
    n, p = 500, 100
    rows = []
    for count in (2, 3, 4, 6, 8, 10):
        rng = np.random.default_rng(0)
        x = standardised(rng.standard_normal((n, p)))
        psi = np.zeros((n, count))
        psi[:, : min(count, 5)] = 1.5 * x[:, : min(count, 5)]
        labels = (psi + rng.gumbel(size=psi.shape)).argmax(axis=1)
        columns, prior = np.ascontiguousarray(x.T), Prior(1.0, float(p * count), 3.0, 1.0)
        chain: Chain
        if count == 2:
            chain = LogisticChain(columns, labels.astype(float), prior, 10**9, rng)
        else:
            chain = MultinomialChain(columns, labels, count, prior, 10**9, rng)
        for _ in range(50):
            chain.advance(1)
        microseconds = cost(chain, 0.2, repeats)
        vectors = 1 if count == 2 else count
        rows.append({"classes": count, "ms": microseconds / 1e3, "each": microseconds / 1e3 / vectors})
    columns_ = [Column("classes", "classes"), Column("ms", "ms per sweep", ".2f"), Column("each", "per vector", ".2f")]
    note = f"n = {n}, p = {p}; least processor time of repeated turns on one core. Two classes have one vector."
    return {"classes": Table("A Gibbs sweep against the number of classes", columns_, rows, [note])}, {}
