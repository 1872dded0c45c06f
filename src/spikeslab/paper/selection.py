"""Study of variable selection: a grid of methods and simulated data sets, its results and its tables.

Means and standard errors of the scores of each method, and differences paired by data set.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from spikeslab.paper.grid import CELLS, Cell, CellFile, Record, estimate, run_cells
from spikeslab.paper.selection_problem import (
    DEFAULT,
    FigureTruth,
    SelectionMethod,
    SelectionPreset,
    SelectionProblem,
    fit_cell,
    picture_cell,
)
from spikeslab.report.tables import Cell as TableCell
from spikeslab.report.tables import Column, Estimate, Table

PICTURES = "pictures.jsonl"
FITS, CHAINS = "Fits", "Chains of the figures"
HEAD: dict[Column, Callable[[SelectionMethod], TableCell]] = {
    Column("method", "Method"): lambda method: method.label,
    Column("v0", "v0", "g"): lambda method: method.preset and method.preset.v0,
    Column("sigma0", "σ at start", "g"): lambda method: method.preset and method.preset.sigma,
}
COUNT = Column("count", "data sets")


@dataclass(frozen=True)
class SelectionStudy:
    """Grid of methods and ``seeds`` data sets, on ``sgld_seeds`` of which the paper's methods run too.

    ``seed`` is that of the first data set. The first fifth of the ``steps`` of a chain is burn-in.
    """

    problem: SelectionProblem
    seed: int = 0
    seeds: int = 50
    sgld_seeds: int = 10
    steps: int = 60_000
    workers: int = 1

    @property
    def cells(self) -> list[Cell]:
        """Fits of the study, without those that need a missing package."""
        return [
            Cell(method.key, self.seed + index)
            for method in self.problem.methods
            if not method.missing
            for index in range(self.seeds if method.preset is None else self.sgld_seeds)
        ]

    @property
    def pictures(self) -> list[Cell]:
        """Chains of the figures, on the first data set."""
        posteriors = [method.key for method in self.problem.methods if method.preset == self.problem.pictured]
        latents = [preset.latents_key for preset in self.problem.presets]
        return [Cell(key, self.seed) for key in [*posteriors, *latents]]

    @property
    def stages(self) -> dict[str, int]:
        """Names of the parts and the number of cells in each."""
        return {FITS: len(self.cells), CHAINS: len(self.pictures)}

    def run(self, out: Path, progress: Callable[[str, int], None] = lambda stage, cells: None) -> SelectionResults:
        """Run the cells that are not in the two files in ``out``; ``progress`` has the stage and newly finished cells.

        Raises:
            CellFileError: If ``out`` holds results of other settings.
        """
        files = [CellFile.load_command(out / name, self.problem.name, steps=self.steps) for name in (CELLS, PICTURES)]
        parts = (FITS, self.cells, fit_cell), (CHAINS, self.pictures, picture_cell)
        for file, (stage, cells, function) in zip(files, parts, strict=True):
            work = partial(function, self.problem, steps=self.steps)
            run_cells(file, cells, work, workers=self.workers, on_done=partial(progress, stage))
        return SelectionResults(self, *files)


@dataclass(frozen=True)
class SelectionResults:
    """Numbers of a study: all fits, and the chains of the figures."""

    study: SelectionStudy
    cells: CellFile
    pictures: CellFile

    @property
    def truth(self) -> FigureTruth:
        """True values of the data set of the figures."""
        problem = self.study.problem
        return problem.truth(problem.data(self.study.seed))

    def values(self, key: str, score: str) -> dict[int, float]:
        """Return a score of a method by seed, where it has one."""
        seeds = range(self.study.seed, self.study.seed + self.study.seeds)
        found = {seed: self.cells.records.get(Cell(key, seed), {}).get(score) for seed in seeds}
        return {seed: value for seed, value in found.items() if value is not None}

    def estimate(self, method: SelectionMethod, score: str) -> Estimate | None:
        """Return the mean of a method's score over the data sets."""
        return estimate(self.values(method.key, score).values())

    def difference(self, method: SelectionMethod, score: str) -> Estimate | None:
        """Return the mean of the default's score minus that of another method, over the data sets of both."""
        ours, theirs = self.values(DEFAULT, score), self.values(method.key, score)
        return estimate(ours[seed] - theirs[seed] for seed in ours if seed in theirs)

    def count(self, method: SelectionMethod) -> int:
        """Return the number of data sets on which a method has scores."""
        return len(self.values(method.key, "mae"))

    def posterior(self, label: str) -> Record:
        """Return the posterior of one of the paper's methods with the figure's preset."""
        problem = self.study.problem
        key = next(m.key for m in problem.methods if m.label == label and m.preset == problem.pictured)
        return self.pictures.records[Cell(key, self.study.seed)]

    def latents(self, preset: SelectionPreset) -> Record:
        """Return the latent variables of SGLD-SA along its chain."""
        return self.pictures.records[Cell(preset.latents_key, self.study.seed)]


def make_tables(results: SelectionResults) -> list[Table]:
    """Return the paper's table next to ours, all methods, and the default's paired differences from the others."""
    problem = results.study.problem
    others = [method for method in problem.methods if method.key != DEFAULT]
    scores = {column: partial(results.estimate, score=column.key) for column in problem.scores}
    differences = {column: partial(results.difference, score=column.key) for column in problem.differences}
    count = {COUNT: results.count}
    notes = [problem.note, *_gaps(results)]
    note = (
        f"{problem.method(DEFAULT).label} minus the method of the row on the same data set, mean ± standard error: "
        "below 0 is better for errors."
    )
    return [
        _paper_table(results),
        Table.build(f"{problem.title}: all methods", problem.methods, {**HEAD, **scores, **count}, notes),
        Table.build(f"{problem.title}: paired differences", others, {**HEAD, **differences, **count}, [note]),
    ]


def _paper_table(results: SelectionResults) -> Table:
    problem = results.study.problem
    columns: dict[Column, Callable[[SelectionMethod], TableCell]] = {
        Column("paper_mae", "MAE, paper", problem.spec): lambda method: method.paper and method.paper[0],
        Column("mae", "MAE, ours", problem.spec): lambda method: results.estimate(method, "mae"),
        Column("paper_mse", "MSE, paper", problem.spec): lambda method: method.paper and method.paper[1],
        Column("mse", "MSE, ours", problem.spec): lambda method: results.estimate(method, "mse"),
        COUNT: results.count,
    }
    note = (
        f"Errors on 50 test rows. The paper has one data set for each column of its table; ours are means over data "
        f"sets ± standard error, with {results.study.steps:,} steps for each chain (the paper: 500,000)."
    )
    rows = [method for method in problem.methods if method.paper]
    return Table.build(f"{problem.title}: the paper's table", rows, HEAD | columns, [note])


def _gaps(results: SelectionResults) -> list[str]:
    """Return notes on what is missing in the tables, and why."""
    methods = results.study.problem.methods
    failures = [cell.method for cell, record in results.cells.records.items() if "failed" in record]
    missing = "{0.label} has no numbers because {0.package} is not installed: pip install {0.package}."
    diverged = "{0.label} ({0.preset}) diverged on {1} data sets, which are left out."
    return [missing.format(method) for method in methods if method.missing] + [
        diverged.format(method, failures.count(method.key)) for method in methods if method.key in failures
    ]
