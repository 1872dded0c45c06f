"""Tables of the CIFAR-10 experiment: means over seeds, with the paper's numbers."""

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
from spikeslab.paper.cifar10.runs import AVERAGE, HELD_OUT, SINGLE, TEST, format_value, result_settings
from spikeslab.paper.cifar10.table3 import CITED, LOGS, method_title, paper_accuracy
from spikeslab.report.tables import Cell, Column, Estimate, Table


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

    def nll(self, kind: str) -> Estimate | None:
        """Return the negative log-likelihood, or ``None`` where it is infinite."""
        found = [result[kind]["nll"] for result in self.results]
        return None if None in found else Estimate.of(found)

    def estimate(self, function: Callable[[Mapping[str, Any]], float]) -> Estimate:
        """Return the mean and standard error of a number over seeds."""
        return Estimate.of([function(result) for result in self.results])

    def percent(self, kind: str, metric: str = "accuracy") -> Estimate:
        """Return a share in per cent, of the dense, the sparse or the averaged network."""
        return self.estimate(lambda result: 100.0 * result[kind][metric])

    def drop(self, kind: str) -> Estimate:
        """Return the points of accuracy below the dense network."""
        return self.estimate(lambda result: 100.0 * (result["dense"]["accuracy"] - result[kind]["accuracy"]))

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

    def of_files(self, function: Callable[[Mapping[str, Any]], float]) -> Estimate | None:
        """Return the mean and standard error of a number of the saved files, if they were measured."""
        measured = all("files" in result for result in self.results)
        return self.estimate(lambda result: function(result["files"])) if measured else None

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
        if not all(result["best_epoch"] for result in self.results):
            return None
        return self.estimate(lambda result: 100.0 * result["best_epoch"]["accuracy"])


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
            key = json.dumps(_flat(result), sort_keys=True)
            alike.setdefault(head, {}).setdefault(key, []).append((folder, result))
    rows = []
    for (method, sparsity, label, epochs), groups in alike.items():
        found = [sorted(group, key=lambda item: item[1]["seed"]) for group in groups.values()]
        labels = _distinguish(label, [_flat(group[0][1]) for group in found])
        for group, own in zip(found, labels, strict=True):
            folders, ordered = zip(*group, strict=True)
            rows.append(CifarRow(method, sparsity, own, epochs, ordered, folders))
    return sorted(rows, key=lambda row: (row.sparsity, row.epochs, -row.percent(AVERAGE).mean))


def _flat(result: Mapping[str, Any]) -> dict[str, Any]:
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
    columns = HEAD | {
        Column("paper", "paper, best epoch %", ".2f"): lambda row: row.paper,
        Column("log", "its log, last epoch %", ".2f"): lambda row: row.log,
        Column("dense", "dense %", ".2f"): lambda row: row.percent("dense").mean,
        Column("single", "last epoch %", ".2f"): lambda row: row.percent(SINGLE),
        Column("drop", "drop from dense", ".2f"): lambda row: row.drop(SINGLE),
        Column("average", "average %", ".2f"): lambda row: row.percent(AVERAGE),
        Column("average_drop", "drop from dense", ".2f"): lambda row: row.drop(AVERAGE),
    }
    best = any(row.best_epoch for row in rows)
    if best:
        columns[Column("best", "best test epoch %", ".2f")] = lambda row: row.best_epoch
    columns[Column("runs", "runs")] = lambda row: len(row.results)
    title = f"CIFAR-10, ResNet20: accuracy on {_images(part)}"
    return Table.build(title, rows, columns, [_judged(rows, part, best), _spread(rows), _cited()])


def detail_table(rows: Sequence[CifarRow], part: str) -> Table:
    """Return the calibration, the non-zeros and the time."""
    columns = HEAD | {
        Column("nll", "NLL", ".4f"): lambda row: row.nll(SINGLE),
        Column("average_nll", "NLL, average", ".4f"): lambda row: row.nll(AVERAGE),
        Column("ece", "ECE %", ".2f"): lambda row: row.percent(SINGLE, "ece"),
        Column("average_ece", "ECE %, average", ".2f"): lambda row: row.percent(AVERAGE, "ece"),
        Column("nonzeros", "non-zeros", ","): lambda row: round(
            row.estimate(lambda result: result["network"]["nonzeros"]).mean
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
        row.estimate(lambda result: result["seconds"] / 60.0 / result["epochs"]).mean
    )
    note = (
        "Non-zeros and zeros of the network are counted over all 272,474 parameters, batch normalisation and the last "
        f"layer included; {_sparse_layers(rows)}. An average is over samples with the same zeros, each with its own "
        "statistics of batch normalisation."
    )
    return Table.build(f"CIFAR-10, ResNet20: calibration on {_images(part)}, and size", rows, columns, [note])


def file_table(rows: Sequence[CifarRow], part: str) -> Table:
    """Return the bytes on disk, and the accuracy of the networks read back from rounded values."""

    def cell(values: str, function: Callable[[Mapping[str, Any], Mapping[str, Any]], float]) -> Callable[..., Cell]:
        return lambda row: row.of_files(lambda files: function(files[values], files[DENSE]))

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


def _sparse_layers(rows: Sequence[CifarRow]) -> str:
    """Return which layers are sparse, as a part of a sentence."""
    told = "the sparse layers are the 18 convolutions of 3 x 3 but the first, 267,264 weights, as in the paper"
    channels = "where channels go, the sparse layers are the first convolution of each block"
    kinds = {row.of_weights for row in rows}
    return "; ".join([*([told] if True in kinds else []), *([channels] if False in kinds else [])])


def _cited() -> str:
    """Return a sentence with the methods that the paper cites."""
    found = [f"{name.removesuffix(' (cited)')} {value:g} % ({remark})" for name, (value, remark) in CITED.items()]
    return f"The paper cites {' and '.join(found)}; all of its numbers are in `paper.md`."


def _images(part: str) -> str:
    return {TEST: "the test images", HELD_OUT: "held-out training images"}[part]


def _spread(rows: Sequence[CifarRow]) -> str:
    """Return a note on the standard errors."""
    count = rows[0].results[0]["rows"]
    low, high = (math.sqrt(percent * (100 - percent) / count) for percent in (91, 94))
    return (
        f"± is the standard error over seeds. That over the images is √(p(100 − p)/n) points: {low:.2f} at 91 % and "
        f"{high:.2f} at 94 % of {count:,} images. Numbers of the paper are the highest over epochs on the test images, "
        "after 1000 epochs."
    )


def _judged(rows: Sequence[CifarRow], part: str, best: bool) -> str:
    """Return a note on the images that were evaluated."""
    count = rows[0].results[0]["rows"]
    if part == HELD_OUT:
        seen = any(result["facts"]["seen_all"] for row in rows for result in row.results)
        caveat = (
            "The dense network has been trained on them, so these numbers are too good and only rank settings against "
            "each other; the test images were not looked at."
            if seen
            else "The dense network has not seen them either; the test images were not looked at."
        )
        return f"{count:,} training images were held out. {caveat}"
    when = (
        "looked at after every epoch in rows with a best test epoch, and once in others; all other columns are of the "
        "last epoch"
        if best
        else "looked at once, after the last step; all settings were fixed before"
    )
    return f"{count:,} test images, {when}. The average is that of the last samples, which share one mask."
