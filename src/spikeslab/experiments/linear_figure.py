"""Figure of the linear regression: posteriors of the three signals, and predictions of the test rows."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import to_rgba
from matplotlib.figure import Figure

from spikeslab.datasets import LinearData
from spikeslab.experiments.linear import LinearResult
from spikeslab.metrics import mean_squared_error
from spikeslab.report.figures import BLUE, GREY, INK, ORANGE, VERMILION, WIDTH, style, without_y_axis

COLOURS = {"SGLD-SA": BLUE, "SGLD-EM": ORANGE, "SGLD": VERMILION}


def linear_figure(data: LinearData, results: Sequence[LinearResult]) -> Figure:
    """Top: posterior of each true signal by method; bottom: predicted against observed test targets."""
    with style():
        figure = Figure(figsize=(WIDTH, 5.2), layout="constrained")
        top, bottom = figure.subplots(2, 3, height_ratios=(1.0, 1.45))
        for index, axes in enumerate(top):
            _draw_posteriors(axes, index, float(data.beta[index]), results)
        limit = 1.25 * float(data.y_test.abs().max())
        for axes, result in zip(bottom, results, strict=True):
            _draw_predictions(axes, data, result, limit)
        handles, labels = top[0].get_legend_handles_labels()
        figure.legend(handles, labels, loc="outside upper center", ncols=len(labels))
        bottom[0].set_ylabel("predicted")
    return figure


def _draw_posteriors(axes: Axes, index: int, truth: float, results: Sequence[LinearResult]) -> None:
    edges = np.linspace(-2.0, 5.0, 71).tolist()
    for result in results:
        colour = COLOURS[result.method]
        # SA and EM often agree to the line: EM is not filled, so that both are seen.
        face = "none" if result.method == "SGLD-EM" else to_rgba(colour, 0.3)
        draws = result.draws[:, index].numpy()
        axes.hist(draws, edges, density=True, histtype="stepfilled", fc=face, ec=colour, lw=1.4, label=result.method)
    axes.axvline(truth, color=INK, linestyle="--", linewidth=1.2, label="truth")
    axes.set_title(rf"$\beta_{index + 1}$, truth {truth:.2f}")
    axes.set_xlim(edges[0], edges[-1])
    without_y_axis(axes)


def _draw_predictions(axes: Axes, data: LinearData, result: LinearResult, limit: float) -> None:
    observed, predicted = data.y_test.numpy(), result.predictions.numpy()
    colour = COLOURS[result.method]
    axes.axline((0.0, 0.0), slope=1.0, color=GREY, linewidth=0.8, zorder=0)
    inside = np.abs(predicted) <= limit
    axes.scatter(observed[inside], predicted[inside], s=16, color=colour, linewidths=0)
    for sign, marker in ((1.0, "^"), (-1.0, "v")):
        beyond = observed[~inside & (predicted * sign > 0)]
        axes.scatter(beyond, np.full(len(beyond), sign * limit), s=24, marker=marker, color=colour, lw=0, clip_on=False)
    off_scale = len(inside) - inside.sum()
    label = f"observed ({off_scale} points off scale)" if off_scale else "observed"
    axes.set(xlim=(-limit, limit), ylim=(-limit, limit), aspect="equal", xlabel=label)
    axes.set_title(f"{result.method}: test MSE {mean_squared_error(result.predictions, data.y_test):.1f}")
