"""Files of the UCI regressions: the tables, and the RMSE of every method on every data set."""

from __future__ import annotations

import math
from pathlib import Path

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from spikeslab.paper._grid import CELLS
from spikeslab.paper.uci.study import TITLES, UCIResults, paper_number, uci_tables
from spikeslab.report.figures import BLUE, GREY, ORANGE, WIDTH, save, style
from spikeslab.report.tables import Estimate, Table

SERIES = (("paper, last sample", GREY, -0.22), ("last sample", ORANGE, 0.0), ("posterior average", BLUE, 0.22))
TABLES, FIGURES = ("table", "differences"), ("rmse",)
"""Names of the files."""


def uci_figure(results: UCIResults) -> Figure:
    """Draw a panel for each data set with a row for each method; bars are standard errors."""
    datasets, methods = results.plan.datasets, results.plan.methods
    across = min(3, len(datasets))
    down = math.ceil(len(datasets) / across)
    with style():
        figure = Figure(figsize=(WIDTH, 0.9 + down * (0.9 + 0.28 * len(methods))), layout="constrained")
        panels = figure.subplots(down, across, squeeze=False, sharey=True)
        for panel, dataset in zip(panels.flat, datasets, strict=False):
            _panel(panel, results, dataset)
        for panel in panels.flat[len(datasets) :]:
            panel.set_visible(False)
        panels[0, 0].set_yticks(range(len(methods)), methods)
        panels[0, 0].set_ylim(len(methods) - 0.5, -0.5)
        handles = [panels[0, 0].plot([], [], "o", color=colour, ms=4, label=name)[0] for name, colour, _ in SERIES]
        figure.legend(handles=handles, loc="outside lower center", ncols=len(SERIES))
    return figure


def _panel(panel: Axes, results: UCIResults, dataset: str) -> None:
    for row, method in enumerate(results.plan.methods):
        estimates: tuple[Estimate | None, ...] = (
            paper_number(dataset, method),
            results.estimate(dataset, method, "rmse_last"),
            results.estimate(dataset, method, "rmse"),
        )
        for estimate, (_, colour, shift) in zip(estimates, SERIES, strict=True):
            if estimate is not None:
                error = estimate.error or 0.0
                panel.errorbar(estimate.mean, row + shift, xerr=error, fmt="o", color=colour, ms=4, lw=1.2)
    gone = max(results.diverged(dataset, method) for method in results.plan.methods)
    panel.set_title(TITLES[dataset] + (f" (≤ {gone} diverged)" if gone else ""))
    panel.set_xlabel("RMSE")
    panel.grid(axis="y", lw=0.4, alpha=0.5)


def write_uci(results: UCIResults, out: Path) -> tuple[list[Table], list[Path]]:
    """Write tables and figure, replacing earlier ones, and return the tables and the paths of all files."""
    tables = uci_tables(results)
    files = [out / CELLS]
    for table, name in zip(tables, TABLES, strict=False):
        files += table.write(out / name, results.plan.provenance)
    files += [save(uci_figure(results), out / f"{name}.png") for name in FIGURES]
    return tables, files
