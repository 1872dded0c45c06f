"""Tables and figures of MNIST and Fashion-MNIST, with the numbers of the paper and of the methods that it cites."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from matplotlib.figure import Figure
from torch import Tensor

from spikeslab.errors import pluralize
from spikeslab.metrics import entropy, mutual_information, reliability_curve, selective_accuracy
from spikeslab.paper.images.runs import ADAM, FOREIGN, HELD, OTHER, average_samples
from spikeslab.report import plots
from spikeslab.report.figures import BLUE, GREEN, GREY, ORANGE, add_title
from spikeslab.report.tables import Column, Estimate, Table

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
AUGMENTED_EPOCHS = {"mnist": "200", "fashion": "1,000"}  # of the paper
TITLES = {"mnist": "MNIST", "fashion": "Fashion-MNIST"}
COLOURS = {"vanilla": GREY, "dropout": ORANGE, "sghmc": GREEN, "sghmc-sa": BLUE}
COVERAGES = torch.linspace(0.5, 1.0, 26)
FEWEST_ROWS = 20
"""Fewest images of a bin whose accuracy is drawn."""


@dataclass(frozen=True)
class ImageRow:
    """Row of a table: one method with one preset, with a result and predictions of each seed.

    ``kind`` is ``"point"`` for the last weights or ``"average"`` for the mean over samples.
    """

    method: str
    preset: str
    kind: str
    results: Sequence[Mapping[str, Any]]
    predictions: Sequence[Mapping[str, Tensor]]

    @property
    def name(self) -> str:
        """Name of the row."""
        return f"{NAMES[self.method]}{', average' if self.kind == 'average' else ''}"

    @property
    def reported(self) -> bool:
        """True for the kind that the paper reports: the point estimate of Adam and the average of SGHMC."""
        return (self.kind == "point") == (self.method in ADAM)

    def estimate(self, metric: str, scale: float = 1.0, part: str = "test") -> Estimate:
        """Return the mean of a metric over seeds, with its standard error."""
        return Estimate.of([scale * result[part][self.kind][metric] for result in self.results])

    def probabilities(self, part: str) -> list[Tensor]:
        """Return the probabilities of the images of a part, for each seed."""
        return [average_samples(each, part)[self.kind] for each in self.predictions]


def make_rows(
    method: str, preset: str, results: Sequence[Mapping[str, Any]], predictions: Sequence[Mapping[str, Tensor]]
) -> list[ImageRow]:
    """Return the row of the point estimate and, where there are samples, that of their average."""
    kinds = ("point", "average") if results[0]["samples"] else ("point",)
    return [ImageRow(method, preset, kind, results, predictions) for kind in kinds]


def accuracy_table(dataset: str, rows: Sequence[ImageRow], epochs: int, augment: bool) -> Table:
    """Return the accuracy and calibration of every row on the test images."""
    paper, first = PAPER[dataset, augment], rows[0].results[0]
    length = f"trained for {AUGMENTED_EPOCHS[dataset]} epochs" if augment else "does not say how long it trained"
    table = Table.build(
        f"{TITLES[dataset]}{', augmented' if augment else ''}, {pluralize(epochs, 'epoch')}",
        rows,
        {
            Column("method", "Method"): lambda row: row.name,
            Column("preset", "Settings"): lambda row: row.preset,
            Column("paper", "accuracy %, paper", ".2f"): lambda row: paper[row.method] if row.reported else None,
            Column("accuracy", "accuracy %, ours", ".2f"): lambda row: row.estimate("accuracy", 100.0),
            Column("nll", "NLL", ".4f"): lambda row: row.estimate("nll"),
            Column("brier", "Brier", ".4f"): lambda row: row.estimate("brier"),
            Column("ece", "ECE %", ".2f"): lambda row: row.estimate("ece", 100.0),
            Column(HELD, "held-out accuracy %", ".2f"): lambda row: (
                row.estimate("accuracy", 100.0, HELD) if HELD in row.results[0] else None
            ),
            Column("runs", "runs"): lambda row: len(row.results),
        },
        notes=[_accuracy_note(rows, first["test"]["point"]["rows"], length)],
    )
    for name, value in ({} if augment else CITED[dataset]).items():
        table.rows.append(dict.fromkeys(table.rows[0]) | {"method": name, "preset": "", "paper": value})
    return table


def _accuracy_note(rows: Sequence[ImageRow], tested: int, paper: str) -> str:
    first = rows[0].results[0]
    held_out = (
        f"{first[HELD]['point']['rows']:,} training images were held out for all choices"
        if HELD in first
        else "all training images were trained on, with settings chosen on held-out ones before"
    )
    low, high = (math.sqrt(percent * (100.0 - percent) / tested) for percent in (99.5, 93.0))
    samples = {
        row.preset: f"{pluralize(row.results[0]['samples'], 'sample')} of "
        f"{pluralize(row.results[0].get('settings', {}).get('chains', 1), 'chain')} ({row.preset})"
        for row in rows
        if row.kind == "average"
    }
    average = f" A posterior average is over {', '.join(samples.values())}; chains share the epochs." if samples else ""
    return (
        f"{tested:,} test images, used once after the last step; {held_out}. An accuracy of p % has a standard error "
        f"over the images of √(p(100 − p)/n) points: {low:.2f} at 99.5 %, {high:.2f} at 93 %.{average} The paper "
        f"{paper}; its numbers are of the average for SGHMC and SGHMC-SA."
    )


def difference_table(dataset: str, rows: Sequence[ImageRow], labels: Tensor) -> Table | None:
    """Return the accuracy of SGHMC-SA's average minus that of every other row, paired over images.

    Without SGHMC-SA there is no table.
    """
    ours = [row for row in rows if row.method == "sghmc-sa" and row.reported]
    pairs = [(own, row) for own in ours for row in rows if row is not own and len(row.results) == len(own.results)]

    def difference(pair: tuple[ImageRow, ImageRow]) -> Estimate:
        correct = [
            torch.stack([(each.argmax(dim=1) == labels).double() for each in row.probabilities("test")]) for row in pair
        ]
        gaps = 100.0 * (correct[0] - correct[1]).mean(dim=0)
        return Estimate(float(gaps.mean()), float(gaps.std()) / len(gaps) ** 0.5)

    if not ours:
        return None
    return Table.build(
        f"{TITLES[dataset]}: SGHMC-SA, average, against the others",
        pairs,
        {
            Column("reference", "SGHMC-SA with"): lambda pair: pair[0].preset,
            Column("method", "against"): lambda pair: pair[1].name,
            Column("preset", "with"): lambda pair: pair[1].preset,
            Column("difference", "difference of accuracy, points", "+.2f"): difference,
        },
        notes=[
            "Differences on the same test images and seeds; standard errors over the images. They do not hold the "
            "spread over seeds."
        ],
    )


def uncertainty_table(dataset: str, rows: Sequence[ImageRow], labels: Tensor) -> Table:
    """Return the detection of foreign images by each score, and the accuracy of the most confident predictions."""

    def detection(metric: str) -> Callable[[tuple[ImageRow, str]], Estimate]:
        return lambda item: Estimate.of(
            [100.0 * result["foreign"][item[0].kind][item[1]][metric] for result in item[0].results]
        )

    def selective(share: float) -> Callable[[tuple[ImageRow, str]], Estimate]:
        shares = torch.tensor([share])
        return lambda item: Estimate.of(
            [100.0 * float(selective_accuracy(each, labels, shares)) for each in item[0].probabilities("test")]
        )

    return Table.build(
        f"{TITLES[dataset]}: uncertainty",
        [(row, score) for row in rows for score in row.results[0]["foreign"][row.kind]],
        {
            Column("method", "Method"): lambda item: item[0].name,
            Column("preset", "Settings"): lambda item: item[0].preset,
            Column("score", "score"): lambda item: item[1].replace("_", " "),
            Column("auroc", "AUROC %", ".2f"): detection("auroc"),
            Column("aupr", "AUPR %", ".2f"): detection("aupr"),
            Column("fpr95", "FPR95 %", ".2f"): detection("fpr95"),
            Column("half", "accuracy %, surest half", ".2f"): selective(0.5),
            Column("most", "surest 90 %", ".2f"): selective(0.9),
        },
        notes=[
            f"AUROC, AUPR and FPR95 of telling the test images of {TITLES[OTHER[dataset]]}, which the network never "
            "saw, from those of its own data by the score; a lower FPR95 is better. The last columns are the accuracy "
            "on the test images of which the model is most confident."
        ],
    )


def image_figures(dataset: str, rows: Sequence[ImageRow], labels: Tensor, about: str) -> dict[str, Figure]:
    """Return figures by name, for the rows of one preset that the paper reports.

    Curves are those of the first seed, bars are means over seeds. ``about`` is a part of the titles.
    """
    final = {row.name: row for row in rows if row.reported}
    own, foreign = ({name: row.probabilities(part)[0] for name, row in final.items()} for part in ("test", FOREIGN))
    colours = {name: COLOURS[row.method] for name, row in final.items()}
    reliability = {name: reliability_curve(p, labels) for name, p in own.items()}
    selective = {name: selective_accuracy(p, labels, COVERAGES) for name, p in own.items()}
    entropies = {name: (entropy(own[name]), entropy(foreign[name])) for name in own}
    scores = {
        name: {
            "error, %": Estimate.of([100.0 * (1.0 - result["test"][row.kind]["accuracy"]) for result in row.results]),
            "NLL": row.estimate("nll"),
            "Brier": row.estimate("brier"),
            "ECE, %": row.estimate("ece", 100.0),
        }
        for name, row in final.items()
    }
    title, other = f"{TITLES[dataset]}, {about}", TITLES[OTHER[dataset]]
    figures = {
        "scores": plots.scores_figure(scores, colours),
        "reliability": plots.reliability_figure(reliability, colours, FEWEST_ROWS),
        "selective": plots.selective_accuracy_figure(selective, COVERAGES, colours),
        "detection": plots.detection_figure(entropies, colours),
    }
    titles = dict.fromkeys(figures, title) | {"detection": f"{title}: entropy tells {other} apart"}
    for name, row in final.items():
        if row.method == "sghmc-sa":
            spread = [mutual_information(row.predictions[0][f"{part}.samples"]) for part in ("test", FOREIGN)]
            both = {"entropy": entropies[name], "mutual information": (spread[0], spread[1])}
            figures["uncertainty"] = plots.uncertainty_figure(both, TITLES[dataset], other)
            titles["uncertainty"] = f"{title}: {name}"
    for name, figure in figures.items():
        add_title(figure, titles[name])
    return figures
