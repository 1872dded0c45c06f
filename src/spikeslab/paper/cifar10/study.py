"""All runs of the CIFAR-10 experiment, and what is written of them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from spikeslab.compression.harness import WEIGHTS
from spikeslab.errors import NonFiniteError
from spikeslab.paper.cifar10.data import Dense
from spikeslab.paper.cifar10.figures import Course, course_figure, sparsity_figure
from spikeslab.paper.cifar10.presets import PRESETS
from spikeslab.paper.cifar10.published import paper_table
from spikeslab.paper.cifar10.runs import HELD_OUT, TEST, CifarRun, read_results, run_cifar10, shown
from spikeslab.paper.cifar10.table3 import rows_of_table3, table3
from spikeslab.paper.cifar10.tables import Row, accuracy_table, detail_table, file_table, group_rows
from spikeslab.paper.images.data import Images
from spikeslab.report.figures import save
from spikeslab.report.tables import Provenance, Table, command_line
from spikeslab.training import MetricsLog
from spikeslab.training.folder import METRICS

STEMS = {TEST: "", HELD_OUT: "held-out-"}
ACCURACY, DETAILS, FILES, PAPER, COURSE = "accuracy", "details", "files", "paper", "course"
TABLE3 = "table3"


@dataclass(frozen=True)
class CifarPlan:
    """What is run.

    Attributes:
        preset: Name of the recipe.
        methods: Methods, with the strength of a fixed penalty after a colon.
        sparsities: Shares of zeros in the whole network.
        epochs: Epochs of each run.
        seeds: Seeds.
        batch_size: Images in a mini-batch.
        erasing: Whether rectangles of training images are erased.
        variants: Settings in place of the recipe's; each of these runs all methods.
        held_out: Training images that are held out, and judged in place of the test images.
        best_epoch: Whether the test images are judged after every epoch.
        structure: Whether single weights or whole channels become zero.
    """

    preset: str
    methods: tuple[str, ...]
    sparsities: tuple[float, ...]
    epochs: int
    seeds: tuple[int, ...]
    batch_size: int
    erasing: bool
    variants: tuple[tuple[tuple[str, Any], ...], ...] = ((),)
    held_out: int = 0
    best_epoch: bool = False
    structure: str = WEIGHTS

    def runs(self) -> Iterator[CifarRun]:
        """All runs, those of the first seed first."""
        for seed in self.seeds:
            for sparsity in self.sparsities:
                for changes in self.variants:
                    for method in self.methods:
                        yield CifarRun(
                            method=method,
                            sparsity=sparsity,
                            preset=self.preset,
                            epochs=self.epochs,
                            batch_size=self.batch_size,
                            erasing=self.erasing,
                            changes=changes,
                            seed=seed,
                            held_out=self.held_out,
                            best_epoch=self.best_epoch,
                            structure=self.structure,
                        )

    def command(self, start: Mapping[str, object], threads: int | None = None) -> str:
        """Return the command that gives the same numbers; ``start`` has the options of the dense network."""
        preset = PRESETS[self.preset]
        values: dict[str, list[str]] = {}
        for name, value in (change for changes in self.variants for change in changes):
            text = shown(value) if isinstance(value, (tuple, bool)) else f"{value}"
            values.setdefault(name, [])
            values[name] += [] if text in values[name] else [text]
        scope = values.pop("scope", None)
        return command_line(
            "reproduce",
            "cifar10",
            **start,
            preset=self.preset,
            methods=self.methods,
            sparsities=tuple(f"{sparsity:g}" for sparsity in self.sparsities),
            epochs=self.epochs,
            seed=self.seeds[0],
            seeds=len(self.seeds),
            batch_size=None if self.batch_size == preset.batch_size else self.batch_size,
            erasing=self.erasing and not preset.erasing,
            no_erasing=preset.erasing and not self.erasing,
            held_out=self.held_out or None,
            best_epoch=self.best_epoch,
            structure=None if self.structure == WEIGHTS else self.structure,
            scope=scope,
            set=[f"{name}={','.join(texts)}" for name, texts in values.items()],
            threads=threads,
        )


def run_plan(
    plan: CifarPlan,
    out: Path,
    data: Images,
    dense: Dense,
    command: str,
    failed: Callable[[CifarRun, NonFiniteError], None],
) -> None:
    """Do all runs, or go on with them, and write the tables after each.

    A run whose numbers become infinite does not stop the others: ``failed`` is told of it.
    """
    for run in plan.runs():
        try:
            run_cifar10(run, out, data, dense, command=command)
        except NonFiniteError as error:
            failed(run, error)
        else:
            write_tables(out)


def write_tables(out: Path) -> tuple[list[Table], list[Path]]:
    """Write tables of all runs below ``out`` that are done, each with the commands that made it, and the paper's.

    Runs on held-out images have tables of their own, so that nobody takes one for the other.

    Returns:
        Our tables, and the paths of all files.
    """
    tables: list[Table] = []
    files: list[Path] = []
    for part, stem, rows in _parts(out):
        made = {
            ACCURACY: accuracy_table(rows, part),
            DETAILS: detail_table(rows, part),
            FILES: file_table(rows, part),
        }
        tables += made.values()
        files += [path for name, table in made.items() for path in table.write(out / f"{stem}{name}", _made(rows))]
        files += paper_table().write(out / PAPER, _made(rows))
        repeated = rows_of_table3(rows) if part == TEST else []
        if repeated:
            tables.append(table3(repeated))
            files += tables[-1].write(out / TABLE3, _made(repeated))
    return tables, list(dict.fromkeys(files))


def write_figures(out: Path) -> list[Path]:
    """Draw all runs below ``out`` that are done; returns the paths."""
    files: list[Path] = []
    for _, stem, rows in _parts(out):
        of_weights = [row for row in rows if row.of_weights]  # a share of channels is no share of the network
        files += [save(sparsity_figure(of_weights), out / f"{stem}{ACCURACY}.png")] if of_weights else []
        files += [
            save(course_figure(courses), out / f"{stem}{COURSE}-{sparsity:g}.png")
            for sparsity, courses in _courses(rows).items()
        ]
    return files


def _parts(out: Path) -> Iterator[tuple[str, str, list[Row]]]:
    """The parts of the data that runs were judged on, how the names of their files begin, and the rows."""
    results = read_results(out)
    for part, stem in STEMS.items():
        rows = group_rows(results, part)
        if rows:
            yield part, stem, rows


def _made(rows: Sequence[Row]) -> Provenance:
    """How rows came about: all of their commands, one after the other as in a shell."""
    results = [result for row in rows for result in row.results]
    commands = dict.fromkeys(result["command"] for result in results)
    return Provenance("\n".join(commands), min(result["seed"] for result in results))


def _courses(rows: Sequence[Row]) -> dict[float, list[Course]]:
    """The logs of the first seed of every row, by sparsity."""
    found: dict[float, list[Course]] = {}
    for row in rows:
        records = MetricsLog(row.folders[0] / METRICS).read()
        found.setdefault(row.sparsity, []).append(Course(row.method, row.label, records))
    return found
