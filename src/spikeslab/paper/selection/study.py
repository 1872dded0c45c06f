"""A simulation study: methods by data sets, their means and standard errors, and differences paired by data set."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from spikeslab.paper.cells import Cell, CellFile, Record, run_cells
from spikeslab.paper.packages import is_installed
from spikeslab.report.tables import Column, Estimate, Table

Array: TypeAlias = NDArray[np.floating]
Progress: TypeAlias = Callable[[str, int], None]

SGLD_METHODS = ("SGLD-SA", "SGLD-EM", "SGLD")
DEFAULT = "default"
CELLS, PICTURES = "cells.jsonl", "pictures.jsonl"
FITS, CHAINS = "Fits", "Chains of the figures"
LATENTS = "latents"


class Setting(NamedTuple):
    """What the paper varies: the scale of the spike and the initial sigma."""

    v0: float
    sigma: float

    def __str__(self) -> str:
        return f"v0 = {self.v0:g}, σ = {self.sigma:g}"


@dataclass(frozen=True)
class Method:
    """A row of the tables.

    Attributes:
        key: Name in the file of cells.
        label: Name in the tables.
        setting: Of the paper's methods; ``None`` for all others.
        paper: The paper's MAE and MSE.
        package: What must be installed.
    """

    key: str
    label: str
    setting: Setting | None = None
    paper: tuple[float, float] | None = None
    package: str | None = None

    @property
    def missing(self) -> bool:
        """Whether the package it needs is not installed."""
        return self.package is not None and not is_installed(self.package)


def paper_methods(
    settings: Sequence[Setting], paper: Mapping[str, Sequence[tuple[float, float]]]
) -> tuple[Method, ...]:
    """SGLD-SA, SGLD-EM and SGLD at each of the paper's settings, with its MAE and MSE."""
    return tuple(
        Method(f"{label} {setting.v0:g} {setting.sigma:g}", label, setting, numbers)
        for label in SGLD_METHODS
        for setting, numbers in zip(settings, paper[label], strict=True)
    )


def latents_key(setting: Setting) -> str:
    """Name of the chain that shows how the latent variables converge."""
    return f"{LATENTS} {setting.v0:g} {setting.sigma:g}"


@dataclass(frozen=True)
class Truth:
    """What a figure compares with.

    Attributes:
        beta: True coefficients, the signals first.
        signals: Number of signals.
        train: What fits of training rows should be near to.
        test: The same of test rows.
        label: What both are.
        limits: Of the axes on which they are drawn.
        sigma: True sigma, if there is one.
    """

    beta: Array
    signals: int
    train: Array
    test: Array
    label: str
    limits: tuple[float, float]
    sigma: float | None


@dataclass(frozen=True)
class Study:
    """What is compared, on what, and by which numbers.

    Attributes:
        name: Name of the command.
        paper: Names, for files, of the paper's table and of its figure.
        title: What the tables are about.
        methods: The rows; one of them has the key ``"default"``.
        scores: Columns of the table of all methods; their keys are those of the cells.
        differences: Columns of the table of paired differences.
        spec: Format of errors.
        pictured: The setting of the figure of posteriors.
        fit: Makes a cell; picklable, called as ``fit(cell, steps=steps)``.
        picture: Makes what a figure shows, called in the same way: posteriors for the key of a method, and the
            latent variables along a chain for that of ``latents_key``.
        truth: What the figures compare with, by seed.
        notes: Sentences below the table of all methods.
    """

    name: str
    paper: tuple[str, str]
    title: str
    methods: tuple[Method, ...]
    scores: tuple[Column, ...]
    differences: tuple[Column, ...]
    spec: str
    pictured: Setting
    fit: Callable[..., Record]
    picture: Callable[..., Record]
    truth: Callable[[int], Truth]
    notes: tuple[str, ...]

    @property
    def settings(self) -> list[Setting]:
        """The paper's settings, in its order."""
        return list(dict.fromkeys(method.setting for method in self.methods if method.setting is not None))

    def method(self, key: str) -> Method:
        """The method of that key."""
        return next(method for method in self.methods if method.key == key)


