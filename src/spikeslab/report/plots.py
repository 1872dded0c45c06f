"""A figure for each metric: results of :mod:`spikeslab.metrics` in, a matplotlib figure in the one style out.

>>> import torch
>>> from spikeslab.metrics import reliability_curve
>>> from spikeslab.report import plots
>>> probabilities, labels = torch.rand(100, 3).softmax(1), torch.randint(3, (100,))
>>> figure = plots.reliability_figure({"a guess": reliability_curve(probabilities, labels)})

Each takes the results of several models by name. Models get the colours in order, or those of ``colours``, so that a
model keeps its own where others are left out. ``plots.save(figure, path)`` writes a PNG in that style;
``figure.savefig`` writes any format in yours.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import PercentFormatter
from numpy.typing import NDArray
from torch import Tensor

from spikeslab.errors import quote
from spikeslab.metrics import Reliability, detection, detection_curves
from spikeslab.report.figures import BLUE, COLOURS, GREY, INK, VERMILION, WIDTH, new_figure, remove_y_axis, save
from spikeslab.report.tables import Estimate

__all__ = [
    "CurvePanel",
    "detection_figure",
    "reliability_figure",
    "save",
    "scores_figure",
    "selective_accuracy_figure",
    "sparsity_curve_figure",
    "uncertainty_figure",
]

Result = TypeVar("Result")
BINS = 40


def assign_colours(
    results: Mapping[str, Result], colours: Mapping[str, str] | None = None
) -> Iterator[tuple[str, Result, str]]:
    """Yield names, results and colours: those of ``colours``, or else of ``COLOURS`` in their order.

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


def to_array(values: Tensor) -> NDArray[Any]:
    """Return a tensor of any device as an array for matplotlib."""
    return values.detach().cpu().numpy()


def reliability_figure(
    curves: Mapping[str, Reliability], colours: Mapping[str, str] | None = None, fewest: int = 1
) -> Figure:
    """Draw accuracy against confidence, ± one standard error, beside the share of rows in each bin.

    Args:
        curves: Results of :func:`~spikeslab.metrics.reliability_curve`, by the name of the model.
        colours: Colour of each model.
        fewest: Rows that a bin must hold for its accuracy to be drawn.
    """
    with new_figure(3.8) as figure:
        left, right = figure.subplots(1, 2, sharex=True)
        left.axline((0.0, 0.0), slope=1.0, color=GREY, linewidth=0.8, zorder=0)  # accuracy as high as confidence
        for name, curve, colour in assign_colours(curves, colours):
            _draw_reliability(left, curve, colour, name, fewest)
            share = to_array(curve.count / curve.count.sum())
            edges = np.linspace(0.0, 1.0, len(share) + 1)
            right.stairs(share, edges, color=colour, linewidth=1.6)
        left.set(xlim=(0.0, 1.02), ylim=(-0.02, 1.02))
        left.set_title("accuracy ± standard error" + (f", bins of ≥ {fewest} rows" if fewest > 1 else ""))
        right.set_title("share of the rows, log scale")
        right.set_yscale("log")  # nearly all rows of a good model are in one bin
        right.set_ylim(0.5 / max(int(curve.count.sum()) for curve in curves.values()), 1.0)
        right.yaxis.set_major_formatter(format_percent)
        for axes in (left, right):
            axes.set_xlabel("confidence: probability of the predicted class")
        figure.legend(*left.get_legend_handles_labels(), loc="outside lower center", ncols=4)
    return figure


def format_percent(share: float, _: int | None = None) -> str:
    """Format a share on a logarithmic axis, with as many digits as it needs."""
    return f"{100 * share:g}%"


def _draw_reliability(axes: Axes, curve: Reliability, colour: str, label: str, fewest: int) -> None:
    """Draw accuracy ± one standard error against confidence, in the bins that hold at least ``fewest`` rows."""
    filled = curve.count >= fewest
    accuracy, rows = curve.accuracy[filled], curve.count[filled]
    shrunk = (accuracy * rows + 1.0) / (rows + 2.0)  # a bin with one row, right or wrong, is not certain
    error = (shrunk * (1.0 - shrunk) / (rows + 2.0)).sqrt()
    confidence = to_array(curve.confidence[filled])
    axes.plot(confidence, to_array(accuracy), "o-", color=colour, markersize=4, label=label)
    axes.vlines(confidence, to_array(accuracy - error), to_array(accuracy + error), color=colour, linewidth=1.0)


def selective_accuracy_figure(
    curves: Mapping[str, Tensor], coverages: Tensor, colours: Mapping[str, str] | None = None
) -> Figure:
    """Draw accuracy against the share of rows kept, the most confident first.

    Args:
        curves: Results of :func:`~spikeslab.metrics.selective_accuracy` at ``coverages``, by the name of the model.
        coverages: Shares of rows kept.
        colours: Colour of each model.
    """
    with new_figure(3.6, width=0.62 * WIDTH) as figure:
        axes = figure.subplots()
        for name, curve, colour in assign_colours(curves, colours):
            axes.plot(to_array(coverages), to_array(curve), color=colour, label=name)
        axes.set_xlim(float(coverages.min()), float(coverages.max()))
        axes.set(xlabel="share of rows answered, the most confident first", title="accuracy on the rows answered")
        for axis in (axes.xaxis, axes.yaxis):
            axis.set_major_formatter(PercentFormatter(1.0))
        axes.legend(loc="best")
    return figure


