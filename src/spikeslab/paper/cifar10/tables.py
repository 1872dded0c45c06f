"""Tables of the CIFAR-10 experiment: means over seeds with the paper's numbers, and ours in the layout of its table 3.

The paper's numbers are those of table 3, of rows in comments of its source, of the logs that its authors published, and
of the methods that it cites. Its accuracies are the highest over the epochs from about 520 on, of one run each.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from spikeslab.compression.compress import WEIGHTS
from spikeslab.compression.sparse_file import DENSE
from spikeslab.compression.sparse_format import VALUES
from spikeslab.paper.cifar10.presets import PAPER_EPOCHS, split_method
from spikeslab.paper.cifar10.runs import AVERAGE, HELD_OUT, SINGLE, TEST, format_value, result_settings
from spikeslab.report.tables import Cell, Column, Estimate, Table

SPARSITIES = (0.3, 0.5, 0.7, 0.9)
TABLE3 = {
    "a-sghmc": (94.07, 94.16, 93.16, 90.59),
    "a-sghmc-em": (94.18, 94.19, 93.41, 91.26),
    "sghmc-sa": (94.13, 94.11, 93.52, 91.45),
    "a-sghmc-sa": (94.23, 94.27, 93.74, 91.68),
}
LOGS = {
    # at 90 %: best epoch, last epoch
    "a-sghmc": (89.20, 89.10),
    "a-sghmc-em": (89.88, 89.69),
    "sghmc-sa": (91.26, 91.10),
    "a-sghmc-sa": (91.56, 91.43),
}
L1 = {
    1e-4: (94.09, 93.74, 92.98, 89.47),
    3e-4: (94.03, 93.68, 93.01, 89.62),
    1e-3: (92.88, 92.75, 92.62, 89.95),
    3e-3: (92.48, 92.49, 92.10, 91.12),
    1e-2: (89.50, 89.79, 90.07, 89.83),
    3e-2: (83.02, 82.36, 82.88, 83.50),
}
L2 = {
    1e-4: (94.15, 93.78, 93.12, 89.37),
    1e-3: (94.03, 93.64, 93.06, 89.29),
    1e-2: (94.17, 93.82, 93.17, 90.11),
    3e-2: (94.20, 93.99, 93.37, 91.15),
    0.1: (94.02, 93.96, 93.50, 91.20),
    0.3: (93.72, 93.57, 93.37, 91.27),
    0.6: (93.30, 93.09, 93.00, 91.40),
    1.0: (92.94, 92.90, 92.56, 91.16),
}
SSG = (94.27, 93.94, 93.63, 91.51)
POSTER_EM = 91.12
CITED = {
    "targeted dropout (cited)": (91.48, "ResNet32, 47K weights, 90 %"),
    "BC-GHS (cited)": (91.0, "VGG, 8M weights, 94.5 %"),
}
COMMENT = "in a comment of the source"
REMARKS = {"a-sghmc-em": f"90 %: {POSTER_EM} on the poster"}
BEST = "best test epoch"
NAMES = {
    "a-sghmc-sa": "A-SGHMC-SA",
    "sghmc-sa": "SGHMC-SA",
    "a-sghmc-em": "A-SGHMC-EM",
    "a-sghmc": "A-SGHMC",
    "prior-annealing": "prior annealing",
    "gmp": "GMP",
    "dpf": "DPF",
}


def method_title(method: str) -> str:
    """Return the name of a method in tables and figures.

    >>> method_title("a-sghmc-sa"), method_title("l2:0.6")
    ('A-SGHMC-SA', 'L2 = 0.6')
    """
    name, strength = split_method(method)
    if strength is not None:
        return f"{name.upper()} = {strength:g}"
    return NAMES.get(name, name.upper() if name in ("l1", "l2") else name)


def paper_accuracy(method: str, sparsity: float) -> float | None:
    """Return the paper's accuracy of a method at a sparsity, if it has one.

    >>> paper_accuracy("a-sghmc-sa", 0.9), paper_accuracy("l2:0.6", 0.9), paper_accuracy("gmp", 0.9)
    (91.68, 91.4, None)
    """
    name, strength = split_method(method)
    fixed: Mapping[float, tuple[float, ...]] = {"l1": L1, "l2": L2}.get(name, {})
    row = TABLE3.get(method) if strength is None else fixed.get(strength)
    return row[SPARSITIES.index(sparsity)] if row is not None and sparsity in SPARSITIES else None


def paper_table() -> Table:
    """Return all of the paper's numbers."""
    columns = [
        Column("method", "Method"),
        *(Column(_key(sparsity), f"{sparsity:.0%}", ".2f") for sparsity in SPARSITIES),
        Column("log_best", "90 %, log, best", ".2f"),
        Column("log_final", "90 %, log, last", ".2f"),
        Column("remark", "Remark"),
    ]

    def row(
        name: str, values: Sequence[float | None], remark: str = "", logs: Sequence[float | None] = (None, None)
    ) -> dict[str, Cell]:
        return dict(zip((column.key for column in columns), (name, *values, *logs, remark), strict=True))

    rows = [row(method_title(name), found, REMARKS.get(name, ""), LOGS[name]) for name, found in TABLE3.items()]
    for name, fixed in (("l1", L1), ("l2", L2)):
        rows += [row(method_title(f"{name}:{strength}"), found, COMMENT) for strength, found in fixed.items()]
    rows.append(row("SGHMC-SSG", SSG, f"{COMMENT}: two Gaussians"))
    rows += [row(name, (None, None, None, value), remark) for name, (value, remark) in CITED.items()]
    return Table(
        "CIFAR-10: what the paper reports",
        columns,
        rows,
        notes=[
            "Accuracy in per cent. The paper's numbers are those of the best epoch on the test images, of one run of "
            "1000 epochs, and a point estimate; the logs are of its authors' published code, with the best and the "
            "last epoch. Its dense network has 93.90 % in the paper and 94.12 % in the logs."
        ],
    )


