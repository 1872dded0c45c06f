"""Figures of class probabilities: calibration, accuracy of the most confident, and bars of scores.

Each takes the results of several models by name. The first has the first colour in all of them, unless ``colours`` has
one for every name, so that a model keeps its own where others are left out.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, TypeVar

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import PercentFormatter
from numpy.typing import NDArray
from torch import Tensor

from spikeslab.errors import quote
from spikeslab.metrics import Reliability
from spikeslab.report.figures import COLOURS, GREY, INK, WIDTH, style, without_y_axis
from spikeslab.report.tables import Estimate

Result = TypeVar("Result")


def coloured(
    results: Mapping[str, Result], colours: Mapping[str, str] | None = None
) -> Iterator[tuple[str, Result, str]]:
    """Names, results and colours: those of ``colours``, or else of ``COLOURS`` in their order.

    Raises:
        ValueError: If there are no results, more than there are colours, or one without a colour.
    """
    if not results or (colours is None and len(results) > len(COLOURS)):
        raise ValueError(f"results must be of 1 to {len(COLOURS)} models by name, but got {len(results)}.")
    chosen = dict(zip(results, COLOURS, strict=False)) if colours is None else colours
    missing = [name for name in results if name not in chosen]
    if missing:
        raise ValueError(f"colours must have one for every model, but got none for {quote(missing)}.")
    return ((name, result, chosen[name]) for name, result in results.items())


def array(values: Tensor) -> NDArray[Any]:
    """Numbers for matplotlib, from any device."""
    return values.detach().cpu().numpy()


def draw_reliability(axes: Axes, curve: Reliability, colour: str, label: str | None = None, fewest: int = 1) -> None:
    """Draw accuracy against confidence in the bins that hold at least ``fewest`` rows."""
    shown = curve.count >= fewest
    confidence, accuracy = array(curve.confidence[shown]), array(curve.accuracy[shown])
    axes.plot(confidence, accuracy, "o-", color=colour, markersize=4, label=label)


def draw_diagonal(axes: Axes) -> None:
    """Draw the line on which confidence is accuracy."""
    axes.axline((0.0, 0.0), slope=1.0, color=GREY, linewidth=0.8, zorder=0)


def reliability_figure(
    curves: Mapping[str, Reliability], colours: Mapping[str, str] | None = None, fewest: int = 1
) -> Figure:
    """Draw accuracy against confidence, ± one standard error, beside the share of rows in each bin.

    Args:
        curves: Results of :func:`~spikeslab.metrics.reliability_curve`, by the name of the model.
        colours: Colour of each model.
        fewest: Rows that a bin must hold for its accuracy to be drawn.
    """
    with style():
        figure = Figure(figsize=(WIDTH, 3.8), layout="constrained")
        left, right = figure.subplots(1, 2, sharex=True)
        draw_diagonal(left)
        for name, curve, colour in coloured(curves, colours):
            draw_reliability(left, curve, colour, name, fewest)
            _draw_errors(left, curve, colour, fewest)
            share = array(curve.count / curve.count.sum())
            edges = np.linspace(0.0, 1.0, len(share) + 1)
            right.stairs(share, edges, color=colour, linewidth=1.6)
        left.set(xlim=(0.0, 1.02), ylim=(-0.02, 1.02))
        left.set_title("accuracy ± standard error" + (f", bins of ≥ {fewest} rows" if fewest > 1 else ""))
        right.set_title("share of the rows, log scale")
        right.set_yscale("log")  # nearly all rows of a good model are in one bin
        right.set_ylim(0.5 / max(int(curve.count.sum()) for curve in curves.values()), 1.0)
        right.yaxis.set_major_formatter(percent)
        for axes in (left, right):
            axes.set_xlabel("confidence: probability of the predicted class")
        figure.legend(*left.get_legend_handles_labels(), loc="outside lower center", ncols=4)
    return figure


def percent(share: float, _: int | None = None) -> str:
    """A share on a logarithmic axis, with as many digits as it needs."""
    return f"{100 * share:g}%"


def _draw_errors(axes: Axes, curve: Reliability, colour: str, fewest: int) -> None:
    filled = curve.count >= fewest
    accuracy, rows = curve.accuracy[filled], curve.count[filled]
    shrunk = (accuracy * rows + 1.0) / (rows + 2.0)  # a bin with one row, right or wrong, is not certain
    error = (shrunk * (1.0 - shrunk) / (rows + 2.0)).sqrt()
    confidence = array(curve.confidence[filled])
    axes.vlines(confidence, array(accuracy - error), array(accuracy + error), color=colour, linewidth=1.0)


def selective_accuracy_figure(
    curves: Mapping[str, Tensor], coverages: Tensor, colours: Mapping[str, str] | None = None
) -> Figure:
    """Draw accuracy against the share of rows kept, those of which the model is most confident.

    Args:
        curves: Results of :func:`~spikeslab.metrics.selective_accuracy` at ``coverages``, by the name of the model.
        coverages: Shares of rows kept.
        colours: Colour of each model.
    """
    with style():
        figure = Figure(figsize=(0.62 * WIDTH, 3.6), layout="constrained")
        axes = figure.subplots()
        for name, curve, colour in coloured(curves, colours):
            axes.plot(array(coverages), array(curve), color=colour, label=name)
        axes.set_xlim(float(coverages.min()), float(coverages.max()))
        axes.set_xlabel("share of rows answered, the most confident first")
        axes.set_title("accuracy on the rows answered")
        for axis in (axes.xaxis, axes.yaxis):
            axis.set_major_formatter(PercentFormatter(1.0))
        axes.legend(loc="best")
    return figure


def scores_figure(scores: Mapping[str, Mapping[str, Estimate]], colours: Mapping[str, str] | None = None) -> Figure:
    """Draw bars of several models, a panel for each score, with standard errors where there are some.

    Bars begin at zero: give the error, not the accuracy, of models that are nearly always right.

    Args:
        scores: Estimates by the name of the model, then by the name of the score, such as ``"error, %"``.
        colours: Colour of each model.

    Raises:
        ValueError: If the models have different scores.
    """
    models = list(coloured(scores, colours))
    names = list(models[0][1])
    for model, estimates, _ in models:
        if list(estimates) != names:
            raise ValueError(f"{model} must have the scores {quote(names)}, but got {quote(estimates)}.")
    with style():
        figure = Figure(figsize=(WIDTH, 3.0), layout="constrained")
        panels = figure.subplots(1, len(names), squeeze=False)[0]
        for axes, name in zip(panels, names, strict=True):
            draw_bars(axes, name, [estimates[name] for _, estimates, _ in models], [colour for _, _, colour in models])
        bars = list(panels[0].patches)
        figure.legend(bars, [model for model, _, _ in models], loc="outside lower center", ncols=min(4, len(bars)))
    return figure


def draw_bars(
    axes: Axes, title: str, estimates: Sequence[Estimate], colours: Sequence[str], spec: str = "#.3g"
) -> None:
    """Draw a bar from zero for each model, its value above it."""
    tops = [estimate.mean + (estimate.error or 0.0) for estimate in estimates]
    axes.bar(range(len(estimates)), [estimate.mean for estimate in estimates], color=colours, width=0.72)
    for position, (estimate, top) in enumerate(zip(estimates, tops, strict=True)):
        if estimate.error is not None:
            axes.errorbar(position, estimate.mean, yerr=estimate.error, color=INK, elinewidth=1.0, capsize=3)
        label = format(estimate.mean, spec)
        axes.annotate(
            label, (position, top), xytext=(0, 2), textcoords="offset points", ha="center", va="bottom", fontsize=9
        )
    axes.set_title(title)
    axes.set_xticks([])
    axes.set_ylim(0.0, 1.12 * max(tops))
    without_y_axis(axes)
