"""Files of a simulation study: its tables, the paper's figure 1, and the latent variables along a chain."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import to_rgba
from matplotlib.figure import Figure
from matplotlib.gridspec import GridSpec
from numpy.typing import NDArray

from spikeslab.paper.grid import CELLS
from spikeslab.paper.selection import SelectionResults, make_tables
from spikeslab.paper.selection_problem import SGLD_METHODS, SIGNALS, FigureTruth
from spikeslab.report.figures import BLUE, GREEN, GREY, INK, ORANGE, VERMILION, new_figure, remove_y_axis, save
from spikeslab.report.tables import Provenance, Table, command_line

Array = NDArray[np.floating]

COLOURS = {"SGLD-SA": BLUE, "SGLD-EM": ORANGE, "SGLD": VERMILION}
PRESET_COLOURS = (BLUE, ORANGE, GREEN, VERMILION)
SIGNAL_COLOURS = (BLUE, GREEN, ORANGE)


def write_study(results: SelectionResults, out: Path) -> tuple[list[Table], list[Path]]:
    """Write all tables and figures, replacing earlier ones, and return the tables and the paths of all files."""
    study, problem = results.study, results.study.problem
    sizes = {name: getattr(study, name) for name in ("seed", "seeds", "sgld_seeds", "steps")}
    run = Provenance(command_line("reproduce", problem.name, **sizes), study.seed)
    tables, files = make_tables(results), [out / CELLS]
    for table, name in zip(tables, problem.tables, strict=True):
        files += table.write(out / name, run)
    figures = posterior_figure(results), latents_figure(results)
    files += [save(figure, out / f"{name}.png") for figure, name in zip(figures, problem.figures, strict=True)]
    return tables, files


def posterior_figure(results: SelectionResults) -> Figure:
    """Draw the posteriors of the signals (a to c), the fit of training and test rows (d, e), and the means (f)."""
    truth = results.truth
    records = {label: results.posterior(label) for label in SGLD_METHODS}
    with new_figure(5.9) as figure:
        top, bottom = figure.subplots(2, 3, height_ratios=(1.0, 1.6))
        everything = np.concatenate([np.ravel(record["draws"]) for record in records.values()])
        low, high = np.quantile(everything, [0.002, 0.998])
        limits = min(-2.0, np.floor(low)), max(5.0, np.ceil(high))
        for index, axes in enumerate(top):
            draws = {label: np.asarray(record["draws"][index]) for label, record in records.items()}
            draw_posteriors(axes, index, float(truth.beta[index]), draws, limits)
        for axes, rows, target, name in (
            (bottom[0], "fitted", truth.train, "training rows"),
            (bottom[1], "predicted", truth.test, "test rows"),
        ):
            beyond = 0
            # SGLD scatters widely and goes below the others.
            for label in reversed(SGLD_METHODS):
                fit = np.asarray(records[label][rows])
                beyond += draw_predictions(axes, target, fit, truth.limits, label)
            axes.set(xlabel=truth.label, ylabel="posterior mean")
            axes.set_title(name + (f", {beyond} points off scale" if beyond else ""))
        _draw_means(bottom[2], {label: np.asarray(record["coef"]) for label, record in records.items()}, truth)
        for letter, axes in zip("abcdef", (*top, *bottom), strict=True):
            axes.set_title(f"({letter}) {axes.get_title(loc='left')}")
        handles, labels = top[0].get_legend_handles_labels()
        title = f"{results.study.problem.pictured}, {results.study.steps:,} steps"
        figure.legend(handles, labels, loc="outside upper center", ncols=len(labels), title=title)
    return figure


def latents_figure(results: SelectionResults) -> Figure:
    """Draw sigma and delta of SGLD-SA at the paper's presets, and rho of each signal and of the worst other."""
    truth, presets = results.truth, results.study.problem.presets
    with new_figure(5.6) as figure:
        grid = figure.add_gridspec(2, 4, height_ratios=(1.25, 1.0))
        sigma, delta = figure.add_subplot(grid[0, :2]), figure.add_subplot(grid[0, 2:])
        for preset, colour in zip(presets, PRESET_COLOURS, strict=True):
            record = results.latents(preset)
            sigma.plot(record["step"], record["sigma"], color=colour, label=str(preset))
            delta.plot(record["step"], record["delta"], color=colour, label=str(preset))
        if truth.sigma is not None:
            sigma.axhline(truth.sigma, color=INK, linestyle="--", linewidth=1.2)
            sigma.text(0.99, truth.sigma, "truth", transform=sigma.get_yaxis_transform(), ha="right", va="top")
        share = SIGNALS / len(truth.beta)
        delta.axhline(share, color=INK, linestyle="--", linewidth=1.2)
        delta.text(0.02, share, "true share", transform=delta.get_yaxis_transform(), va="bottom")
        sigma.set_title("σ")
        delta.set(yscale="log", title="δ")
        handles, labels = sigma.get_legend_handles_labels()
        title = "SGLD-SA with the σ at which the chain starts"
        figure.legend(handles, labels, loc="outside upper center", ncols=len(labels), title=title)
        first = _draw_rho_row(figure, results, grid)
        figure.legend(*first.get_legend_handles_labels(), loc="outside lower center", ncols=SIGNALS + 1)
        for axes in figure.axes:
            axes.set(xscale="log", xlabel="step")
    return figure


