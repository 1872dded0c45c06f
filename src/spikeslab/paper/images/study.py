"""Studies of MNIST and Fashion-MNIST: the runs behind table 2, and the search that chose our preset."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from operator import itemgetter
from pathlib import Path
from typing import Any

from torch import Tensor

from spikeslab.errors import ArgumentValueError
from spikeslab.files import read_record, write_record
from spikeslab.paper.images.data import Images
from spikeslab.paper.images.presets import ImagePreset, make_preset
from spikeslab.paper.images.runs import (
    HELD,
    HELD_OUT,
    ImageRun,
    Part,
    average_samples,
    predict_parts,
    read_predictions,
    run_images,
    train,
)
from spikeslab.paper.images.tables import (
    ImageRow,
    accuracy_table,
    difference_table,
    image_figures,
    make_rows,
    uncertainty_table,
)
from spikeslab.report.figures import save
from spikeslab.report.tables import Cell, Column, Provenance, Table, command_line
from spikeslab.training import CheckpointError, describe_classifier
from spikeslab.training.log import nan_to_null
from spikeslab.training.loop import FLOAT32


@dataclass(frozen=True)
class ImageStudy:
    """Runs of several methods, presets and seeds; ``run`` has the values that all of them share."""

    run: ImageRun
    methods: tuple[str, ...]
    presets: tuple[str, ...]
    seeds: tuple[int, ...]

    def rows(self) -> Iterator[list[ImageRun]]:
        """Yield the runs of each method and preset, over seeds."""
        for name in self.presets:
            preset = make_preset(name, self.run.dataset, augment=self.run.augment)
            for method in self.methods:
                yield [replace(self.run, method=method, preset=preset, seed=seed) for seed in self.seeds]

    @property
    def command(self) -> str:
        """Command that gives the same numbers."""
        return command_line(
            "reproduce",
            self.run.dataset,
            methods=self.methods,
            presets=self.presets,
            epochs=self.run.epochs,
            seed=self.seeds[0],
            seeds=len(self.seeds),
            augment=self.run.augment,
            held_out=None if self.run.held_out == HELD_OUT else self.run.held_out,
            precision=None if self.run.precision == FLOAT32 else self.run.precision,
        )

    @property
    def stem(self) -> str:
        """Beginning of the names of tables and figures."""
        return "augmented-" if self.run.augment else ""

    def run_all(self, out: Path, data: Images, foreign: Tensor) -> list[ImageRow]:
        """Do all runs in their folders below ``out``, or continue them."""
        found: list[ImageRow] = []
        for runs in self.rows():
            results = [run_images(run, out, data, foreign, command=self.command) for run in runs]
            predictions = [read_predictions(run.folder(out)) for run in runs]
            found += make_rows(runs[0].method, runs[0].preset.name, results, predictions)
        return found

    def write(self, rows: Sequence[ImageRow], labels: Tensor, out: Path) -> tuple[list[Table], list[Path]]:
        """Write the tables, and the figures of each preset; return the tables and the paths of all files."""
        dataset, epochs, augment = self.run.dataset, self.run.epochs, self.run.augment
        tables = {
            "accuracy": accuracy_table(dataset, rows, epochs, augment),
            "differences": difference_table(dataset, rows, labels),
            "uncertainty": uncertainty_table(dataset, rows, labels),
        }
        made = {name: table for name, table in tables.items() if table is not None}
        origin = Provenance(self.command, self.seeds[0])
        files = [path for name, table in made.items() for path in table.write(out / f"{self.stem}{name}", origin)]
        for preset in self.presets:
            about = f"{preset} settings, {epochs} epochs{', augmented images' if augment else ''}"
            figures = image_figures(dataset, [row for row in rows if row.preset == preset], labels, about)
            files += [save(figure, out / f"{self.stem}{preset}-{name}.png") for name, figure in figures.items()]
        return list(made.values()), files


TRIAL = "trial.json"
VARIED = (
    "batch_size", "lr", "sampling_lr", "crest_lr", "temperature", "v0", "v1", "weight_decay", "burn_in", "chains",
    "samples",
)  # fmt: skip
"""Values of the preset that a trial may change; its folder and its row name all of them."""


def change_preset(preset: ImagePreset, changes: Sequence[str]) -> ImagePreset:
    """Return a preset with values changed, each given as ``NAME=VALUE``."""
    values: dict[str, Any] = {}
    for change in changes:
        name, _, text = change.partition("=")
        if name not in VARIED:
            raise ArgumentValueError("set", f"must name one of {', '.join(VARIED)}", name)
        try:
            number = int if isinstance(getattr(preset, name), int) else float
            values[name] = None if text == "none" else number(text)
        except ValueError:
            raise ArgumentValueError("set", "must be NAME=VALUE with a number", change) from None
    return replace(preset, **values)


def run_trial(run: ImageRun, out: Path, data: Images) -> None:
    """Train, and write the metrics of the held-out images; a trial that is done is not repeated."""
    values = {name: getattr(run.preset, name) for name in VARIED}
    shown = "-".join(f"{name}{value}" for name, value in values.items())
    images = f"{run.dataset}{'-augmented' if run.augment else ''}"
    precision = "" if run.precision == FLOAT32 else f"-{run.precision}"
    folder = out / f"{images}{precision}-{shown}-{run.epochs}-seed{run.seed}"
    if (folder / TRIAL).exists():
        return
    networks = [train(chain, place, data) for chain, place in run.split(folder)]
    _, _, x_held, y_held = data.hold_out(run.held_out)
    predictions = average_samples(predict_parts(run, networks, {HELD: Part(x_held)}), HELD)
    record = {
        "dataset": images.replace("-", ", "),
        "epochs": run.epochs,
        "done": run.epochs,
        "seed": run.seed,
        "precision": run.precision,
        **values,
        **{kind: describe_classifier(each, y_held) for kind, each in predictions.items()},
    }
    write_record(folder / TRIAL, nan_to_null(record))


def search_table(out: Path) -> Table:
    """Return all trials below ``out``, the lowest NLL of the average first."""
    records = [read_record(path, CheckpointError) for path in out.glob(f"*/{TRIAL}")]
    heads = {"dataset": "images", "epochs": "epochs", "done": "of them done", "seed": "seed", "precision": "precision"}
    columns: dict[Column, Callable[[dict[str, Any]], Cell]] = {
        **{Column(name, title): itemgetter(name) for name, title in heads.items()},
        **{Column(name, name.replace("_", " "), "g"): itemgetter(name) for name in VARIED},
        Column("accuracy", "accuracy % of the average", ".2f"): lambda record: 100.0 * record["average"]["accuracy"],
        Column("nll", "NLL of the average", ".4f"): lambda record: record["average"]["nll"],
        Column("point", "accuracy % of the last weights", ".2f"): lambda record: 100.0 * record["point"]["accuracy"],
    }
    error, count = min(1.0 - record["average"]["accuracy"] for record in records), records[0]["average"]["rows"]
    note = (
        f"On the {count:,} held-out images; the standard error of the best accuracy is "
        f"{100.0 * (error * (1.0 - error) / count) ** 0.5:.1f} points. A trial that was stopped has the samples taken "
        "until then."
    )
    records.sort(key=lambda record: record["average"]["nll"])
    return Table.build("Trials of SGHMC-SA", records, columns, notes=[note])