@dataclass(frozen=True)
class CifarRow:
    """Row of a table: the runs of one method, sparsity and preset over seeds.

    ``label`` has the preset and the values that differ from it.
    """

    method: str
    sparsity: float
    label: str
    epochs: int
    results: Sequence[Mapping[str, Any]]
    folders: Sequence[Path]

    def estimate(self, function: Callable[[Mapping[str, Any]], float | None]) -> Estimate | None:
        """Return the mean and standard error of a number over seeds, or ``None`` if a run does not have it."""
        found = [number for result in self.results if (number := function(result)) is not None]
        return Estimate.of(found) if len(found) == len(self.results) else None

    def percent(self, kind: str, metric: str = "accuracy") -> Estimate:
        """Return a share in per cent, of the dense, the sparse or the averaged network."""
        return Estimate.of([100.0 * result[kind][metric] for result in self.results])

    @property
    def of_weights(self) -> bool:
        """True if single weights are zero rather than whole channels."""
        return bool(self.results[0]["facts"]["structure"] == WEIGHTS)

    @property
    def paper(self) -> float | None:
        """Accuracy in the paper, which has none for channels."""
        return paper_accuracy(self.method, self.sparsity) if self.of_weights else None

    @property
    def log(self) -> float | None:
        """Accuracy of the last epoch in the authors' log, if there is one."""
        return LOGS[self.method][1] if self.method in LOGS and self.sparsity == 0.9 and self.paper else None

    @property
    def multiply_adds(self) -> float | None:
        """Per cent of the multiply-adds left without dead channels, if channels were pruned."""
        if not all("compacted" in result for result in self.results):
            return None
        found = [result["compacted"]["multiply_adds"] for result in self.results]
        return 100.0 * float(sum(each["after"] / each["before"] for each in found)) / len(found)

    @property
    def best_epoch(self) -> Estimate | None:
        """Highest accuracy on the test images over epochs, if all runs asked for it."""
        return self.estimate(lambda result: 100.0 * best["accuracy"] if (best := result["best_epoch"]) else None)