def _draw_rho_row(figure: Figure, results: SelectionResults, grid: GridSpec) -> Axes:
    panels: list[Axes] = []
    for column, preset in enumerate(results.study.problem.presets):
        axes = figure.add_subplot(grid[1, column], sharey=panels[0] if panels else None)
        record = results.latents(preset)
        axes.plot(record["step"], record["largest_other_rho"], color=GREY, lw=1.0, label="largest ρ of the others")
        for index, rho in enumerate(np.asarray(record["rho"]).T):
            # Thinner one by one: curves that lie on each other are all seen.
            width, colour = 2.8 - 0.9 * index, SIGNAL_COLOURS[index]
            axes.plot(record["step"], rho, color=colour, linewidth=width, label=rf"ρ of $\beta_{index + 1}$")
        axes.set_title(f"ρ, {preset}", fontsize=9.5)
        axes.set_ylim(-0.03, 1.03)
        if panels:
            axes.tick_params(labelleft=False)
        panels.append(axes)
    return panels[0]


def _draw_means(axes: Axes, means: dict[str, Array], truth: FigureTruth) -> None:
    """Draw posterior means against the true coefficients; the many zeros are spread sideways."""
    axes.axline((0.0, 0.0), slope=1.0, color=GREY, linewidth=0.8, zorder=0)
    signal = truth.beta != 0.0
    spread = np.random.default_rng(0).uniform(-0.25, 0.25, truth.beta.size) * ~signal
    for label in reversed(SGLD_METHODS):
        draw_points(axes, (truth.beta + spread)[~signal], means[label][~signal], label, size=3.0)
        draw_points(axes, truth.beta[signal], means[label][signal], label, size=26.0)
    everything = np.concatenate([truth.beta, *means.values()])
    low, high = 1.1 * everything.min() - 0.1, 1.1 * everything.max() + 0.1
    axes.set(xlim=(-0.45, 1.15 * float(truth.beta.max())), ylim=(low, high), box_aspect=1)
    axes.set(xlabel="true coefficient", ylabel="posterior mean")
    axes.set_title("posterior mean and truth")


def draw_posteriors(
    axes: Axes, index: int, truth: float, draws: Mapping[str, Array], limits: tuple[float, float] = (-2.0, 5.0)
) -> None:
    """Draw a histogram of coefficient ``index`` for each method, and the truth."""
    edges = np.linspace(*limits, 71).tolist()
    for method, values in draws.items():
        colour = COLOURS[method]
        # SA and EM often agree to the line: EM is not filled, so that both are seen.
        face = "none" if method == "SGLD-EM" else to_rgba(colour, 0.3)
        axes.hist(values, edges, density=True, histtype="stepfilled", fc=face, ec=colour, lw=1.4, label=method)
    axes.axvline(truth, color=INK, linestyle="--", linewidth=1.2, label="truth")
    axes.set_title(rf"$\beta_{index + 1}$, truth {truth:.2f}")
    axes.set_xlim(edges[0], edges[-1])
    remove_y_axis(axes)


def draw_predictions(axes: Axes, truth: Array, predicted: Array, limits: tuple[float, float], method: str) -> int:
    """Draw predictions around the diagonal and return the number of those beyond ``limits``, drawn as arrows."""
    low, high = limits
    axes.axline((low, low), (high, high), color=GREY, linewidth=0.8, zorder=0)
    inside = (predicted >= low) & (predicted <= high)
    draw_points(axes, truth[inside], predicted[inside], method, size=16.0 if len(truth) <= 100 else 6.0)
    colour = COLOURS[method]
    for border, marker, beyond in ((high, "^", predicted > high), (low, "v", predicted < low)):
        x = truth[beyond]
        axes.scatter(x, np.full(len(x), border), s=24, marker=marker, color=colour, lw=0, clip_on=False)
    axes.set(xlim=limits, ylim=limits, aspect="equal")
    return int((~inside).sum())


def draw_points(axes: Axes, x: Array, y: Array, method: str, size: float) -> None:
    """Draw the points of one method: rings for EM, so that those of SA are seen inside."""
    colour = COLOURS[method]
    if method == "SGLD-EM":
        axes.scatter(x, y, s=2.5 * size, facecolors="none", edgecolors=colour, linewidths=0.9)
    else:
        axes.scatter(x, y, s=size, color=colour, linewidths=0)
