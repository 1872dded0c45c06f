"""Studies of MNIST and Fashion-MNIST: the runs behind table 2, and the search that chose our preset."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, fields, replace
from functools import partial
from operator import itemgetter
from pathlib import Path
from typing import Any

from torch import Tensor

from spikeslab.errors import ArgumentValueError
from spikeslab.files import read_record, write_record
from spikeslab.paper.grid import run_parallel
from spikeslab.paper.images.presets import ImagePreset, make_preset
from spikeslab.paper.images.runs import (
    AVERAGE,
    ENSEMBLE,
    HELD,
    HELD_OUT,
    LAYER,
    OTHER,
    POINT,
    ImageRun,
    Part,
    finish,
    load_foreign,
    load_images,
    predict_parts,
    read_chain,
    read_predictions,
    read_run,
    stack_kinds,
    train,
)
from spikeslab.paper.images.tables import (
    ImageRow,
    accuracy_table,
    difference_table,
    image_figures,
    make_rows,
    prior_figure,
    prior_table,
    uncertainty_table,
)
from spikeslab.report.figures import save
from spikeslab.report.progress import Progress
from spikeslab.report.tables import Cell, Column, Provenance, Table, command_line
from spikeslab.training import CheckpointError, MetricsLog, describe_classifier
from spikeslab.training.log import nan_to_null
from spikeslab.training.loop import FLOAT32
from spikeslab.training.run_folder import METRICS_FILE


@dataclass(frozen=True)
class ImageStudy:
    """Runs of several methods, presets and seeds; ``run`` has the values that all of them share.

    Attributes:
        run: Run with the data set, augmentation, first seed, held-out images and precision of all.
        methods: Methods.
        presets: Names of presets.
        seeds: Number of runs of each method; one for a method that is not named.
        changes: Values that replace those of every preset: its epochs and chains.
        foreign: Names of the data sets whose test images are foreign.
    """

    run: ImageRun
    methods: tuple[str, ...]
    presets: tuple[str, ...]
    seeds: Mapping[str, int]
    changes: Mapping[str, Any]
    foreign: tuple[str, ...]

    def rows(self) -> Iterator[list[ImageRun]]:
        """Yield the runs of each method and preset, over seeds."""
        for name in self.presets:
            made = replace(make_preset(name, self.run.dataset, augment=self.run.augment), **self.changes)
            for method in self.methods:
                seeds = range(self.run.seed, self.run.seed + self.seeds.get(method, 1))
                yield [replace(self.run, method=method, preset=made, seed=seed) for seed in seeds]

    @property
    def command(self) -> str:
        """Command that gives the same numbers."""
        run = self.run
        counts = {method: self.seeds[method] for method in self.methods if self.seeds.get(method, 1) > 1}
        return command_line(
            "reproduce",
            run.dataset,
            methods=self.methods,
            presets=self.presets,
            **self.changes,
            seed=run.seed,
            seeds=tuple(f"{method}={count}" for method, count in counts.items()) or None,
            augment=run.augment,
            held_out=None if run.held_out == HELD_OUT else run.held_out,
            precision=None if run.precision == FLOAT32 else run.precision,
            foreign=None if self.foreign == (OTHER[run.dataset], "cifar10") else self.foreign,
        )

    @property
    def stem(self) -> str:
        """Beginning of the names of tables and figures."""
        return "augmented-" if self.run.augment else ""

    def run_all(self, out: Path, data_dir: Path | None, workers: int) -> list[ImageRow]:
        """Train all chains in their folders below ``out``, or continue them, and predict with those of each run.

        ``workers`` processes work side by side, each on one thread.
        """
        rows = list(self.rows())
        todo = [run for runs in rows for run in runs if read_run(run, run.folder(out)) is None]
        chains = [chain for run in todo for chain in run.split(run.folder(out))]
        _work("chains", chains, partial(train_chain, data_dir, self.command), workers)
        _work("predictions", todo, partial(finish_run, out, data_dir, self.foreign), workers)
        found: list[ImageRow] = []
        for runs in rows:
            results = [result for run in runs if (result := read_run(run, run.folder(out))) is not None]
            predictions = [read_predictions(run.folder(out)) for run in runs]
            found += make_rows(runs[0].method, runs[0].preset.name, results, predictions)
        return found

    def write(self, rows: Sequence[ImageRow], labels: Tensor, out: Path) -> tuple[list[Table], list[Path]]:
        """Write the tables, and the figures of each preset; return the tables and the paths of all files."""
        dataset, augment = self.run.dataset, self.run.augment
        tables = {
            "accuracy": accuracy_table(dataset, rows, augment),
            "differences": difference_table(dataset, rows, labels),
            "uncertainty": uncertainty_table(dataset, rows, labels),
            "prior": prior_table(dataset, rows, labels),
        }
        made = {name: table for name, table in tables.items() if table is not None}
        origin = Provenance(self.command, self.run.seed)
        files = [path for name, table in made.items() for path in table.write(out / f"{self.stem}{name}", origin)]
        for preset in self.presets:
            about = f"{preset} preset{', augmented images' if augment else ''}"
            figures = image_figures(dataset, [row for row in rows if row.preset == preset], labels, about)
            traces = [trace for runs in self.rows() for run in runs for trace in read_traces(run, out, preset)]
            if traces:
                figures["prior"] = prior_figure(traces, f"{dataset}, {about}: the prior of fc1 in SGHMC-SA")
            files += [save(figure, out / f"{self.stem}{preset}-{name}.png") for name, figure in figures.items()]
        return list(made.values()), files


def parse_seeds(text: str, methods: Sequence[str]) -> dict[str, int]:
    """Return the number of runs of each method, from a number for all or from ``METHOD=NUMBER,...``.

    >>> parse_seeds("sghmc=3,sghmc-sa=2", ("vanilla", "sghmc", "sghmc-sa"))
    {'sghmc': 3, 'sghmc-sa': 2}
    """
    pairs = [part.split("=") for part in text.split(",")] if "=" in text else [[method, text] for method in methods]
    if not all(len(pair) == 2 and pair[0] in methods and re.fullmatch("[1-9][0-9]{0,3}", pair[1]) for pair in pairs):
        raise ArgumentValueError("seeds", "must be an integer from 1 to 9,999, or METHOD=NUMBER with commas", text)
    return {method: int(number) for method, number in pairs}


def train_chain(data_dir: Path | None, command: str, chain: tuple[ImageRun, Path]) -> None:
    """Train one chain in its folder, with images from the files."""
    run, folder = chain
    train(run, folder, load_images(run.dataset, data_dir), command=command)


def finish_run(out: Path, data_dir: Path | None, foreign: Sequence[str], run: ImageRun) -> None:
    """Predict with the finished chains of a run, with images from the files."""
    finish(run, out, load_images(run.dataset, data_dir), load_foreign(foreign, data_dir))


def _work(stage: str, items: Sequence[Any], work: Callable[[Any], None], workers: int) -> None:
    """Do the work of all items; several workers share one progress bar, and one shows its own."""
    with ExitStack() as stack:
        bar = stack.enter_context(Progress({stage: len(items)}, unit=stage)) if min(workers, len(items)) > 1 else None
        for _ in run_parallel(items, work, workers):
            if bar is not None:
                bar.advance(stage)


def read_traces(run: ImageRun, out: Path, preset: str) -> list[list[dict[str, Any]]]:
    """Return the logged prior of each chain of SGHMC-SA with a preset, epoch by epoch."""
    if run.method != "sghmc-sa" or run.preset.name != preset:
        return []
    logs = [MetricsLog(place / METRICS_FILE).read() for _, place in run.split(run.folder(out))]
    return [
        [{"epoch": each["epoch"], "delta": each["delta"][LAYER], **each["prior"]} for each in log if "prior" in each]
        for log in logs
    ]


TRIAL = "trial.json"
VARIED = tuple(field.name for field in fields(ImagePreset) if field.name != "name")
"""Values of a preset that a trial may change."""


def change_preset(preset: ImagePreset, changes: Sequence[str]) -> ImagePreset:
    """Return a preset with values changed, each given as ``NAME=VALUE``; 0 and 1 are False and True."""
    types = {field.name: str(field.type) for field in fields(ImagePreset)}
    values: dict[str, Any] = {}
    for change in changes:
        name, _, text = change.partition("=")
        if name not in VARIED:
            raise ArgumentValueError("set", f"must name one of {', '.join(VARIED)}", name)
        kind = types[name]
        try:
            if text == "none" and kind.endswith("None"):
                values[name] = None
            elif kind == "bool":
                values[name] = {"0": False, "1": True}[text]
            else:
                values[name] = int(text) if kind.startswith("int") else float(text)
        except (ValueError, KeyError):
            raise ArgumentValueError("set", "must be NAME=VALUE with a number", change) from None
    return replace(preset, **values)


def run_trial(run: ImageRun, out: Path, *, data_dir: Path | None = None, workers: int = 1) -> None:
    """Train, and write the metrics of the held-out images; a trial that is done is not repeated."""
    usual = asdict(make_preset(run.preset.name, run.dataset, augment=run.augment))
    changed = {name: value for name, value in asdict(run.preset).items() if value != usual[name]}
    images = f"{run.dataset}{'-augmented' if run.augment else ''}"
    words = [images, run.precision, run.name, *(f"{name}{value}" for name, value in changed.items())]
    folder = out / "-".join(words)
    if (folder / TRIAL).exists():
        return
    chains = run.split(folder)
    _work("chains", chains, partial(train_chain, data_dir, ""), workers)
    _, _, x_held, y_held = load_images(run.dataset, data_dir).hold_out(run.held_out)
    finished = [read_chain(chain, place) for chain, place in chains]
    kinds = stack_kinds(predict_parts(run, finished, {HELD: Part(x_held)}), HELD)
    slabs = [float((chain.rho > 0.5).double().mean()) for chain in finished if chain.rho is not None]
    record = {
        "dataset": images.replace("-", ", "),
        "method": run.method,
        "seed": run.seed,
        "precision": run.precision,
        **{name: getattr(run.preset, name) for name in VARIED},
        "slab": sum(slabs) / len(slabs) if slabs else None,
        **{kind: [describe_classifier(each, y_held) for each in stack] for kind, stack in kinds.items()},
    }
    write_record(folder / TRIAL, nan_to_null(record))


def search_table(out: Path) -> Table:
    """Return all trials below ``out``, the lowest NLL of the average first; values that never vary are left out."""
    records = [read_record(path, CheckpointError) for path in out.glob(f"*/{TRIAL}")]
    for record in records:
        record["average"] = record.get(AVERAGE, record.get(ENSEMBLE, record[POINT]))[0]
        points = [each["accuracy"] for each in record[POINT]]
        record["last"] = sum(points) / len(points)
    heads = {"dataset": "images", "method": "method", "seed": "seed", "precision": "precision"}
    always = ("epochs", "chains", "lr", "temperature", "plain_temperature", "weight_decay")
    shown = [name for name in VARIED if name in always or len({record[name] for record in records}) > 1]
    columns: dict[Column, Callable[[dict[str, Any]], Cell]] = {
        **{Column(name, title): itemgetter(name) for name, title in heads.items()},
        **{Column(name, name.replace("_", " "), "g"): itemgetter(name) for name in shown},
        Column("accuracy", "accuracy % of the average", ".2f"): lambda record: 100.0 * record["average"]["accuracy"],
        Column("nll", "NLL of the average", ".4f"): lambda record: record["average"]["nll"],
        Column("ece", "ECE % of the average", ".2f"): lambda record: 100.0 * record["average"]["ece"],
        Column("point", "accuracy % of the last weights", ".2f"): lambda record: 100.0 * record["last"],
        Column("slab", "weights in the slab %", ".1f"): lambda record: (
            None if record["slab"] is None else 100.0 * record["slab"]
        ),
    }
    error, count = min(1.0 - record["average"]["accuracy"] for record in records), records[0]["average"]["rows"]
    note = (
        f"On the {count:,} held-out images; the standard error of the best accuracy is "
        f"{100.0 * (error * (1.0 - error) / count) ** 0.5:.1f} points. The average is that over all samples of a "
        "sampler, or over the networks of an optimizer."
    )
    records.sort(key=lambda record: record["average"]["nll"])
    return Table.build("Trials on held-out images", records, columns, notes=[note])