def group_rows(results: Sequence[tuple[Path, Mapping[str, Any]]], part: str) -> list[CifarRow]:
    """Group runs that were evaluated on one part of the data into rows, by sparsity, epochs and accuracy.

    Only runs with the same settings from the same dense network share a row. Where labels agree and settings do not, as
    after a change of a default, the label names the settings that differ.
    """
    alike: dict[tuple[Any, ...], dict[str, list[tuple[Path, Mapping[str, Any]]]]] = {}
    for folder, result in results:
        if result["part"] == part:
            facts = result["facts"]
            head = (facts["row"], result["target"], facts["label"], result["epochs"])
            key = json.dumps(_flatten(result), sort_keys=True)
            alike.setdefault(head, {}).setdefault(key, []).append((folder, result))
    rows = []
    for (method, sparsity, label, epochs), groups in alike.items():
        found = [sorted(group, key=lambda item: item[1]["seed"]) for group in groups.values()]
        labels = _distinguish(label, [_flatten(group[0][1]) for group in found])
        for group, own in zip(found, labels, strict=True):
            folders, ordered = zip(*group, strict=True)
            rows.append(CifarRow(method, sparsity, own, epochs, ordered, folders))
    return sorted(rows, key=lambda row: (row.sparsity, row.epochs, -row.percent(AVERAGE).mean))


