"""All runs of the CIFAR-10 experiment, and what is written of them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from spikeslab.datasets.images import Images
from spikeslab.experiments.cifar10_data import Dense
from spikeslab.experiments.cifar10_figures import Course, course_figure, sparsity_figure
from spikeslab.experiments.cifar10_paper import paper_table
from spikeslab.experiments.cifar10_recipes import PRESETS
from spikeslab.experiments.cifar10_runs import HELD_OUT, TEST, WEIGHTS, CifarRun, read_results, run_cifar10
from spikeslab.experiments.cifar10_tables import Row, accuracy_table, detail_table, group_rows
from spikeslab.report.figures import save
from spikeslab.report.tables import Run, Table
from spikeslab.training import MetricsLog
from spikeslab.training.folder import METRICS


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

    def command(self, start: str) -> str:
        """What to type to get the same numbers; ``start`` says where the dense network comes from."""
        sparsities = ",".join(f"{sparsity:g}" for sparsity in self.sparsities)
        words = [
            f"spikeslab reproduce cifar10 {start} --preset {self.preset} --methods {','.join(self.methods)}",
            f"--sparsities {sparsities} --epochs {self.epochs} --seed {self.seeds[0]} --seeds {len(self.seeds)}",
        ]
        recipe = PRESETS[self.preset]
        words += [f"--batch-size {self.batch_size}"] if self.batch_size != recipe.batch_size else []
        words += ["--erasing" if self.erasing else "--no-erasing"] if self.erasing != recipe.erasing else []
        words += [f"--held-out {self.held_out}"] if self.held_out else []
        words += ["--best-epoch"] if self.best_epoch else []
        words += [f"--structure {self.structure}"] if self.structure != WEIGHTS else []
        return " ".join([*words, *self._varied()])

    def _varied(self) -> Iterator[str]:
        """The options of the settings that differ from the recipe's."""
        values: dict[str, list[str]] = {}
        for changes in self.variants:
            for name, value in changes:
                text = ":".join(f"{part:g}" for part in value) if isinstance(value, tuple) else f"{value}"
                values.setdefault(name, [])
                values[name] += [] if text in values[name] else [text]
        for name, texts in values.items():
            yield f"--scope {texts[0]}" if name == "scope" else f"--set {name}={','.join(texts)}"


def run_plan(plan: CifarPlan, out: Path, data: Images, dense: Dense, command: str) -> list[dict[str, Any]]:
    """Do all runs, or go on with them."""
    return [run_cifar10(run, out, data, dense, command=command) for run in plan.runs()]


def write_results(out: Path, run: Run) -> tuple[list[Table], list[Path]]:
    """Write tables and figures of all runs below ``out`` that are done, whichever commands made them.

    Runs on held-out images have tables of their own, so that nobody takes one for the other. The paper's numbers are
    written too.

    Returns:
        Our tables, and the paths of all files.
    """
    results = read_results(out)
    tables: list[Table] = []
    files: list[Path] = []
    for part, stem in ((TEST, ""), (HELD_OUT, "held-out-")):
        rows = group_rows(results, part)
        if rows:
            made = {"accuracy": accuracy_table(rows, part), "details": detail_table(rows, part)}
            tables += made.values()
            files += [path for name, table in made.items() for path in table.write(out / f"{stem}{name}", run)]
            files.append(save(sparsity_figure(rows), out / f"{stem}accuracy.png"))
            files += [
                save(course_figure(courses), out / f"{stem}course-{sparsity:g}.png")
                for sparsity, courses in _courses(rows).items()
            ]
    files += paper_table().write(out / "paper", run)
    return tables, files


def _courses(rows: Sequence[Row]) -> dict[float, list[Course]]:
    """The logs of the first seed of every row, by sparsity."""
    found: dict[float, list[Course]] = {}
    for row in rows:
        records = MetricsLog(row.folders[0] / METRICS).read()
        found.setdefault(row.sparsity, []).append(Course(row.method, row.label, records))
    return found
