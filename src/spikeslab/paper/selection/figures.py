"""Figures of a simulation study: the six panels of the paper's figure 1, and the latent variables along a chain."""

from __future__ import annotations

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from numpy.typing import NDArray

from spikeslab.paper.selection.panels import draw_points, draw_posteriors, draw_predictions
from spikeslab.paper.selection.study import SGLD_METHODS, Outcome, Setting, Truth
from spikeslab.report.figures import BLUE, GREEN, GREY, INK, ORANGE, VERMILION, WIDTH, style

Array = NDArray[np.floating]

SETTING_COLOURS = (BLUE, ORANGE, GREEN, VERMILION)
SIGNAL_COLOURS = (BLUE, GREEN, ORANGE)


def posterior_figure(outcome: Outcome) -> Figure:
    """Panels a to c: posteriors of the signals; d and e: fit of the training and test rows; f: means against truth."""
    truth = outcome.truth
    records = {label: outcome.posterior(label) for label in SGLD_METHODS}
    with style():
        figure = Figure(figsize=(WIDTH, 5.9), layout="constrained")
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
            # SGLD, which is all over the place, goes below the others.
            for label in reversed(SGLD_METHODS):
                fit = np.asarray(records[label][rows])
                beyond += draw_predictions(axes, target, fit, truth.limits, label)
            axes.set(xlabel=truth.label, ylabel="posterior mean")
            axes.set_title(name + (f", {beyond} points off scale" if beyond else ""))
        _draw_means(bottom[2], {label: np.asarray(record["coef"]) for label, record in records.items()}, truth)
        for letter, axes in zip("abcdef", (*top, *bottom), strict=True):
            axes.set_title(f"({letter}) {axes.get_title(loc='left')}")
        handles, labels = top[0].get_legend_handles_labels()
        title = f"{outcome.study.pictured}, {outcome.plan.steps:,} steps"
        figure.legend(handles, labels, loc="outside upper center", ncols=len(labels), title=title)
    return figure


def latents_figure(outcome: Outcome) -> Figure:
    """Sigma and delta of SGLD-SA at the paper's settings, and rho of each signal and of the worst other variable."""
    truth, settings = outcome.truth, outcome.study.settings
    with style():
        figure = Figure(figsize=(WIDTH, 5.6), layout="constrained")
        grid = figure.add_gridspec(2, 4, height_ratios=(1.25, 1.0))
        sigma, delta = figure.add_subplot(grid[0, :2]), figure.add_subplot(grid[0, 2:])
        for setting, colour in zip(settings, SETTING_COLOURS, strict=True):
            record = outcome.latents(setting)
            sigma.plot(record["step"], record["sigma"], color=colour, label=str(setting))
            delta.plot(record["step"], record["delta"], color=colour, label=str(setting))
        if truth.sigma is not None:
            sigma.axhline(truth.sigma, color=INK, linestyle="--", linewidth=1.2)
            sigma.text(0.99, truth.sigma, "truth", transform=sigma.get_yaxis_transform(), ha="right", va="top")
        share = truth.signals / len(truth.beta)
        delta.axhline(share, color=INK, linestyle="--", linewidth=1.2)
        delta.text(0.02, share, "true share", transform=delta.get_yaxis_transform(), va="bottom")
        delta.set_yscale("log")
        sigma.set_title("σ")
        delta.set_title("δ")
        handles, labels = sigma.get_legend_handles_labels()
        title = "SGLD-SA with the σ at which the chain starts"
        figure.legend(handles, labels, loc="outside upper center", ncols=len(labels), title=title)
        first = _draw_rho_row(figure, outcome, truth, grid, settings)
        figure.legend(*first.get_legend_handles_labels(), loc="outside lower center", ncols=truth.signals + 1)
        for axes in figure.axes:
            axes.set_xscale("log")
            axes.set_xlabel("step")
    return figure


def _draw_rho_row(figure: Figure, outcome: Outcome, truth: Truth, grid: object, settings: list[Setting]) -> Axes:
    panels: list[Axes] = []
    for column, setting in enumerate(settings):
        axes = figure.add_subplot(grid[1, column], sharey=panels[0] if panels else None)  # type: ignore[index]
        record = outcome.latents(setting)
        axes.plot(
            record["step"], record["largest_other_rho"], color=GREY, linewidth=1.0, label="largest ρ of the others"
        )
        for index, rho in enumerate(np.asarray(record["rho"]).T):
            # Thinner one by one: curves that lie on each other are all seen.
            width, colour = 2.8 - 0.9 * index, SIGNAL_COLOURS[index]
            axes.plot(record["step"], rho, color=colour, linewidth=width, label=rf"ρ of $\beta_{index + 1}$")
        axes.set_title(f"ρ, {setting}", fontsize=9.5)
        axes.set_ylim(-0.03, 1.03)
        if panels:
            axes.tick_params(labelleft=False)
        panels.append(axes)
    return panels[0]


def _draw_means(axes: Axes, means: dict[str, Array], truth: Truth) -> None:
    """Posterior means against the true coefficients; the many zeros are spread sideways."""
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
