"""Figure of the digits: error, log score and size of the three models, and how far their confidence can be trusted."""

from __future__ import annotations

from collections.abc import Sequence

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from spikeslab.metrics import accuracy, negative_log_likelihood, reliability_curve
from spikeslab.paper.demo.data import Digits
from spikeslab.paper.demo.digits import DigitsResult
from spikeslab.report.figures import BLUE, GREY, ORANGE, WIDTH, style
from spikeslab.report.plots import draw_bars, draw_diagonal, draw_reliability
from spikeslab.report.tables import Estimate

COLOURS = (GREY, ORANGE, BLUE)
BINS, FEWEST_ROWS = 5, 4  # few predictions are unsure: wide bins, and none of a row or two


def digits_figure(data: Digits, results: Sequence[DigitsResult]) -> Figure:
    """Bars of error, log score and size, and a reliability curve."""
    errors = [100.0 * (1.0 - accuracy(result.probabilities, data.y_test)) for result in results]
    losses = [negative_log_likelihood(result.probabilities, data.y_test) for result in results]
    sizes = [result.size / 1000.0 for result in results]
    with style():
        figure = Figure(figsize=(WIDTH, 2.9), layout="constrained")
        axes = figure.subplots(1, 4, width_ratios=(1.0, 1.0, 1.0, 1.35))
        for panel, title, values, spec in (
            (axes[0], "test error, %", errors, ".1f"),
            (axes[1], "test NLL", losses, ".3f"),
            (axes[2], "size, kB", sizes, ".0f"),
        ):
            draw_bars(panel, title, [Estimate(value, None) for value in values], COLOURS, spec)
        _draw_reliability(axes[3], data, results)
        figure.legend(list(axes[0].patches), [result.name for result in results], loc="outside lower center", ncols=3)
    return figure


def _draw_reliability(axes: Axes, data: Digits, results: Sequence[DigitsResult]) -> None:
    draw_diagonal(axes)
    for result, colour in zip(results, COLOURS, strict=True):
        draw_reliability(axes, reliability_curve(result.probabilities, data.y_test, BINS), colour, fewest=FEWEST_ROWS)
    axes.set(xlim=(0.3, 1.02), ylim=(0.3, 1.02), xlabel="confidence", ylabel="accuracy", aspect="equal")
    axes.set_title("reliability")