def _flatten(result: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings behind a result by name, with those of the prior as ``prior.name``."""
    found = result_settings(result)
    prior = found.pop("prior")
    return found | {f"prior.{name}": value for name, value in prior.items()}


def _distinguish(label: str, found: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return the label of each row, with the settings in which the rows differ."""
    names = dict.fromkeys(name for settings in found for name in settings)
    differing = [name for name in names if any(other.get(name) != found[0].get(name) for other in found)]
    return [", ".join([label, *(f"{name}={format_value(each.get(name))}" for name in differing)]) for each in found]


HEAD: dict[Column, Callable[[CifarRow], Cell]] = {
    Column("method", "Method"): lambda row: method_title(row.method),
    Column("sparsity", "zeros", ".0%"): lambda row: (
        row.sparsity if row.of_weights else f"{row.sparsity:.0%} of channels"
    ),
    Column("label", "Settings"): lambda row: row.label,
    Column("epochs", "epochs", ","): lambda row: row.epochs,
}


def accuracy_table(rows: Sequence[CifarRow], part: str) -> Table:
    """Return the accuracy of the dense, the sparse and the averaged network, with the paper's."""

    def drop(kind: str) -> Callable[[CifarRow], Cell]:
        return lambda row: row.estimate(lambda run: 100.0 * (run["dense"]["accuracy"] - run[kind]["accuracy"]))

    columns = HEAD | {
        Column("paper", "paper, best epoch %", ".2f"): lambda row: row.paper,
        Column("log", "its log, last epoch %", ".2f"): lambda row: row.log,
        Column("dense", "dense %", ".2f"): lambda row: row.percent("dense").mean,
        Column("single", "last epoch %", ".2f"): lambda row: row.percent(SINGLE),
        Column("drop", "drop from dense", ".2f"): drop(SINGLE),
        Column("average", "average %", ".2f"): lambda row: row.percent(AVERAGE),
        Column("average_drop", "drop from dense", ".2f"): drop(AVERAGE),
    }
    best = any(row.best_epoch for row in rows)
    if best:
        columns[Column("best", "best test epoch %", ".2f")] = lambda row: row.best_epoch
    columns[Column("runs", "runs")] = lambda row: len(row.results)
    title = f"CIFAR-10, ResNet20: accuracy on {_images(part)}"
    return Table.build(title, rows, columns, _accuracy_notes(rows, part, best))


def detail_table(rows: Sequence[CifarRow], part: str) -> Table:
    """Return the calibration, the non-zeros and the time."""
    columns = HEAD | {
        Column("nll", "NLL", ".4f"): lambda row: row.estimate(lambda run: run[SINGLE]["nll"]),
        Column("average_nll", "NLL, average", ".4f"): lambda row: row.estimate(lambda run: run[AVERAGE]["nll"]),
        Column("ece", "ECE %", ".2f"): lambda row: row.percent(SINGLE, "ece"),
        Column("average_ece", "ECE %, average", ".2f"): lambda row: row.percent(AVERAGE, "ece"),
        Column("nonzeros", "non-zeros", ","): lambda row: round(
            Estimate.of([run["network"]["nonzeros"] for run in row.results]).mean
        ),
        Column("network", "zeros in the network %", ".2f"): lambda row: row.percent("network", "sparsity").mean,
        Column("layers", "zeros in the sparse layers %", ".2f"): lambda row: (
            row.percent("sparse_layers", "sparsity").mean
        ),
    }
    if any(row.multiply_adds for row in rows):
        columns[Column("multiply_adds", "multiply-adds left %", ".1f")] = lambda row: row.multiply_adds
    columns[Column("samples", "samples")] = lambda row: min(result["samples"] for result in row.results)
    columns[Column("minutes", "min per epoch", ".1f")] = lambda row: (
        Estimate.of([run["seconds"] / 60.0 / run["epochs"] for run in row.results]).mean
    )
    texts = {
        True: "the sparse layers are the 18 convolutions of 3 x 3 but the first, 267,264 weights, as in the paper",
        False: "where channels go, the sparse layers are the first convolution of each block",
    }
    layers = "; ".join(text for kind, text in texts.items() if kind in {row.of_weights for row in rows})
    note = (
        "Non-zeros and zeros of the network are counted over all 272,474 parameters, batch normalisation and the last "
        f"layer included; {layers}. An average is over samples with the same zeros, each with its own statistics of "
        "batch normalisation."
    )
    return Table.build(f"CIFAR-10, ResNet20: calibration on {_images(part)}, and size", rows, columns, [note])


def file_table(rows: Sequence[CifarRow], part: str) -> Table:
    """Return the bytes on disk, and the accuracy of the networks read back from rounded values."""

    def cell(values: str, function: Callable[[Mapping[str, Any], Mapping[str, Any]], float]) -> Callable[..., Cell]:
        return lambda row: row.estimate(
            lambda run: function(run["files"][values], run["files"][DENSE]) if "files" in run else None
        )

    columns = HEAD | {Column("dense", "dense, kB", ".0f"): cell(DENSE, lambda own, dense: own["bytes"] / 1000.0)}
    for values, name in zip(VALUES, ("lossless", "fp16", "int8"), strict=True):
        columns |= {
            Column(f"{values}_kilobytes", f"{name}, kB", ".0f"): cell(values, lambda own, dense: own["bytes"] / 1000.0),
            Column(f"{values}_ratio", "dense / this", ".1f"): cell(
                values, lambda own, dense: dense["bytes"] / own["bytes"]
            ),
            Column(f"{values}_accuracy", "accuracy %", ".2f"): cell(values, lambda own, dense: 100.0 * own["accuracy"]),
        }
    note = (
        "Files of `save_sparse` with all parameters and the statistics of batch normalisation, and as dense the "
        "safetensors file of the same network; the network is that of the last epoch. A kB is 1000 bytes."
    )
    title = f"CIFAR-10, ResNet20: files, and accuracy on {_images(part)} after they are read"
    return Table.build(title, rows, columns, [note])


def _images(part: str) -> str:
    return {TEST: "the test images", HELD_OUT: "held-out training images"}[part]


def _accuracy_notes(rows: Sequence[CifarRow], part: str, best: bool) -> list[str]:
    """Return notes on the images, on the standard errors, and on the methods that the paper cites."""
    count = rows[0].results[0]["rows"]
    if part == TEST:
        when = (
            "looked at after every epoch in rows with a best test epoch, and once in others; all other columns are of "
            "the last epoch"
            if best
            else "looked at once, after the last step; all settings were fixed before"
        )
        images = f"{count:,} test images, {when}. The average is that of the last samples, which share one mask."
    else:
        seen = any(result["facts"]["seen_all"] for row in rows for result in row.results)
        caveat = (
            "The dense network has been trained on them, so these numbers are too good and only rank settings against "
            "each other"
            if seen
            else "The dense network has not seen them either"
        )
        images = f"{count:,} training images were held out. {caveat}; the test images were not looked at."
    low, high = (math.sqrt(percent * (100 - percent) / count) for percent in (91, 94))
    errors = (
        f"± is the standard error over seeds. That over the images is √(p(100 − p)/n) points: {low:.2f} at 91 % and "
        f"{high:.2f} at 94 % of {count:,} images. Numbers of the paper are the highest over epochs on the test images, "
        "after 1000 epochs."
    )
    cited = [f"{name.removesuffix(' (cited)')} {value:g} % ({remark})" for name, (value, remark) in CITED.items()]
    return [images, errors, f"The paper cites {' and '.join(cited)}; all of its numbers are in `paper.md`."]


def select_table3(rows: Sequence[CifarRow]) -> list[CifarRow]:
    """Return the rows of the paper's four methods at its four sparsities."""
    return [row for row in rows if row.of_weights and row.method in TABLE3 and row.sparsity in SPARSITIES]


def table3(rows: Sequence[CifarRow]) -> Table:
    """Return table 3 with our rows below the paper's, a line for each kind of number.

    Where several lengths were run at one sparsity, the longest counts.
    """
    lines: list[dict[str, Cell]] = []

    def add(method: str, label: str, epochs: str, kind: str, cells: Mapping[float, Cell]) -> None:
        if any(cells.values()):
            head: dict[str, Cell] = {"method": method_title(method), "label": label, "epochs": epochs, "number": kind}
            lines.append(head | {_key(sparsity): cells.get(sparsity) for sparsity in SPARSITIES})

    for method in TABLE3:
        paper = {sparsity: paper_accuracy(method, sparsity) for sparsity in SPARSITIES}
        add(method, "the paper", f"{PAPER_EPOCHS}", BEST, paper)
        own = sorted((row for row in rows if row.method == method), key=lambda row: row.epochs)
        for label in dict.fromkeys(row.label for row in rows if row.method == method):
            longest = {row.sparsity: row for row in own if row.label == label}
            counts = [longest[sparsity].epochs for sparsity in SPARSITIES if sparsity in longest]
            epochs = ", ".join(map(str, counts if len(set(counts)) > 1 else counts[:1]))
            add(method, label, epochs, BEST, {sparsity: row.best_epoch for sparsity, row in longest.items()})
            for name, kind in (("last epoch", SINGLE), ("average", AVERAGE)):
                add(method, label, epochs, name, {sparsity: row.percent(kind) for sparsity, row in longest.items()})
    return Table(
        "CIFAR-10, ResNet20: table 3 of the paper",
        [
            Column("method", "Method"),
            Column("label", "Settings"),
            Column("epochs", "epochs"),
            Column("number", "accuracy % of"),
            *(Column(_key(sparsity), f"{sparsity:.0%} zeros", ".2f") for sparsity in SPARSITIES),
        ],
        lines,
        notes=[
            "Zeros are counted in the whole network. The paper's numbers are the highest over epochs on the test "
            "images, of one run each; beside them belongs our best test epoch, which is no estimate of anything. The "
            "last epoch and the average of the last samples, which share one mask, are. ± is the standard error over "
            "seeds, where there are several. Epochs that differ between sparsities stand in the order of the columns."
        ],
    )


def _key(sparsity: float) -> str:
    return f"s{round(100 * sparsity)}"