def scores_figure(scores: Mapping[str, Mapping[str, Estimate]], colours: Mapping[str, str] | None = None) -> Figure:
    """Draw bars of several models with their standard errors, a panel for each score.

    Bars begin at zero: give the error, not the accuracy, of models that are nearly always right.

    Args:
        scores: Estimates by the name of the model, then by the name of the score, such as ``"error, %"``.
        colours: Colour of each model.

    Raises:
        ValueError: If the models have different scores.
    """
    models = list(assign_colours(scores, colours))
    names = list(models[0][1])
    for model, estimates, _ in models:
        if list(estimates) != names:
            raise ValueError(f"{model} must have the scores {quote(names)}, but got {quote(estimates)}.")
    with new_figure(3.0) as figure:
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
    axes.set(title=title, xticks=[], ylim=(0.0, 1.12 * max(tops)))
    remove_y_axis(axes)


def uncertainty_figure(scores: Mapping[str, tuple[Tensor, Tensor]], own: str, foreign: str) -> Figure:
    """Draw histograms of scores, a panel for each, such as the predictive entropy and the mutual information.

    Args:
        scores: Scores of own and foreign inputs, by the name of the score.
        own: Name of the inputs of the kind that the model was trained on.
        foreign: Name of the others.
    """
    with new_figure(3.0) as figure:
        panels = figure.subplots(1, len(scores), squeeze=False)[0]
        for axes, (name, pair) in zip(panels, scores.items(), strict=True):
            top = max(float(values.max()) for values in pair)
            edges = np.linspace(0.0, top or 1.0, BINS + 1)
            for values, colour, label in zip(pair, (BLUE, VERMILION), (own, foreign), strict=True):
                share = np.histogram(to_array(values.double()), edges)[0] / len(values)
                axes.stairs(share, edges, color=colour, fill=True, alpha=0.25)
                axes.stairs(share, edges, color=colour, label=label)
            axes.set_xlim(0.0, float(edges[-1]))
            axes.set_yscale("log")  # nearly all own inputs are in the first bin
            axes.set_ylim(0.5 / max(len(values) for values in pair), 1.0)
            axes.yaxis.set_major_formatter(format_percent)
            axes.set_xlabel(f"{name}, nats")
        panels[0].set_ylabel("share of the inputs, log scale")
        figure.legend(*panels[0].get_legend_handles_labels(), loc="outside lower center", ncols=2)
    return figure


def detection_figure(scores: Mapping[str, tuple[Tensor, Tensor]], colours: Mapping[str, str] | None = None) -> Figure:
    """Draw the ROC and the precision-recall curve of each score that should be higher for foreign inputs.

    False alarms have a logarithmic axis, since those of a good score are few.

    Args:
        scores: Scores of own and foreign inputs, by the name of the model or of the score.
        colours: Colour of each.
    """
    with new_figure(4.4) as figure:
        roc, recall = figure.subplots(1, 2)
        models = list(assign_colours(scores, colours))
        fewest = 1.0 / max(len(own) for _, (own, _), _ in models)
        guess = np.geomspace(fewest, 1.0, 100)
        roc.plot(guess, guess, color=GREY, linewidth=0.8, zorder=0)
        for name, (own, foreign), colour in models:
            curves, found = detection_curves(own, foreign), detection(own, foreign)
            label = f"{name}: AUROC {found.auroc:.3f}, AUPR {found.aupr:.3f}, FPR95 {found.fpr95:.3f}"
            roc.plot(to_array(curves.false_positive), to_array(curves.true_positive), color=colour, label=label)
            recall.plot(to_array(curves.recall), to_array(curves.precision), color=colour)
        roc.set(xlabel="own inputs called foreign, log scale", ylabel="foreign inputs called foreign", title="ROC")
        roc.set(xscale="log", xlim=(fewest, 1.0), ylim=(0.0, 1.01))
        roc.xaxis.set_major_formatter(format_percent)
        recall.set(xlabel="recall: foreign inputs called foreign", ylabel="precision", title="precision and recall")
        least = min(float(line.get_ydata().min()) for line in recall.lines)  # of a guess, the share of foreign inputs
        recall.set(xlim=(0.0, 1.01), ylim=(least - 0.01, 1.01))
        figure.legend(*roc.get_legend_handles_labels(), loc="outside lower center")
    return figure


@dataclass(frozen=True)
class CurvePanel:
    """Panel of :func:`sparsity_curve_figure`.

    Attributes:
        title: Name of the number, with its unit.
        values: One for each sparsity.
        intervals: Low and high end of an interval for each value, or ``None``.
        dense: Value of the dense network, drawn as a line, or ``None``.
    """

    title: str
    values: Sequence[float]
    intervals: Sequence[tuple[float, float]] | None = None
    dense: float | None = None


def sparsity_curve_figure(sparsities: Sequence[float], panels: Sequence[CurvePanel]) -> Figure:
    """Draw numbers against the sparsity, a panel for each number; the axis is linear in log(1 - sparsity).

    Args:
        sparsities: Shares of zeros in (0, 1).
        panels: The numbers.
    """
    places = [-float(np.log10(1.0 - sparsity)) for sparsity in sparsities]
    with new_figure(3.2) as figure:
        for axes, panel in zip(np.atleast_1d(figure.subplots(1, len(panels))), panels, strict=True):
            if panel.dense is not None:
                axes.axhline(panel.dense, color=GREY, linewidth=1.0, linestyle="--", label="dense")
                axes.legend(loc="best")
            if panel.intervals is not None:
                lows, highs = zip(*panel.intervals, strict=True)
                axes.vlines(places, lows, highs, color=BLUE, linewidth=1.2)
            axes.plot(places, panel.values, "o-", color=BLUE, markersize=4)
            axes.set_xticks(places, [format_percent(sparsity) for sparsity in sparsities], rotation=90)
            axes.set_xlabel("zeros")
            axes.set_title(panel.title)
    return figure
