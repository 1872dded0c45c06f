"""Figures of a run's report: curves, latents, histograms by layer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator, MaxNLocator, PercentFormatter

from spikeslab.diagnostics.run_facts import RunFacts, Series
from spikeslab.report.figures import BLUE, COLOURS, WIDTH, style

if TYPE_CHECKING:
    from numpy.typing import NDArray
    from torch import Tensor

LINES = len(COLOURS)
"""Layers with a line of their own."""
LAYERS = 9
"""Layers with a histogram."""
WIDE = 30.0
"""Ratio of the largest to the smallest number from which an axis is logarithmic."""
EVALUATIONS = {"accuracy": "accuracy", "rmse": "RMSE", "nll": "NLL", "ece": "ECE", "brier": "Brier score"}
PANELS = 3
"""Numbers of the evaluation with a panel of their own."""
BINS = 60
BASE = 0.7
"""Where the logarithmic axis of a histogram begins, so that a bin with one weight is seen."""
MARKED = 40
"""Points up to which each is marked, so that a line between few is not taken for more."""


def shorten(name: str, length: int = 28) -> str:
    """A name that fits above a panel: its end says which weight it is.

    >>> shorten("stages.0.blocks.1.convolution2.weight", 20)
    '…convolution2.weight'
    """
    return name if len(name) <= length else f"…{name[len(name) - length + 1 :]}"


def curves_figure(facts: RunFacts) -> Figure | None:
    """Loss, evaluation, sparsity, temperature and lr against the step; ``None`` where there are no numbers."""
    panels: dict[str, dict[str, Series]] = {"training loss": {"": facts.series("loss")}}
    evaluated = _evaluated(facts)
    for name in _names(evaluated):
        panels[f"{EVALUATIONS.get(name, name)} (evaluation)"] = {"": evaluated.series("evaluation", name)}
    panels["sparsity"] = {
        "whole network": facts.series("sparsity"),
        "sparse layers": facts.series("sparsity_sparse"),
    }
    kinetic = _median(list(facts.layers("kinetic_temperature").values()))
    panels["temperature"] = {"kinetic, median of the layers": kinetic, "set": facts.series("temperature")}
    panels["lr"] = {"": facts.series("lr")}
    return _panels(panels)


def latents_figure(facts: RunFacts) -> Figure | None:
    """Sigma and the delta of each layer against the step; of many layers, those that moved most."""
    deltas = sorted(facts.layers("delta").items(), key=lambda item: -float(np.ptp(item[1].values)))[:LINES]
    panels = {"sigma": {"": facts.series("sigma")}, "delta": {shorten(name): series for name, series in deltas}}
    return _panels(panels)


def is_constant(series: Series) -> bool:
    """Whether all numbers are the same."""
    return bool((series.values == series.values[:1]).all())


def _evaluated(facts: RunFacts) -> RunFacts:
    """The records that were written after a new evaluation; the others repeat the last one."""
    found = [record.get("evaluation") for record in facts.metrics]
    new = [record for record, now, before in zip(facts.metrics, found, [None, *found], strict=False) if now != before]
    return replace(facts, metrics=new)


def _names(facts: RunFacts) -> list[str]:
    """Numbers of the evaluations that get a panel, the best known first."""
    names = {name: None for record in facts.metrics for name in record.get("evaluation") or {}}
    known = [name for name in EVALUATIONS if name in names]
    return [*known, *(name for name in names if name not in EVALUATIONS)][:PANELS]


def _median(series: Sequence[Series]) -> Series:
    if not series:
        return Series(np.empty(0), np.empty(0))
    steps = series[0].steps
    same = [each.values for each in series if np.array_equal(each.steps, steps)]
    return Series(steps, np.median(np.stack(same), axis=0))


def _panels(panels: Mapping[str, Mapping[str, Series]]) -> Figure | None:
    """A grid, at most two wide, of the panels that have something to show: a single constant line does not."""
    shown = {title: {n: s for n, s in lines.items() if len(s)} for title, lines in panels.items()}
    shown = {title: lines for title, lines in shown.items() if any(not is_constant(s) for s in lines.values())}
    if not shown:
        return None
    columns = min(2, len(shown))
    rows = -(-len(shown) // columns)
    with style():
        figure = Figure(figsize=(WIDTH, 2.35 * rows), layout="constrained")
        grid = figure.subplots(rows, columns, squeeze=False).ravel()
        for axes, (title, lines) in zip(grid, shown.items(), strict=False):
            _panel(axes, title, lines)
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


def histograms_figure(tensors: Mapping[str, Tensor], label: str, limits: tuple[float, float] | None) -> Figure:
    """Small multiples of histograms, one for each layer.

    Args:
        tensors: At most ``LAYERS`` layers.
        label: What the numbers are.
        limits: Ends of the axis; ``None`` takes them from each layer, symmetric about zero.
    """
    columns = min(3, len(tensors))
    rows = -(-len(tensors) // columns)
    with style():
        figure = Figure(figsize=(WIDTH, 0.35 + 1.75 * rows), layout="constrained")
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
    """Limits that hold all but the most extreme one in a thousand, which stand at the ends."""
    end = float(np.quantile(np.abs(values), 0.999)) if values.size else 1.0
    return (-end, end) if end > 0 else (-1.0, 1.0)
