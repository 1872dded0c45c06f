"""Study of CIFAR-10: the runs behind table 3, and their tables and figures."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path
from typing import Any

from spikeslab.compression.compress import STRUCTURES, WEIGHTS
from spikeslab.errors import NonFiniteError, check_choice
from spikeslab.paper.cifar10.data import Dense
from spikeslab.paper.cifar10.figures import Course, course_figure, sparsity_figure
from spikeslab.paper.cifar10.presets import PRESETS, check_method
from spikeslab.paper.cifar10.runs import (
    HELD_OUT,
    TEST,
    TRAINING_IMAGES,
    CifarRun,
    check_run,
    format_value,
    read_results,
    run_cifar10,
)
from spikeslab.paper.cifar10.tables import (
    CifarRow,
    accuracy_table,
    detail_table,
    file_table,
    group_rows,
    paper_table,
    select_table3,
    table3,
)
from spikeslab.paper.images.data import Images
from spikeslab.report.figures import save
from spikeslab.report.tables import Provenance, Table, command_line
from spikeslab.training import MetricsLog
from spikeslab.training.run_folder import METRICS_FILE

STEMS = {TEST: "", HELD_OUT: "held-out-"}
ACCURACY, DETAILS, FILES, PAPER, COURSE = "accuracy", "details", "files", "paper", "course"
TABLE3 = "table3"
TABLES = [f"{stem}{name}" for stem in STEMS.values() for name in (ACCURACY, DETAILS, FILES, PAPER, TABLE3)]
"""Names of all tables."""


@dataclass(frozen=True)
class CifarStudy:
    """Runs of several methods, sparsities, settings and seeds; ``run`` has the values that all of them share.

    Each of the ``variants``, which are settings in place of the preset's, runs all methods.
    """

    run: CifarRun
    methods: tuple[str, ...]
    sparsities: tuple[float, ...]
    seeds: tuple[int, ...]
    variants: tuple[tuple[tuple[str, Any], ...], ...] = ((),)

    def runs(self) -> Iterator[CifarRun]:
        """Yield all runs, those of the first seed first."""
        for seed, sparsity, changes, method in product(self.seeds, self.sparsities, self.variants, self.methods):
            yield replace(self.run, method=method, sparsity=sparsity, changes=changes, seed=seed)

    def check(self) -> None:
        """Raise if a run is impossible, by preparing those of the first seed, which takes a while."""
        for run in replace(self, seeds=self.seeds[:1]).runs():
            check_run(run)

    def command(self, start: Mapping[str, object], threads: int | None = None) -> str:
        """Return the command that gives the same numbers; ``start`` has the options of the dense network."""
        run, preset = self.run, PRESETS[self.run.preset]
        values: dict[str, dict[str, None]] = {}
        for name, value in (change for changes in self.variants for change in changes):
            text = format_value(value) if isinstance(value, (tuple, bool)) else f"{value}"
            values.setdefault(name, {})[text] = None
        scope = values.pop("scope", None)
        return command_line(
            "reproduce",
            "cifar10",
            **start,
            preset=run.preset,
            methods=self.methods,
            sparsities=tuple(f"{sparsity:g}" for sparsity in self.sparsities),
            epochs=run.epochs,
            seed=self.seeds[0],
            seeds=len(self.seeds),
            batch_size=None if run.batch_size == preset.batch_size else run.batch_size,
            erasing=run.erasing and not preset.erasing,
            no_erasing=preset.erasing and not run.erasing,
            held_out=run.held_out or None,
            best_epoch=run.best_epoch,
            structure=None if run.structure == WEIGHTS else run.structure,
            scope=None if scope is None else list(scope),
            set=[f"{name}={','.join(texts)}" for name, texts in values.items()],
            threads=threads,
        )


def make_study(
    preset: str,
    *,
    methods: Sequence[str] | None,
    sparsities: Iterable[float],
    seeds: Iterable[int],
    variants: tuple[tuple[tuple[str, Any], ...], ...] = ((),),
    epochs: int | None = None,
    batch_size: int | None = None,
    erasing: bool | None = None,
    structure: str = WEIGHTS,
    **more: Any,
) -> CifarStudy:
    """Return a study with the preset's values for all that is ``None``; ``more`` are attributes of ``CifarRun``."""
    own = PRESETS[check_choice("preset", preset, PRESETS)]
    names = tuple(dict.fromkeys(check_method(name.strip()) for name in methods or own.methods))
    shares = tuple(dict.fromkeys(sparsities))
    run = CifarRun(
        names[0],
        shares[0],
        preset,
        epochs or own.epochs,
        batch_size or own.batch_size,
        own.erasing if erasing is None else erasing,
        structure=check_choice("structure", structure, STRUCTURES),
        **more,
    )
    study = CifarStudy(run, names, shares, tuple(seeds), variants)
    for run in study.runs():
        run.settings(TRAINING_IMAGES)
    return study


