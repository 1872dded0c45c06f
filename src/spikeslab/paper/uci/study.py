"""UCI regressions of appendix D: six methods, their means over splits, paired differences, and a figure."""

from __future__ import annotations

import math
import os
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from itertools import product
from pathlib import Path
from typing import TypeAlias

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from spikeslab.paper.grid import CELLS, Cell, CellFile, Record, estimate, run_cells
from spikeslab.paper.uci.data import NAMES, UCIData, load_uci
from spikeslab.paper.uci.sampling import CHOSEN, METHODS, Splits, make_preset, sample_splits
from spikeslab.report.figures import BLUE, GREY, ORANGE, new_figure, save
from spikeslab.report.tables import Cell as TableCell
from spikeslab.report.tables import Column, Estimate, Provenance, Table, command_line

SERIES = (("paper, last sample", GREY, -0.22), ("last sample", ORANGE, 0.0), ("posterior average", BLUE, 0.22))
TABLES, FIGURES = ("table", "differences"), ("rmse",)
"""Names of the files."""
REFERENCE = "A-SGHMC-SA"
RENAMED = {"sound": "default"}  # presets in files of earlier versions
# Mean and standard error of the RMSE of the last sample: the paper's table of appendix D, in the order of METHODS.
PAPER = {
    "boston": ((2.783, 0.109), (2.848, 0.126), (2.813, 0.140), (2.767, 0.154), (2.779, 0.133), (2.692, 0.120)),
    "yacht": ((0.886, 0.046), (0.808, 0.048), (0.823, 0.053), (0.815, 0.052), (0.789, 0.050), (0.782, 0.052)),
    "energy": ((1.983, 0.092), (1.419, 0.067), (2.077, 0.108), (1.435, 0.069), (1.948, 0.081), (1.388, 0.052)),
    "wine": ((0.731, 0.015), (0.671, 0.019), (0.729, 0.018), (0.627, 0.008), (0.654, 0.010), (0.620, 0.008)),
    "concrete": ((6.319, 0.179), (5.978, 0.166), (6.275, 0.169), (5.762, 0.156), (6.029, 0.131), (5.687, 0.142)),
}
LOADS = {"energy": "Energy, cooling", "energy-heating": "Energy, heating"}
TITLES = {name: LOADS.get(name, name.capitalize()) for name in NAMES}
UCIRow: TypeAlias = tuple[str, str]
"""Data set and method."""
SCORES = {"rmse_last": "RMSE, last sample", "rmse": "RMSE, average", "log_score": "log-likelihood"}
HEAD: dict[Column, Callable[[UCIRow], TableCell]] = {
    Column("dataset", "Data"): lambda row: TITLES[row[0]],
    Column("method", "Method"): lambda row: row[1],
}


@dataclass(frozen=True)
class UCIStudy:
    """Grid of data sets and methods with one preset; without ``epochs`` it has the preset's."""

    datasets: tuple[str, ...]
    methods: tuple[str, ...]
    preset: str
    splits: str
    epochs: int | None = None
    seed: int = 0
    data_dir: str | os.PathLike[str] | None = None
    workers: int = 1

    def epochs_of(self, dataset: str) -> int:
        """Return the epochs on a data set; the default preset has about as many steps on every data set."""
        return self.epochs or (200 if self.preset == "paper" else CHOSEN[dataset].epochs)

    @property
    def cells(self) -> list[Cell]:
        """Cells of the grid, one for each method and data set."""
        return [Cell(" ".join(row), self.seed) for row in product(self.datasets, self.methods)]

    @property
    def provenance(self) -> Provenance:
        """Command that makes the same numbers again."""
        datasets = None if set(self.datasets) == set(TITLES) else self.datasets
        methods = None if set(self.methods) == set(METHODS) else self.methods
        others = {name: getattr(self, name) for name in ("epochs", "preset", "splits", "seed")}
        return Provenance(command_line("reproduce", "uci", datasets=datasets, methods=methods, **others), self.seed)

    def load(self, dataset: str) -> UCIData:
        """Read a data set; raise :class:`~spikeslab.paper.DataError` if its file is missing or bad."""
        return load_uci(dataset, self.data_dir, splits=self.splits)

    def run(self, out: Path, on_done: Callable[[int], None] = lambda cells: None) -> UCIResults:
        """Run the cells that ``out`` does not have yet; ``on_done`` is called with numbers of finished cells.

        Raises:
            CellFileError: If ``out`` holds results of other settings.
        """
        epochs = self.epochs or "default"
        file = CellFile.load_command(out / CELLS, "uci", RENAMED, preset=self.preset, splits=self.splits, epochs=epochs)
        run_cells(file, self.cells, self.run_cell, workers=self.workers, on_done=on_done)
        return UCIResults(self, file)

    def run_cell(self, cell: Cell) -> Record:
        """Run all splits of a method on a data set."""
        dataset, method = cell.method.split()
        splits, epochs = Splits.of(self.load(dataset)), self.epochs_of(dataset)
        preset = make_preset(self.preset, dataset, method, splits.x_train.shape[1], epochs)
        standardise = self.preset == "default"
        return sample_splits(splits, preset, standardise=standardise, epochs=epochs, seed=cell.seed)


