"""Tables of the image experiments, beside the paper's numbers and those of the competitors that it cites."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from spikeslab.errors import pluralize
from spikeslab.metrics import selective_accuracy
from spikeslab.paper.images.predictions import HELD, kinds_of
from spikeslab.paper.images.runs import OTHER
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


class Trained(NamedTuple):
    """What all seeds of a method with one recipe gave: a result and predictions for each."""

    method: str
    recipe: str
    results: Sequence[Mapping[str, Any]]
    predictions: Sequence[Mapping[str, Tensor]]

    def kinds(self) -> Iterator[tuple[str, str]]:
        """``"point"`` and, where there is a posterior, ``"average"``; each with the name of the row."""
        yield "point", NAMES[self.method]
        if self.results[0]["samples"]:
            yield "average", f"{NAMES[self.method]}, average"

    def percent(self, part: str, kind: str, metric: str) -> Estimate:
        """A share in per cent, over seeds."""
        return Estimate.of([100.0 * result[part][kind][metric] for result in self.results])


def accuracy_table(dataset: str, runs: Sequence[Trained], epochs: int, augment: bool) -> Table:
    """Accuracy and calibration of every method and recipe on the test images."""
    rows: list[dict[str, Cell]] = [
        {
            "method": name,
            "recipe": run.recipe,
            "paper": PAPER[dataset, augment][run.method] if _reported(run.method, kind) else None,
            "accuracy": run.percent("test", kind, "accuracy"),
            "nll": Estimate.of([result["test"][kind]["nll"] for result in run.results]),
            "brier": Estimate.of([result["test"][kind]["brier"] for result in run.results]),
            "ece": run.percent("test", kind, "ece"),
            HELD: run.percent(HELD, kind, "accuracy") if HELD in run.results[0] else None,
            "runs": len(run.results),
        }
        for run in runs
        for kind, name in run.kinds()
    ]
    for name, value in ({} if augment else CITED[dataset]).items():
        cited: dict[str, Cell] = dict.fromkeys(rows[0])
        rows.append(cited | {"method": name, "recipe": "", "paper": value})
    tested = runs[0].results[0]["test"]["point"]["rows"]
    return Table(
        f"{TITLES[dataset]}{', augmented' if augment else ''}, {pluralize(epochs, 'epoch')}",
        [
            Column("method", "Method"),
            Column("recipe", "Settings"),
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


def _held_out(runs: Sequence[Trained]) -> str:
    """How many training images were held out, as a part of a sentence."""
    first = runs[0].results[0]
    if HELD not in first:
        return "all training images were trained on, with settings chosen on held-out ones before"
    return f"{first[HELD]['point']['rows']:,} training images were held out for all choices"


def _error(percent: float, images: int) -> float:
    return math.sqrt(percent * (100.0 - percent) / images)


def _averages(runs: Sequence[Trained]) -> str:
    """What the posterior averages are over, as a sentence."""
    sampled = [(run.recipe, run.results[0]) for run in runs if run.results[0]["samples"]]
    if not sampled:
        return ""
    each = {
        recipe: f"{pluralize(result['samples'], 'sample')} of "
        f"{pluralize(result.get('settings', {}).get('chains', 1), 'chain')} ({recipe})"
        for recipe, result in sampled
    }
    return " A posterior average is over " + ", ".join(each.values()) + "; chains share the epochs."


def difference_table(dataset: str, runs: Sequence[Trained], labels: Tensor) -> Table | None:
    """Accuracy of the average of SGHMC-SA minus that of every other row, paired over the same images.

    ``None`` without SGHMC-SA.
    """
    ours = [run for run in runs if run.method == "sghmc-sa"]
    if not ours:
        return None
    rows: list[dict[str, Cell]] = []
    for reference in ours:
        right = _right(reference, "average", labels)
        for run in runs:
            for kind, name in run.kinds():
                if (run, kind) != (reference, "average") and len(run.results) == len(reference.results):
                    gaps = 100.0 * (right - _right(run, kind, labels)).mean(dim=0)
                    rows.append(
                        {
                            "reference": reference.recipe,
                            "method": name,
                            "recipe": run.recipe,
                            "difference": Estimate(float(gaps.mean()), float(gaps.std()) / len(gaps) ** 0.5),
                        }
                    )
    return Table(
        f"{TITLES[dataset]}: SGHMC-SA, average, against the others",
        [
            Column("reference", "SGHMC-SA with"),
            Column("method", "against"),
            Column("recipe", "with"),
            Column("difference", "difference of accuracy, points", "+.2f"),
        ],
        rows,
        notes=[
            "Differences on the same test images and seeds; standard errors over the images. They do not hold the "
            "spread over seeds."
        ],
    )


def uncertainty_table(dataset: str, runs: Sequence[Trained], labels: Tensor) -> Table:
    """How well foreign images are told from the test images, and how accurate the confident answers are."""
    rows = [
        {"method": name, "recipe": run.recipe, "score": score.replace("_", " "), **cells}
        for run in runs
        for kind, name in run.kinds()
        for score, cells in _uncertainty(run, kind, labels)
    ]
    return Table(
        f"{TITLES[dataset]}: uncertainty",
        [
            Column("method", "Method"),
            Column("recipe", "Settings"),
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


def _uncertainty(run: Trained, kind: str, labels: Tensor) -> Iterator[tuple[str, dict[str, Cell]]]:
    """Detection by each score, with the accuracy on the surest half and nine tenths of the images."""
    shares = torch.tensor([0.5, 0.9])
    kept = torch.stack([selective_accuracy(kinds_of(each, "test")[kind], labels, shares) for each in run.predictions])
    half, most = (Estimate.of(values) for values in (100.0 * kept).T.tolist())
    for score in run.results[0]["foreign"][kind]:
        found = [result["foreign"][kind][score] for result in run.results]
        cells = {key: Estimate.of([100.0 * each[key] for each in found]) for key in ("auroc", "aupr", "fpr95")}
        yield score, {**cells, "half": half, "most": most}


def _right(run: Trained, kind: str, labels: Tensor) -> Tensor:
    """Whether each image is classified right, of shape (seeds, images)."""
    return torch.stack([(kinds_of(each, "test")[kind].argmax(dim=1) == labels).double() for each in run.predictions])


def _reported(method: str, kind: str) -> bool:
    """Whether the paper has a number: of the point estimate of Adam, of the average of SGHMC."""
    return (kind == "average") == method.startswith("sghmc")