def run_study(
    study: CifarStudy,
    out: Path,
    data: Images,
    dense: Dense,
    command: str,
    warn: Callable[[str], None] = print,
    report: bool = True,
) -> list[str]:
    """Do all runs, or continue them, write the tables after each, and return the names of runs that failed.

    A run whose numbers become infinite does not stop the others: ``warn`` is called with a sentence about it.
    """
    failed = []
    for run in study.runs():
        try:
            run_cifar10(run, out, data, dense, command=command, report=report)
        except NonFiniteError as error:
            failed.append(run.name)
            warn(f"{run.name} failed, and the others go on: {error}")
        else:
            write_tables(out)
    return failed


def figure_names(out: Path) -> list[str]:
    """Return the names of figures that :func:`write_figures` may replace in ``out``."""
    return [*(f"{stem}{ACCURACY}" for stem in STEMS.values()), *(path.stem for path in out.glob(f"*{COURSE}-*.png"))]


def write_tables(out: Path) -> tuple[list[Table], list[Path]]:
    """Write the paper's table and those of all finished runs below ``out``; return ours and the paths of all files.

    Runs on held-out images have tables of their own.
    """
    tables: list[Table] = []
    files: list[Path] = []
    for part, stem, rows in _parts(out):
        for name, make in ((ACCURACY, accuracy_table), (DETAILS, detail_table), (FILES, file_table)):
            tables.append(make(rows, part))
            files += tables[-1].write(out / f"{stem}{name}", _provenance(rows))
        files += paper_table().write(out / PAPER, _provenance(rows))
        repeated = select_table3(rows) if part == TEST else []
        if repeated:
            tables.append(table3(repeated))
            files += tables[-1].write(out / TABLE3, _provenance(repeated))
    return tables, list(dict.fromkeys(files))


def write_figures(out: Path) -> list[Path]:
    """Draw all finished runs below ``out`` and return the paths of the figures."""
    files: list[Path] = []
    for _, stem, rows in _parts(out):
        of_weights = [row for row in rows if row.of_weights]  # a share of channels is no share of the network
        files += [save(sparsity_figure(of_weights), out / f"{stem}{ACCURACY}.png")] if of_weights else []
        for sparsity in dict.fromkeys(row.sparsity for row in rows):
            own = [row for row in rows if row.sparsity == sparsity]  # the logs are those of the first seed
            courses = [Course(row.method, row.label, MetricsLog(row.folders[0] / METRICS_FILE).read()) for row in own]
            files.append(save(course_figure(courses), out / f"{stem}{COURSE}-{sparsity:g}.png"))
    return files


def _parts(out: Path) -> Iterator[tuple[str, str, list[CifarRow]]]:
    """Yield each part of the data that runs were evaluated on, the beginning of its file names, and its rows."""
    results = read_results(out)
    for part, stem in STEMS.items():
        rows = group_rows(results, part)
        if rows:
            yield part, stem, rows


def _provenance(rows: Sequence[CifarRow]) -> Provenance:
    """Return all commands of the rows, a line for each."""
    results = [result for row in rows for result in row.results]
    commands = dict.fromkeys(result["command"] for result in results)
    return Provenance("\n".join(commands), min(result["seed"] for result in results))