@dataclass(frozen=True)
class UCIResults:
    """Scores of every split."""

    study: UCIStudy
    cells: CellFile

    def values(self, row: UCIRow, score: str) -> list[float | None]:
        """Return a score of each split; ``None`` where its chain diverged."""
        values: list[float | None] = self.cells.records[Cell(" ".join(row), self.study.seed)][score]
        return values

    def estimate(self, row: UCIRow, score: str) -> Estimate | None:
        """Return mean and standard error over the splits whose chain did not diverge."""
        return estimate(self.values(row, score))

    def difference(self, row: UCIRow, score: str) -> Estimate | None:
        """Return the mean of the reference minus the row, over the splits on which neither diverged."""
        pairs = zip(self.values((row[0], REFERENCE), score), self.values(row, score), strict=True)
        return estimate(ours - theirs for ours, theirs in pairs if ours is not None and theirs is not None)

    def count_diverged(self, row: UCIRow) -> int:
        """Return the number of splits whose chain diverged."""
        return self.values(row, "rmse").count(None)

    def write(self, out: Path) -> tuple[list[Table], list[Path]]:
        """Write tables and figure, replacing earlier ones, and return the tables and the paths of all files.

        The paper's table is next to ours; paired differences from A-SGHMC-SA follow where it was run.
        """
        tables, methods = [_table(self)], self.study.methods
        if REFERENCE in methods and len(methods) > 1:
            tables.append(_differences(self))
        files = [out / CELLS]
        for table, name in zip(tables, TABLES, strict=False):
            files += table.write(out / name, self.study.provenance)
        return tables, [*files, *(save(uci_figure(self), out / f"{name}.png") for name in FIGURES)]


def paper_number(row: UCIRow) -> Estimate | None:
    """Return the paper's RMSE of a data set and method, or None where it has none."""
    numbers = dict(zip(METHODS, PAPER.get(row[0], ()), strict=False))
    return Estimate(*numbers[row[1]]) if row[1] in numbers else None


def _table(results: UCIResults) -> Table:
    study = results.study
    columns = HEAD | {
        Column("paper", "RMSE, paper", ".3f"): paper_number,
        **{Column(score, title, ".3f"): partial(results.estimate, score=score) for score, title in SCORES.items()},
        Column("coverage", "90 % coverage", ".3f"): lambda row: results.estimate(row, "coverage"),
        Column("diverged", "diverged"): results.count_diverged,
        Column("epochs", "epochs"): lambda row: study.epochs_of(row[0]),
    }
    losses = {
        "paper": "The loss is the sum of squares, as in the authors' code: a Gaussian likelihood with a variance of "
        "1/2, which the predictive distribution has too.",
        "default": "The target is standardised and the noise learned.",
    }
    notes = [
        f"Means over the {study.splits} splits ± standard error, in units of the target. The paper's numbers are of "
        "the last sample. The average, the log-likelihood and the coverage of 90 % intervals are those of the "
        "predictive distribution over the samples of the second half of the run. Splits whose chain diverged are "
        "counted and left out.",
        f"The network has one hidden layer of 50 units. {losses[study.preset]}",
    ]
    return Table.build(f"UCI regression, {study.preset} preset", product(study.datasets, study.methods), columns, notes)


def _differences(results: UCIResults) -> Table:
    study = results.study
    rows = product(study.datasets, [method for method in study.methods if method != REFERENCE])
    columns = {Column(s, title, "+.3f"): partial(results.difference, score=s) for s, title in SCORES.items()}
    note = (
        f"{REFERENCE} minus the method of the row on the same split, mean ± standard error: below 0 is better for "
        "RMSE, above 0 for the log-likelihood."
    )
    title = f"UCI regression, {study.preset} preset: paired differences"
    return Table.build(title, rows, HEAD | columns, [note])


def uci_figure(results: UCIResults) -> Figure:
    """Draw a panel for each data set with a row for each method; bars are standard errors."""
    datasets, methods = results.study.datasets, results.study.methods
    across = min(3, len(datasets))
    down = math.ceil(len(datasets) / across)
    with new_figure(0.9 + down * (0.9 + 0.28 * len(methods))) as figure:
        panels = figure.subplots(down, across, squeeze=False, sharey=True)
        for panel, dataset in zip(panels.flat, datasets, strict=False):
            _draw_panel(panel, results, dataset)
        for panel in panels.flat[len(datasets) :]:
            panel.set_visible(False)
        panels[0, 0].set_yticks(range(len(methods)), methods)
        panels[0, 0].set_ylim(len(methods) - 0.5, -0.5)
        handles = [panels[0, 0].plot([], [], "o", color=colour, ms=4, label=name)[0] for name, colour, _ in SERIES]
        figure.legend(handles=handles, loc="outside lower center", ncols=len(SERIES))
    return figure


def _draw_panel(panel: Axes, results: UCIResults, dataset: str) -> None:
    rows = [(dataset, method) for method in results.study.methods]
    for place, row in enumerate(rows):
        estimates = paper_number(row), results.estimate(row, "rmse_last"), results.estimate(row, "rmse")
        for rmse, (_, colour, shift) in zip(estimates, SERIES, strict=True):
            if rmse is not None:
                error = rmse.error or 0.0
                panel.errorbar(rmse.mean, place + shift, xerr=error, fmt="o", color=colour, ms=4, lw=1.2)
    gone = max(map(results.count_diverged, rows))
    panel.set(xlabel="RMSE", title=TITLES[dataset] + (f" (≤ {gone} diverged)" if gone else ""))
    panel.grid(axis="y", lw=0.4, alpha=0.5)
