"""Simulation study of variable selection, shared by the linear and the logistic regression.

Methods by data sets: means and standard errors of their scores, and differences paired by data set.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from spikeslab.paper._grid import CELLS, Cell, CellFile, Record, estimate, run_cells
from spikeslab.report.tables import Cell as TableCell
from spikeslab.report.tables import Column, Estimate, Table

Array: TypeAlias = NDArray[np.floating]

SGLD_METHODS = ("SGLD-SA", "SGLD-EM", "SGLD")
DEFAULT = "default"
PICTURES = "pictures.jsonl"
FITS, CHAINS = "Fits", "Chains of the figures"
LATENTS = "latents"


class PaperSetting(NamedTuple):
    """Setting that the paper varies: the scale of the spike and the initial sigma."""

    v0: float
    sigma: float

    def __str__(self) -> str:
        return f"v0 = {self.v0:g}, σ = {self.sigma:g}"

    @property
    def latents_key(self) -> str:
        """Name of the chain that shows how the latent variables converge."""
        return f"{LATENTS} {self.v0:g} {self.sigma:g}"


@dataclass(frozen=True)
class SelectionMethod:
    """Method of variable selection, a row of the tables; ``key`` is its name in the file of cells.

    The paper's methods have a ``setting`` and the paper's MAE and MSE. Others may need a package.
    """

    key: str
    label: str
    setting: PaperSetting | None = None
    paper: tuple[float, float] | None = None
    package: str | None = None

    @property
    def missing(self) -> bool:
        """True if the package it needs is not installed."""
        return self.package is not None and find_spec(self.package) is None


HEAD: dict[Column, Callable[[SelectionMethod], TableCell]] = {
    Column("method", "Method"): lambda method: method.label,
    Column("v0", "v0", "g"): lambda method: method.setting and method.setting.v0,
    Column("sigma0", "σ at start", "g"): lambda method: method.setting and method.setting.sigma,
}
COUNT = Column("count", "data sets")
RECOVERY = {"precision": "precision", "recall": "recall", "exact": "exact recovery"}
RECOVERY_COLUMNS = tuple(Column(key, title, ".2f") for key, title in RECOVERY.items())
RECOVERY_DIFFERENCES = tuple(Column(key, title, "+.3f") for key, title in RECOVERY.items())


def paper_methods(
    settings: Sequence[PaperSetting], paper: Mapping[str, Sequence[tuple[float, float]]]
) -> tuple[SelectionMethod, ...]:
    """Return SGLD-SA, SGLD-EM and SGLD at each of the paper's settings, with its MAE and MSE."""
    return tuple(
        SelectionMethod(f"{label} {setting.v0:g} {setting.sigma:g}", label, setting, numbers)
        for label in SGLD_METHODS
        for setting, numbers in zip(settings, paper[label], strict=True)
    )


@dataclass(frozen=True)
class FigureTruth:
    """True values that a figure compares with: the coefficients, signals first, and those that fits should be near.

    The values of training and test rows share ``label`` and the ``limits`` of their axes. Not every model has a
    ``sigma``.
    """

    beta: Array
    signals: int
    train: Array
    test: Array
    label: str
    limits: tuple[float, float]
    sigma: float | None


@dataclass(frozen=True)
class SelectionStudy:
    """Methods to compare, data to compare them on, and their scores.

    Attributes:
        name: Name of the command.
        tables: Names of the files of the tables, the paper's first.
        figures: Names of the files of the figures.
        title: Title of the tables.
        methods: The rows; one of them has the key ``"default"``.
        scores: Columns of the table of all methods; their keys are those of the cells.
        differences: Columns of the table of paired differences.
        spec: Format of errors.
        pictured: Setting of the figure of posteriors.
        fit: Function that computes a cell; picklable, called as ``fit(cell, steps=steps)``.
        picture: Function that computes a chain of the figures, called in the same way: posteriors for the key of a
            method, latent variables along the chain for a ``latents_key``.
        truth: Function from the seed to the true values.
        notes: Sentences below the table of all methods.
    """

    name: str
    tables: tuple[str, str, str]
    figures: tuple[str, str]
    title: str
    methods: tuple[SelectionMethod, ...]
    scores: tuple[Column, ...]
    differences: tuple[Column, ...]
    spec: str
    pictured: PaperSetting
    fit: Callable[..., Record]
    picture: Callable[..., Record]
    truth: Callable[[int], FigureTruth]
    notes: tuple[str, ...]

    @property
    def settings(self) -> list[PaperSetting]:
        """The paper's settings, in its order."""
        return list(dict.fromkeys(method.setting for method in self.methods if method.setting is not None))

    def method(self, key: str) -> SelectionMethod:
        """Return the method with that key."""
        return next(method for method in self.methods if method.key == key)


