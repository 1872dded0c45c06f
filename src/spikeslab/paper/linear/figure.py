"""Figure of the linear regression: posteriors of the three signals, and predictions of the test rows."""

from __future__ import annotations

from collections.abc import Sequence

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from spikeslab.metrics import mean_squared_error
from spikeslab.paper.linear.data import LinearData
from spikeslab.paper.linear.sampling import LinearResult
from spikeslab.paper.selection.panels import draw_posteriors, draw_predictions
from spikeslab.report.figures import WIDTH, style


def linear_figure(data: LinearData, results: Sequence[LinearResult]) -> Figure:
    """Top: posterior of each true signal by method; bottom: predicted against observed test targets."""
    with style():
        figure = Figure(figsize=(WIDTH, 5.2), layout="constrained")
        top, bottom = figure.subplots(2, 3, height_ratios=(1.0, 1.45))
        for index, axes in enumerate(top):
            draws = {result.method: result.draws[:, index].numpy() for result in results}
            draw_posteriors(axes, index, float(data.beta[index]), draws)
        limit = 1.25 * float(data.y_test.abs().max())
        for axes, result in zip(bottom, results, strict=True):
            _draw_test_rows(axes, data, result, limit)
        handles, labels = top[0].get_legend_handles_labels()
        figure.legend(handles, labels, loc="outside upper center", ncols=len(labels))
        bottom[0].set_ylabel("predicted")
    return figure


def _draw_test_rows(axes: Axes, data: LinearData, result: LinearResult, limit: float) -> None:
    observed, predicted = data.y_test.numpy(), result.predictions.numpy()
    beyond = draw_predictions(axes, observed, predicted, (-limit, limit), result.method)
    axes.set_xlabel(f"observed ({beyond} points off scale)" if beyond else "observed")
    axes.set_title(f"{result.method}: test MSE {mean_squared_error(result.predictions, data.y_test):.1f}")
