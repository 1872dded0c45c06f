"""Tables of MNIST and Fashion-MNIST, with the numbers of the paper and of the methods that it cites."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from spikeslab.errors import pluralize
from spikeslab.metrics import selective_accuracy
from spikeslab.paper.images.runs import ADAM, HELD, OTHER, average_samples
from spikeslab.report.tables import Cell, Column, Estimate, Table

NAMES = {"vanilla": "Vanilla", "dropout": "Dropout", "sghmc": "SGHMC", "sghmc-sa": "SGHMC-SA"}
PAPER = {
    # table 2 of the paper: accuracy in per cent, without and with augmentation
    ("mnist", False): {"vanilla": 99.31, "dropout": 99.38, "sghmc": 99.47, "sghmc-sa": 99.59},
    ("mnist", True): {"vanilla": 99.54, "dropout": 99.56, "sghmc": 99.63, "sghmc-sa": 99.75},
    ("fashion", False): {"vanilla": 92.73, "dropout": 92.81, "sghmc": 92.88, "sghmc-sa": 93.01},
    ("fashion", True): {"vanilla": 93.14, "dropout": 93.35, "sghmc": 94.29, "sghmc-sa": 94.38},
}
CITED: dict[str, dict[str, float]] = {
    "mnist": {"Maxout (cited by the paper)": 99.55, "pSGLD (cited by the paper)": 99.55},
    "fashion": {},
}
PAPER_EPOCHS = {
    ("mnist", False): "does not say how long it trained",
    ("fashion", False): "does not say how long it trained",
    ("mnist", True): "trained for 200 epochs",
    ("fashion", True): "trained for 1,000 epochs",
}
TITLES = {"mnist": "MNIST", "fashion": "Fashion-MNIST"}


class ImageRow(NamedTuple):
    """Runs of one method with one preset over seeds: a result and predictions for each."""

    method: str
    preset: str
    results: Sequence[Mapping[str, Any]]
    predictions: Sequence[Mapping[str, Tensor]]

    def kinds(self) -> Iterator[tuple[str, str]]:
        """Yield ``"point"`` and, where there are samples, ``"average"``, each with the name of its row."""
        yield "point", NAMES[self.method]
        if self.results[0]["samples"]:
            yield "average", f"{NAMES[self.method]}, average"

    def estimate(self, part: str, kind: str, metric: str, scale: float = 1.0) -> Estimate:
        """Return the mean of a metric over seeds, with its standard error."""
        return Estimate.of([scale * result[part][kind][metric] for result in self.results])

    def correct(self, kind: str, labels: Tensor) -> Tensor:
        """Return 1 where a test image is classified correctly and 0 elsewhere, of shape (seeds, images)."""
        found = [average_samples(each, "test")[kind].argmax(dim=1) == labels for each in self.predictions]
        return torch.stack(found).double()


def accuracy_table(dataset: str, runs: Sequence[ImageRow], epochs: int, augment: bool) -> Table:
    """Return the accuracy and calibration of every method and preset on the test images."""
    rows: list[dict[str, Cell]] = [
        {
            "method": name,
            "preset": run.preset,
            # The paper reports the point estimate of Adam and the average of SGHMC.
            "paper": PAPER[dataset, augment][run.method] if (kind == "point") == (run.method in ADAM) else None,
            "accuracy": run.estimate("test", kind, "accuracy", 100.0),
            "nll": run.estimate("test", kind, "nll"),
            "brier": run.estimate("test", kind, "brier"),
            "ece": run.estimate("test", kind, "ece", 100.0),
            HELD: run.estimate(HELD, kind, "accuracy", 100.0) if HELD in run.results[0] else None,
            "runs": len(run.results),
        }
        for run in runs
        for kind, name in run.kinds()
    ]
    for name, value in ({} if augment else CITED[dataset]).items():
        cited: dict[str, Cell] = dict.fromkeys(rows[0])
        rows.append(cited | {"method": name, "preset": "", "paper": value})
    tested = runs[0].results[0]["test"]["point"]["rows"]
    return Table(
        f"{TITLES[dataset]}{', augmented' if augment else ''}, {pluralize(epochs, 'epoch')}",
        [
            Column("method", "Method"),
            Column("preset", "Settings"),
            Column("paper", "accuracy %, paper", ".2f"),
            Column("accuracy", "accuracy %, ours", ".2f"),
            Column("nll", "NLL", ".4f"),
            Column("brier", "Brier", ".4f"),
            Column("ece", "ECE %", ".2f"),
            Column(HELD, "held-out accuracy %", ".2f"),
            Column("runs", "runs"),
        ],
        rows,
        notes=[
            f"{tested:,} test images, used once after the last step; {_held_out(runs)}. An accuracy of "
            f"p % has a standard error over the images of √(p(100 − p)/n) points: "
            f"{_error(99.5, tested):.2f} at 99.5 %, {_error(93.0, tested):.2f} at 93 %.{_averages(runs)} The paper "
            f"{PAPER_EPOCHS[dataset, augment]}; its numbers are of the average for SGHMC and SGHMC-SA."
        ],
    )


def _held_out(runs: Sequence[ImageRow]) -> str:
    """Return how many training images were held out, as a part of a sentence."""
    first = runs[0].results[0]
    if HELD not in first:
        return "all training images were trained on, with settings chosen on held-out ones before"
    return f"{first[HELD]['point']['rows']:,} training images were held out for all choices"


def _error(percent: float, images: int) -> float:
    return math.sqrt(percent * (100.0 - percent) / images)


def _averages(runs: Sequence[ImageRow]) -> str:
    """Return a sentence on the samples behind each posterior average."""
    each = {
        run.preset: f"{pluralize(run.results[0]['samples'], 'sample')} of "
        f"{pluralize(run.results[0].get('settings', {}).get('chains', 1), 'chain')} ({run.preset})"
        for run in runs
        if run.results[0]["samples"]
    }
    return f" A posterior average is over {', '.join(each.values())}; chains share the epochs." if each else ""


def difference_table(dataset: str, runs: Sequence[ImageRow], labels: Tensor) -> Table | None:
    """Return the accuracy of SGHMC-SA's average minus that of every other row, paired over images.

    Without SGHMC-SA there is no table.
    """
    ours = [run for run in runs if run.method == "sghmc-sa"]
    if not ours:
        return None
    rows: list[dict[str, Cell]] = []
    for reference in ours:
        correct = reference.correct("average", labels)
        for run in runs:
            for kind, name in run.kinds():
                if (run, kind) != (reference, "average") and len(run.results) == len(reference.results):
                    gaps = 100.0 * (correct - run.correct(kind, labels)).mean(dim=0)
                    rows.append(
                        {
                            "reference": reference.preset,
                            "method": name,
                            "preset": run.preset,
                            "difference": Estimate(float(gaps.mean()), float(gaps.std()) / len(gaps) ** 0.5),
                        }
                    )
    return Table(
        f"{TITLES[dataset]}: SGHMC-SA, average, against the others",
        [
            Column("reference", "SGHMC-SA with"),
            Column("method", "against"),
            Column("preset", "with"),
            Column("difference", "difference of accuracy, points", "+.2f"),
        ],
        rows,
        notes=[
            "Differences on the same test images and seeds; standard errors over the images. They do not hold the "
            "spread over seeds."
        ],
    )


def uncertainty_table(dataset: str, runs: Sequence[ImageRow], labels: Tensor) -> Table:
    """Return the detection of foreign images, and the accuracy of the most confident predictions."""
    rows = [
        {"method": name, "preset": run.preset, "score": score.replace("_", " "), **cells}
        for run in runs
        for kind, name in run.kinds()
        for score, cells in _uncertainty(run, kind, labels)
    ]
    return Table(
        f"{TITLES[dataset]}: uncertainty",
        [
            Column("method", "Method"),
            Column("preset", "Settings"),
            Column("score", "score"),
            Column("auroc", "AUROC %", ".2f"),
            Column("aupr", "AUPR %", ".2f"),
            Column("fpr95", "FPR95 %", ".2f"),
            Column("half", "accuracy %, surest half", ".2f"),
            Column("most", "surest 90 %", ".2f"),
        ],
        rows,
        notes=[
            f"AUROC, AUPR and FPR95 of telling the test images of {TITLES[OTHER[dataset]]}, which the network never "
            "saw, from those of its own data by the score; a lower FPR95 is better. The last columns are the accuracy "
            "on the test images of which the model is most confident."
        ],
    )


def _uncertainty(run: ImageRow, kind: str, labels: Tensor) -> Iterator[tuple[str, dict[str, Cell]]]:
    """Yield each score and its cells: the detection, and the accuracy on the surest half and nine tenths."""
    shares = torch.tensor([0.5, 0.9])
    kept = torch.stack(
        [selective_accuracy(average_samples(each, "test")[kind], labels, shares) for each in run.predictions]
    )
    half, most = (Estimate.of(values) for values in (100.0 * kept).T.tolist())
    for score in run.results[0]["foreign"][kind]:
        found = [result["foreign"][kind][score] for result in run.results]
        cells = {key: Estimate.of([100.0 * each[key] for each in found]) for key in ("auroc", "aupr", "fpr95")}
        yield score, {**cells, "half": half, "most": most}
