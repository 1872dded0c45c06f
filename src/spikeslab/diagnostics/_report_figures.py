"""Figures of a run's report: curves, latents, histograms by layer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.layout_engine import ConstrainedLayoutEngine
from matplotlib.ticker import LogLocator, MaxNLocator, PercentFormatter

from spikeslab.diagnostics.run_reader import RunFacts
from spikeslab.diagnostics.traces import Series, Traces
from spikeslab.report.figures import BLUE, COLOURS, WIDTH, new_figure, style

if TYPE_CHECKING:
    from numpy.typing import NDArray
    from torch import Tensor

LINES = len(COLOURS)
"""Largest number of lines in a panel."""
LAYERS = 9
"""Largest number of histograms."""
WIDE = 30.0
"""Ratio of the largest to the smallest number above which an axis is logarithmic."""
EVALUATIONS = {"accuracy": "accuracy", "rmse": "RMSE", "nll": "NLL", "ece": "ECE", "brier": "Brier score"}
PANELS = 3
"""Largest number of panels for evaluations."""
BINS = 60
BASE = 0.7
"""Lower end of the logarithmic axis of a histogram, so that a bin with one weight is visible."""
MARKED = 40
"""Number of points up to which each is marked, so that few points are not taken for many."""


def shorten(name: str, length: int = 28) -> str:
    """Shorten a name to fit above a panel; its end identifies the weight.

    >>> shorten("stages.0.blocks.1.convolution2.weight", 20)
    '…convolution2.weight'
    """
    return name if len(name) <= length else f"…{name[len(name) - length + 1 :]}"


def curves_figure(facts: RunFacts) -> Figure | None:
    """Plot loss, evaluation, sparsity, temperature and lr against the step; return ``None`` without numbers."""
    metrics = facts.metrics
    panels: dict[str, dict[str, Series]] = {"training loss": {"": metrics.series("loss")}}
    evaluated = metrics.changes("evaluation")  # the other records repeat the last one
    for name in _names(evaluated):
        panels[f"{EVALUATIONS.get(name, name)} (evaluation)"] = {"": evaluated.series("evaluation", name)}
    panels["sparsity"] = {
        "whole network": metrics.series("sparsity"),
        "sparse layers": metrics.series("sparsity_sparse"),
    }
    kinetic = _median(list(metrics.layers("kinetic_temperature").values()))
    panels["temperature"] = {"kinetic, median over layers": kinetic, "set": metrics.series("temperature")}
    panels["lr"] = {"": metrics.series("lr")}
    return _panels(panels)


def latents_figure(facts: RunFacts) -> Figure | None:
    """Plot sigma and delta against the step, delta for the layers in which it changed most."""
    deltas = sorted(facts.metrics.layers("delta").items(), key=lambda item: -float(np.ptp(item[1].values)))[:LINES]
    panels = {"sigma": {"": facts.metrics.series("sigma")}, "delta": {shorten(name): series for name, series in deltas}}
    return _panels(panels)


def is_constant(series: Series) -> bool:
    """Return True if all numbers are equal."""
    return bool((series.values == series.values[:1]).all())


def _names(metrics: Traces) -> list[str]:
    """Return the evaluations that get a panel, well-known ones first."""
    names = metrics.layers("evaluation")
    known = [name for name in EVALUATIONS if name in names]
    return [*known, *(name for name in names if name not in EVALUATIONS)][:PANELS]


def _median(series: Sequence[Series]) -> Series:
    if not series:
        return Series(np.empty(0), np.empty(0))
    steps = series[0].steps
    same = [each.values for each in series if np.array_equal(each.steps, steps)]
    return Series(steps, np.median(np.stack(same), axis=0))


def _panels(panels: Mapping[str, Mapping[str, Series]]) -> Figure | None:
    """Plot panels in two columns, leaving out those whose lines are all constant."""
    shown = {title: {n: s for n, s in lines.items() if len(s)} for title, lines in panels.items()}
    shown = {title: lines for title, lines in shown.items() if any(not is_constant(s) for s in lines.values())}
    if not shown:
        return None
    columns = min(2, len(shown))
    rows = -(-len(shown) // columns)
    last = max(series.steps[-1] for lines in shown.values() for series in lines.values())
    with style():
        figure = Figure(figsize=(WIDTH, 2.45 * rows), layout=ConstrainedLayoutEngine(hspace=0.06))
        grid = figure.subplots(rows, columns, squeeze=False).ravel()
        for axes, (title, lines) in zip(grid, shown.items(), strict=False):
            _panel(axes, title, lines)
            axes.set_xlim(-0.03 * last, 1.03 * last)
        for axes in grid[len(shown) :]:
            axes.set_visible(False)
        for axes in grid[max(len(shown) - columns, 0) : len(shown)]:
            axes.set_xlabel("step")
    return figure


def _panel(axes: Axes, title: str, lines: Mapping[str, Series]) -> None:
    for colour, (name, series) in zip(COLOURS, lines.items(), strict=False):
        marker = "." if len(series) <= MARKED else ""
        axes.plot(series.steps, series.values, color=colour, label=name or None, marker=marker, markersize=4)
    axes.set_title(title)
    values = np.concatenate([series.values for series in lines.values()])
    finite = values[np.isfinite(values)]
    if finite.size and finite.min() > 0 and finite.max() / finite.min() > WIDE:
        axes.set_yscale("log")
    elif title == "sparsity":
        axes.set_ylim(0.0, 1.0)
        axes.yaxis.set_major_formatter(PercentFormatter(1.0))
    axes.xaxis.set_major_locator(MaxNLocator(5, integer=True))
    if any(lines):
        axes.legend(loc="best", handlelength=1.2)
        if title == "temperature":
            axes.margins(y=0.3)  # room for the legend above the noise
            axes.set_ylim(bottom=0.0)


def histograms_figure(tensors: Mapping[str, Tensor], label: str, limits: tuple[float, float] | None) -> Figure:
    """Plot one histogram per layer.

    Args:
        tensors: At most ``LAYERS`` layers.
        label: Label of the x axis.
        limits: Limits of the x axis; ``None`` chooses them per layer, symmetric about zero.
    """
    columns = min(3, len(tensors))
    rows = -(-len(tensors) // columns)
    with new_figure(0.35 + 1.75 * rows) as figure:
        grid = figure.subplots(rows, columns, squeeze=False).ravel()
        for axes, (name, tensor) in zip(grid, tensors.items(), strict=False):
            values = tensor.double().reshape(-1).numpy()
            ends = limits or _symmetric(values)
            counts, edges = np.histogram(np.clip(values, *ends), bins=BINS, range=ends)
            axes.stairs(counts, edges, fill=True, color=BLUE, baseline=BASE)
            axes.set_yscale("log")
            axes.set_title(shorten(name), fontweight="normal")
            axes.set_xlim(*ends)
            axes.set_ylim(bottom=BASE)
            axes.xaxis.set_major_locator(MaxNLocator(4))
            axes.minorticks_off()
            axes.yaxis.set_major_locator(LogLocator(numticks=4))
        for axes in grid[len(tensors) :]:
            axes.set_visible(False)
        figure.supxlabel(label, fontsize=10)
        figure.supylabel("weights (log scale)", fontsize=10)
    return figure


def _symmetric(values: NDArray[np.float64]) -> tuple[float, float]:
    """Return limits that hold all but the most extreme weight in a thousand."""
    end = float(np.quantile(np.abs(values), 0.999)) if values.size else 1.0
    return (-end, end) if end > 0 else (-1.0, 1.0)
