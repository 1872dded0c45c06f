"""The demo: the paper's linear regression and a pruned CNN on digits, as tables and figures in one folder."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

import torch
from matplotlib.figure import Figure

from spikeslab.metrics import accuracy, mean_squared_error, negative_log_likelihood, selective_accuracy
from spikeslab.paper.demo.data import Digits, load_digits
from spikeslab.paper.demo.digits import DigitsPreset, DigitsResult, digits_table, run_digits
from spikeslab.paper.demo.linear import METHODS, LinearResult, linear_table, run_linear
from spikeslab.paper.grid import one_thread
from spikeslab.paper.linear.data import LinearData, simulate_linear
from spikeslab.paper.selection_figures import draw_posteriors, draw_predictions
from spikeslab.report.figures import BLUE, GREY, ORANGE, new_figure, save
from spikeslab.report.plots import draw_bars
from spikeslab.report.tables import Estimate, Provenance, Table, command_line

FILES = ("linear", "digits")
"""Names of the tables and of the figures."""
COLOURS = (GREY, ORANGE, BLUE)


def stages(steps: int) -> dict[str, int]:
    """Return the names of the demo's parts and their numbers of steps."""
    regressions = {f"Linear regression, {method}": steps for method in METHODS}
    return {**regressions, "Digits, SGHMC-SA": DigitsPreset().at_most(steps).steps}


def run_demo(
    out: Path, *, seed: int = 0, steps: int, progress: Callable[[str, int], None] = lambda stage, steps: None
) -> tuple[list[Table], list[Path]]:
    """Run both parts, write linear.* and digits.* into ``out``, and return the tables and the paths of the files.

    No phase of the digits takes more than ``steps``, which each chain of the regression takes. ``progress`` is called
    now and then with the stage and the number of steps taken since the last call.
    """
    out.mkdir(parents=True, exist_ok=True)
    run = Provenance(command_line("demo", seed=seed, steps=steps), seed)
    *linear_stages, digits_stage = stages(steps)
    data, images, preset = simulate_linear(seed), load_digits(), DigitsPreset().at_most(steps)
    with one_thread():
        results = [
            run_linear(data, method, steps=steps, seed=seed, progress=partial(progress, stage))
            for method, stage in zip(METHODS, linear_stages, strict=True)
        ]
        models = run_digits(images, preset, seed=seed, progress=partial(progress, digits_stage))
    tables = [linear_table(data, results, steps=steps), digits_table(images, models, preset)]
    figures = [linear_figure(data, results), digits_figure(images, models)]
    files: list[Path] = []
    for name, table, figure in zip(FILES, tables, figures, strict=True):
        files += [*table.write(out / name, run), save(figure, out / f"{name}.png")]
    return tables, files


def linear_figure(data: LinearData, results: Sequence[LinearResult]) -> Figure:
    """Draw the posterior of each signal by method, and below it the predicted against the observed test targets."""
    with new_figure(5.2) as figure:
        top, bottom = figure.subplots(2, 3, height_ratios=(1.0, 1.45))
        for index, axes in enumerate(top):
            draws = {result.method: result.draws[:, index].numpy() for result in results}
            draw_posteriors(axes, index, float(data.beta[index]), draws)
        limit = 1.25 * float(data.y_test.abs().max())
        for axes, result in zip(bottom, results, strict=True):
            observed, predicted = data.y_test.numpy(), result.predictions.numpy()
            beyond = draw_predictions(axes, observed, predicted, (-limit, limit), result.method)
            axes.set_xlabel(f"observed ({beyond} points off scale)" if beyond else "observed")
            axes.set_title(f"{result.method}: test MSE {mean_squared_error(result.predictions, data.y_test):.1f}")
        handles, labels = top[0].get_legend_handles_labels()
        figure.legend(handles, labels, loc="outside upper center", ncols=len(labels))
        bottom[0].set_ylabel("predicted")
    return figure


def digits_figure(data: Digits, results: Sequence[DigitsResult]) -> Figure:
    """Draw bars of error, log score and size of the three models, and their error on the most confident images."""
    errors = [100.0 * (1.0 - accuracy(result.probabilities, data.y_test)) for result in results]
    losses = [negative_log_likelihood(result.probabilities, data.y_test) for result in results]
    sizes = [result.size / 1000.0 for result in results]
    with new_figure(2.9) as figure:
        axes = figure.subplots(1, 4, width_ratios=(1.0, 1.0, 1.0, 1.35))
        bars = ("test error, %", errors, ".1f"), ("test NLL", losses, ".3f"), ("size, kB", sizes, ".0f")
        for panel, (title, values, spec) in zip(axes, bars, strict=False):
            draw_bars(panel, title, [Estimate(value, None) for value in values], COLOURS, spec)
        shares = torch.linspace(0.5, 1.0, 101)
        for result, colour in zip(results, COLOURS, strict=True):
            selective = 100.0 * (1.0 - selective_accuracy(result.probabilities, data.y_test, shares))
            axes[3].plot(100.0 * shares, selective, color=colour)
        axes[3].set(xlabel="images kept, most confident first, %", ylim=(0, None), title="test error of those kept, %")
        figure.legend(list(axes[0].patches), [result.name for result in results], loc="outside lower center", ncols=3)
    return figure
