"""Panels that figures of the paper's methods share: posteriors of a coefficient, and predictions against the truth."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import to_rgba
from numpy.typing import NDArray

from spikeslab.report.figures import BLUE, GREY, INK, ORANGE, VERMILION, remove_y_axis

COLOURS = {"SGLD-SA": BLUE, "SGLD-EM": ORANGE, "SGLD": VERMILION}

Array = NDArray[np.floating]


def draw_posteriors(
    axes: Axes, index: int, truth: float, draws: Mapping[str, Array], limits: tuple[float, float] = (-2.0, 5.0)
) -> None:
    """Histograms of the draws of coefficient ``index``, one for each method, and the truth."""
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
    """Points around the diagonal; those beyond ``limits`` become arrows on the border, and their number is returned."""
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
    """Points of one method; rings for EM, so that those of SA are seen inside."""
    colour = COLOURS[method]
    if method == "SGLD-EM":
        axes.scatter(x, y, s=2.5 * size, facecolors="none", edgecolors=colour, linewidths=0.9)
    else:
        axes.scatter(x, y, s=size, color=colour, linewidths=0)