@dataclass(frozen=True)
class SelectionPlan:
    """Size of a run: ``seeds`` data sets, on ``sgld_seeds`` of which the paper's methods run too.

    ``seed`` is that of the first data set. The first fifth of the ``steps`` of a chain is burn-in.
    """

    seed: int = 0
    seeds: int = 50
    sgld_seeds: int = 10
    steps: int = 60_000
    workers: int = 1

    def cells(self, study: SelectionStudy) -> list[Cell]:
        """Return all fits, without those that need a missing package."""
        return [
            Cell(method.key, self.seed + index)
            for method in study.methods
            if not method.missing
            for index in range(self.seeds if method.setting is None else self.sgld_seeds)
        ]

    def pictures(self, study: SelectionStudy) -> list[Cell]:
        """Return all chains of the figures, on the first data set."""
        posteriors = [method.key for method in study.methods if method.setting == study.pictured]
        return [Cell(key, self.seed) for key in [*posteriors, *(s.latents_key for s in study.settings)]]

    def stages(self, study: SelectionStudy) -> dict[str, int]:
        """Return the names of the parts and the number of cells in each."""
        return {FITS: len(self.cells(study)), CHAINS: len(self.pictures(study))}


@dataclass(frozen=True)
class SelectionResults:
    """Numbers of a study: all fits, and the chains of the figures."""

    study: SelectionStudy
    plan: SelectionPlan
    cells: CellFile
    pictures: CellFile

    @property
    def truth(self) -> FigureTruth:
        """True values of the data set of the figures."""
        return self.study.truth(self.plan.seed)

    def values(self, key: str, score: str) -> dict[int, float]:
        """Return a score of a method by seed, where it has one."""
        seeds = range(self.plan.seed, self.plan.seed + self.plan.seeds)
        records = {seed: self.cells[Cell(key, seed)] for seed in seeds if Cell(key, seed) in self.cells}
        return {seed: record[score] for seed, record in records.items() if record.get(score) is not None}

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
        """Return the posterior of one of the paper's methods in the figure's setting."""
        key = next(m.key for m in self.study.methods if m.label == label and m.setting == self.study.pictured)
        return self.pictures[Cell(key, self.plan.seed)]

    def latents(self, setting: PaperSetting) -> Record:
        """Return the latent variables of SGLD-SA along its chain."""
        return self.pictures[Cell(setting.latents_key, self.plan.seed)]


def run_study(
    study: SelectionStudy,
    out: Path,
    plan: SelectionPlan,
    progress: Callable[[str, int], None] = lambda stage, cells: None,
) -> SelectionResults:
    """Run the cells of a study that are not finished; finished ones are in two files in ``out``.

    ``progress`` is called with the stage and the number of cells finished since the last call.

    Raises:
        SettingsError: If ``out`` holds results of other settings.
    """
    cells, pictures = (CellFile.of_command(out / name, study.name, steps=plan.steps) for name in (CELLS, PICTURES))
    for stage, file, wanted, work in (
        (FITS, cells, plan.cells(study), study.fit),
        (CHAINS, pictures, plan.pictures(study), study.picture),
    ):
        work_cell, on_done = partial(work, steps=plan.steps), partial(progress, stage)
        run_cells(file, wanted, work_cell, workers=plan.workers, on_done=on_done)
    return SelectionResults(study, plan, cells, pictures)


def make_tables(results: SelectionResults) -> list[Table]:
    """Return the paper's table next to ours, all methods, and the default's paired differences from the others."""
    study = results.study
    others = [method for method in study.methods if method.key != DEFAULT]
    scores = {column: partial(results.estimate, score=column.key) for column in study.scores}
    differences = {column: partial(results.difference, score=column.key) for column in study.differences}
    count = {COUNT: results.count}
    notes = [*study.notes, *_gaps(results)]
    note = (
        f"{study.method(DEFAULT).label} minus the method of the row on the same data set, mean ± standard error: below "
        "0 is better for errors."
    )
    return [
        _paper_table(results),
        Table.build(f"{study.title}: all methods", study.methods, {**HEAD, **scores, **count}, notes),
        Table.build(f"{study.title}: paired differences", others, {**HEAD, **differences, **count}, [note]),
    ]


def _paper_table(results: SelectionResults) -> Table:
    study = results.study
    columns: dict[Column, Callable[[SelectionMethod], TableCell]] = {
        Column("paper_mae", "MAE, paper", study.spec): lambda method: method.paper and method.paper[0],
        Column("mae", "MAE, ours", study.spec): lambda method: results.estimate(method, "mae"),
        Column("paper_mse", "MSE, paper", study.spec): lambda method: method.paper and method.paper[1],
        Column("mse", "MSE, ours", study.spec): lambda method: results.estimate(method, "mse"),
        COUNT: results.count,
    }
    note = (
        f"Errors on 50 test rows. The paper has one data set for each column of its table; ours are means over data "
        f"sets ± standard error, with {results.plan.steps:,} steps for each chain (the paper: 500,000)."
    )
    rows = [method for method in study.methods if method.paper]
    return Table.build(f"{study.title}: the paper's table", rows, HEAD | columns, [note])


def _gaps(results: SelectionResults) -> list[str]:
    """Return notes on what is missing in the tables, and why."""
    missing = [method for method in results.study.methods if method.missing]
    notes = [
        f"{m.label} has no numbers because {m.package} is not installed: pip install {m.package}." for m in missing
    ]
    failures = [cell.method for cell, record in results.cells.records.items() if "failed" in record]
    return notes + [
        f"{method.label} ({method.setting}) diverged on {failures.count(method.key)} data sets, which are left out."
        for method in results.study.methods
        if method.key in failures
    ]
