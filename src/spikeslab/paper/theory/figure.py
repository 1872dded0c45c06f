"""Figures and table of Theorem 1 and Corollary 1."""

from __future__ import annotations

from collections.abc import Sequence

from matplotlib.figure import Figure

from spikeslab.paper.theory.theory import Convergence, WeakConvergence
from spikeslab.report.figures import BLUE, GREEN, GREY, INK, ORANGE, WIDTH, style
from spikeslab.report.tables import Column, Table


def theorem1_figure(runs: Sequence[Convergence]) -> Figure:
    """Mean squared distance of the latents to their fixed point against the step, with the rate of the theorem."""
    with style():
        figure = Figure(figsize=(WIDTH, 3.8), layout="constrained")
        axes = figure.subplots()
        for run, colour in zip(runs, (BLUE, ORANGE, GREEN), strict=False):
            label = f"α = {run.alpha:g}: slope {run.slope:.2f} ± {run.slope_error:.2f}"
            axes.loglog(run.steps, run.errors, color=colour, label=label)
            late = run.steps >= run.steps[-1] / 10
            bound = 2.0 * run.errors[-1] * (run.steps[late] / run.steps[-1]) ** -run.alpha
            axes.loglog(run.steps[late], bound, color=colour, linestyle=":", linewidth=1.2)
        axes.loglog([], [], color=INK, linestyle=":", linewidth=1.2, label="dotted: slope -α, for comparison")
        axes.set_xlabel("step k")
        axes.set_ylabel("E ‖θ(k) - θ*‖²")
        axes.set_title("Theorem 1: the latents reach their fixed point at the rate of ω")
        axes.legend()
        return figure


def corollary1_figure(results: Sequence[WeakConvergence]) -> Figure:
    """Distance of the weights' law to its target against the step size."""
    with style():
        figure = Figure(figsize=(WIDTH, 3.8), layout="constrained")
        axes = figure.subplots()
        lrs = [result.lr for result in results]
        axes.loglog(lrs, [result.exact for result in results], color=BLUE, label="exact law of the chain, θ fixed")
        axes.loglog(lrs, [result.distance for result in results], "o", color=ORANGE, label="SGLD-SA, samples")
        axes.axhline(results[0].noise, color=GREY, linestyle="--", linewidth=1.0, label="noise of as many exact draws")
        axes.set_xticks(lrs, [f"{lr:g}" for lr in lrs])
        axes.minorticks_off()
        axes.set_xlabel("step size ε")
        axes.set_ylabel("Kolmogorov distance")
        axes.set_title("Corollary 1: the weights' law tends to exp(L(β, θ*)) as ε tends to 0")
        axes.legend()
        return figure


def theory_tables(runs: Sequence[Convergence], results: Sequence[WeakConvergence]) -> tuple[Table, Table]:
    """The numbers behind the two figures."""
    theorem = Table(
        "Theorem 1: log-log slope of E|θ(k) - θ*|² against k",
        [
            Column("alpha", "α of ω", ".2f"),
            Column("bound", "theorem: at most", ".2f"),
            Column("slope", "measured", ".3f"),
            Column("slope_error", "standard error", ".3f"),
        ],
        [{"alpha": run.alpha, "bound": -run.alpha, "slope": run.slope, "slope_error": run.slope_error} for run in runs],
    )
    corollary = Table(
        "Corollary 1: Kolmogorov distance of the weights' law to exp(L(β, θ*))",
        [
            Column("lr", "ε", ".3f"),
            Column("distance", "SGLD-SA, samples", ".4f"),
            Column("exact", "exact law of the chain", ".4f"),
            Column("noise", "noise of exact draws", ".4f"),
        ],
        [{"lr": r.lr, "distance": r.distance, "exact": r.exact, "noise": r.noise} for r in results],
    )
    return theorem, corollary