@dataclass(frozen=True)
class Plan:
    """How much of a study to do.

    Attributes:
        seed: Seed of the first data set; the others follow.
        seeds: Data sets.
        sgld_seeds: The first so many of them are also for the paper's methods; at most ``seeds``.
        steps: Steps of each of their chains, of which the first fifth is burn-in.
        workers: Processes.
    """

    seed: int = 0
    seeds: int = 50
    sgld_seeds: int = 10
    steps: int = 60_000
    workers: int = 1

    def cells(self, study: Study) -> list[Cell]:
        """All fits, without those that need a missing package."""
        first = range(self.seed, self.seed + self.sgld_seeds)
        every = range(self.seed, self.seed + self.seeds)
        return [
            Cell(method.key, seed)
            for method in study.methods
            if not method.missing
            for seed in (every if method.setting is None else first)
        ]

    def pictures(self, study: Study) -> list[Cell]:
        """All chains of the figures, on the first data set."""
        posteriors = [m.key for m in study.methods if m.setting == study.pictured]
        return [Cell(key, self.seed) for key in [*posteriors, *(latents_key(s) for s in study.settings)]]

    def stages(self, study: Study) -> dict[str, int]:
        """Names of the parts and the number of cells in each."""
        return {FITS: len(self.cells(study)), CHAINS: len(self.pictures(study))}


@dataclass(frozen=True)
class Outcome:
    """The numbers of a study.

    Attributes:
        study: The study.
        plan: How much of it was done.
        cells: All fits.
        pictures: What the figures show.
    """

    study: Study
    plan: Plan
    cells: CellFile
    pictures: CellFile

    @property
    def truth(self) -> Truth:
        """Behind the data set of the figures."""
        return self.study.truth(self.plan.seed)

    def values(self, key: str, score: str) -> dict[int, float]:
        """A score of a method by seed, where it has one."""
        seeds = range(self.plan.seed, self.plan.seed + self.plan.seeds)
        records = {seed: self.cells[Cell(key, seed)] for seed in seeds if Cell(key, seed) in self.cells}
        return {seed: record[score] for seed, record in records.items() if record.get(score) is not None}

    def difference(self, key: str, score: str) -> Estimate | None:
        """Mean of the default's score minus that of another method, over the data sets of both."""
        ours, theirs = self.values(DEFAULT, score), self.values(key, score)
        paired = [ours[seed] - theirs[seed] for seed in ours if seed in theirs]
        return Estimate.of(paired) if paired else None

    def posterior(self, label: str) -> Record:
        """What the figure of posteriors shows of one of the paper's methods."""
        key = next(m.key for m in self.study.methods if m.label == label and m.setting == self.study.pictured)
        return self.pictures[Cell(key, self.plan.seed)]

    def latents(self, setting: Setting) -> Record:
        """The latent variables of SGLD-SA along its chain."""
        return self.pictures[Cell(latents_key(setting), self.plan.seed)]


def run_study(study: Study, out: Path, plan: Plan, progress: Progress = lambda stage, steps: None) -> Outcome:
    """Do what is not yet done of a study; finished parts are in two files in ``out``.

    Args:
        study: The study.
        out: Folder of the files.
        plan: How much to do.
        progress: Called with the stage and the number of cells done since the last call.

    Raises:
        SettingsError: If ``out`` holds results of other settings.
    """
    settings: dict[str, str | int] = {
        "spikeslab reproduce": study.name,
        "--steps": plan.steps,
        "version": version("spikeslab"),
    }
    cells, pictures = (CellFile(out / name, settings) for name in (CELLS, PICTURES))
    for stage, file, wanted, work in (
        (FITS, cells, plan.cells(study), study.fit),
        (CHAINS, pictures, plan.pictures(study), study.picture),
    ):
        progress(stage, sum(cell in file for cell in wanted))
        one_more = partial(_advance, progress, stage)
        run_cells(file, wanted, partial(work, steps=plan.steps), workers=plan.workers, on_done=one_more)
    return Outcome(study, plan, cells, pictures)


def _advance(progress: Progress, stage: str, cell: Cell) -> None:
    progress(stage, 1)


def study_tables(outcome: Outcome) -> list[Table]:
    """The paper's table with ours beside it, all methods, and the default's paired differences from the others."""
    return [_paper_table(outcome), _methods_table(outcome), _differences_table(outcome)]


def _paper_table(outcome: Outcome) -> Table:
    rows = [
        {
            **_names(method),
            "paper_mae": method.paper[0],
            "mae": _estimate(outcome, method.key, "mae"),
            "paper_mse": method.paper[1],
            "mse": _estimate(outcome, method.key, "mse"),
            "count": len(outcome.values(method.key, "mae")),
        }
        for method in outcome.study.methods
        if method.paper is not None
    ]
    columns = [
        *_name_columns(),
        Column("paper_mae", "MAE, paper", outcome.study.spec),
        Column("mae", "MAE, ours", outcome.study.spec),
        Column("paper_mse", "MSE, paper", outcome.study.spec),
        Column("mse", "MSE, ours", outcome.study.spec),
        Column("count", "data sets"),
    ]
    note = (
        f"Errors on 50 test rows. The paper has one data set for each column of its table; ours are means over data "
        f"sets ± standard error, with {outcome.plan.steps:,} steps for each chain (the paper: 500,000)."
    )
    return Table(f"{outcome.study.title}: the paper's table", columns, rows, [note])


def _methods_table(outcome: Outcome) -> Table:
    scores = outcome.study.scores
    rows = [
        {
            **_names(method),
            **{score.key: _estimate(outcome, method.key, score.key) for score in scores},
            "count": len(outcome.values(method.key, "mae")),
        }
        for method in outcome.study.methods
    ]
    columns = [*_name_columns(), *scores, Column("count", "data sets")]
    return Table(f"{outcome.study.title}: all methods", columns, rows, [*outcome.study.notes, *_gaps(outcome)])


def _differences_table(outcome: Outcome) -> Table:
    scores = outcome.study.differences
    rows = [
        {
            **_names(method),
            **{score.key: outcome.difference(method.key, score.key) for score in scores},
            "count": len(outcome.values(method.key, "mae")),
        }
        for method in outcome.study.methods
        if method.key != DEFAULT
    ]
    columns = [*_name_columns(), *scores, Column("count", "data sets")]
    ours = outcome.study.method(DEFAULT).label
    note = (
        f"{ours} minus the method of the row on the same data set, mean ± standard error: below 0 is better for errors."
    )
    return Table(f"{outcome.study.title}: paired differences", columns, rows, [note])


def _name_columns() -> list[Column]:
    return [Column("method", "Method"), Column("v0", "v0", "g"), Column("sigma0", "σ at start", "g")]


def _names(method: Method) -> dict[str, str | float | None]:
    v0, sigma = method.setting if method.setting is not None else (None, None)
    return {"method": method.label, "v0": v0, "sigma0": sigma}


def _estimate(outcome: Outcome, key: str, score: str) -> Estimate | None:
    values = list(outcome.values(key, score).values())
    return Estimate.of(values) if values else None


def _gaps(outcome: Outcome) -> list[str]:
    """What is not in the tables, and why."""
    missing = [m for m in outcome.study.methods if m.missing]
    notes = [
        f"{m.label} has no numbers because {m.package} is not installed: pip install {m.package}." for m in missing
    ]
    for method in outcome.study.methods:
        failed = [
            seed for (key, seed), record in outcome.cells.records.items() if key == method.key and "failed" in record
        ]
        if failed:
            notes.append(f"{method.label} ({method.setting}) diverged on {len(failed)} data sets, which are left out.")
    return notes
