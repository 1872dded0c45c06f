"""Tables and figures of MNIST and Fashion-MNIST, with the numbers of the paper and of the methods that it cites."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import torch
from matplotlib.figure import Figure
from torch import Tensor

from spikeslab.errors import pluralize
from spikeslab.metrics import entropy, mutual_information, reliability_curve, selective_accuracy
from spikeslab.paper.images.runs import (
    AVERAGE,
    ENSEMBLE,
    HELD,
    LAPLACE,
    MC,
    OTHER,
    POINT,
    SAMPLERS,
    SPARSE,
    stack_kinds,
    stack_members,
)
from spikeslab.report import plots
from spikeslab.report.figures import BLUE, GREEN, GREY, ORANGE, SKY, VERMILION, add_title, new_figure
from spikeslab.report.tables import Cell, Column, Estimate, Table

NAMES = {
    "vanilla": "Vanilla",
    "dropout": "Dropout",
    "swa": "SWA",
    "psgld": "pSGLD",
    "sghmc": "SGHMC",
    "sghmc-sa": "SGHMC-SA",
}
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
TITLES = {"mnist": "MNIST", "fashion": "Fashion-MNIST", "cifar10": "grey CIFAR-10"}
COLOURS = {"vanilla": GREY, "dropout": ORANGE, "swa": SKY, "psgld": VERMILION, "sghmc": GREEN, "sghmc-sa": BLUE}
COVERAGES = torch.linspace(0.5, 1.0, 26)
FEWEST_ROWS = 20
"""Fewest images of a bin whose accuracy is drawn."""


@dataclass(frozen=True)
class ImageRow:
    """Row of a table: one method with one preset, with a result and predictions of each seed.

    ``kind`` is one of those of :func:`~spikeslab.paper.images.runs.stack_kinds`. A result has one prediction of a kind
    that averages, and one for each network of the others.
    """

    method: str
    preset: str
    kind: str
    results: Sequence[Mapping[str, Any]]
    predictions: Sequence[Mapping[str, Tensor]]

    @property
    def name(self) -> str:
        """Name of the row."""
        name, size = NAMES[self.method], len(self.predictions[0][f"test.{POINT}"])
        plain = {POINT: f"{name}, last weights" if self.method in SAMPLERS else name, AVERAGE: name}
        references = {
            MC: "MC dropout",
            LAPLACE: "last-layer Laplace of Vanilla",
            ENSEMBLE: f"{name}, ensemble of {size}",
        }
        return (plain | references | {SPARSE: f"{name} without the spike's weights"})[self.kind]

    @property
    def reported(self) -> bool:
        """True for what the paper reports: one network of an optimizer and the average of a sampler."""
        return self.kind == (AVERAGE if self.method in SAMPLERS else POINT)

    def metrics(self, part: str = "test") -> list[Mapping[str, Any]]:
        """Return the metrics of all predictions on a part."""
        return [each for result in self.results for each in result[part][self.kind]]

    def estimate(self, metric: str, scale: float = 1.0, part: str = "test") -> Estimate | None:
        """Return the mean of a metric over seeds and networks, with its standard error."""
        if part not in self.results[0]:
            return None
        return Estimate.of([scale * each[metric] for each in self.metrics(part)])

    def detects(self, foreign: str, score: str = "entropy", metric: str = "auroc") -> Estimate | None:
        """Return how well a score tells foreign images apart, in per cent."""
        found = [each for result in self.results for each in result["foreign"][foreign].get(self.kind, [])]
        return Estimate.of([100.0 * each[score][metric] for each in found]) if found else None

    def probabilities(self, part: str = "test") -> Tensor:
        """Return the probabilities of a part by all predictions, of shape (predictions, images, classes)."""
        return torch.cat([stack_kinds(each, part)[self.kind] for each in self.predictions])


def make_rows(
    method: str, preset: str, results: Sequence[Mapping[str, Any]], predictions: Sequence[Mapping[str, Tensor]]
) -> list[ImageRow]:
    """Return a row for each kind of prediction."""
    return [ImageRow(method, preset, kind, results, predictions) for kind in results[0]["test"]]


def accuracy_table(dataset: str, rows: Sequence[ImageRow], augment: bool) -> Table:
    """Return accuracy, calibration and detection of foreign images of every row on the test images."""
    paper = PAPER[dataset, augment]
    foreign = rows[0].results[0]["foreign"]

    def auroc(name: str) -> Callable[[ImageRow], Estimate | None]:
        return lambda row: row.detects(name)

    def length(row: ImageRow) -> str:
        settings = row.results[0]["settings"]
        return f"{settings['chains']} x {settings['epochs']}"

    columns: dict[Column, Callable[[ImageRow], Cell]] = {
        Column("method", "Method"): lambda row: row.name,
        Column("preset", "Preset"): lambda row: row.preset,
        Column("paper", "accuracy %, paper", ".2f"): lambda row: paper.get(row.method) if row.reported else None,
        Column("accuracy", "accuracy %, ours", ".2f"): lambda row: row.estimate("accuracy", 100.0),
        Column("nll", "NLL", ".4f"): lambda row: row.estimate("nll"),
        Column("brier", "Brier", ".4f"): lambda row: row.estimate("brier"),
        Column("ece", "ECE %", ".2f"): lambda row: row.estimate("ece", 100.0),
        **{Column(f"auroc_{name}", f"AUROC %, {TITLES[name]}", ".2f"): auroc(name) for name in foreign},
        Column(HELD, "held-out accuracy %", ".2f"): lambda row: row.estimate("accuracy", 100.0, HELD),
        Column("length", "chains x epochs"): length,
        Column("runs", "seeds"): lambda row: len(row.results),
        Column("seconds", "seconds of a chain", ",.0f"): lambda row: _mean_seconds(row),
    }
    title = f"{TITLES[dataset]}{', augmented' if augment else ''}"
    table = Table.build(title, rows, columns, notes=[_accuracy_note(rows)])
    for name, value in ({} if augment else CITED[dataset]).items():
        table.rows.append(dict.fromkeys(table.rows[0]) | {"method": name, "preset": "", "paper": value})
    return table


def _mean_seconds(row: ImageRow) -> float:
    seconds: list[float] = [each for result in row.results for each in result["seconds"]]
    return sum(seconds) / len(seconds)


def _accuracy_note(rows: Sequence[ImageRow]) -> str:
    first = rows[0].results[0]
    tested = first["test"][POINT][0]["rows"]
    held_out = (
        f"{first[HELD][POINT][0]['rows']:,} training images were held out for all choices"
        if HELD in first
        else "all training images were trained on, with settings chosen on held-out ones before"
    )
    low, high = (math.sqrt(percent * (100.0 - percent) / tested) for percent in (99.5, 93.0))
    threads = sorted({each for row in rows for result in row.results for each in result["threads"]})
    return (
        f"{tested:,} test images, used once after the last step; {held_out}. An accuracy of p % has a standard error "
        f"over the images of √(p(100 − p)/n) points: {low:.2f} at 99.5 %, {high:.2f} at 93 %. ± is the standard error "
        "over seeds, and over networks where a row is about one network. Every chain or network has the same number of "
        f"epochs, on {pluralize(threads[-1], 'thread')}. AUROC: entropy tells the test images of another data set from "
        "those of its own. The paper's numbers are of the average for SGHMC and SGHMC-SA."
    )


def difference_table(dataset: str, rows: Sequence[ImageRow], labels: Tensor) -> Table | None:
    """Return accuracy and NLL of SGHMC-SA's average minus those of every other row, paired over images and seeds.

    Without SGHMC-SA there is no table.
    """
    ours = [row for row in rows if row.method == "sghmc-sa" and row.reported]
    pairs = [(own, row) for own in ours for row in rows if row is not own]
    if not ours:
        return None

    def over_seeds(pair: tuple[ImageRow, ImageRow]) -> Estimate | None:
        values = [score_images(row, labels)[0].mean(dim=1) for row in pair]
        return Estimate.of((100.0 * (values[0] - values[1])).tolist()) if len(values[0]) == len(values[1]) > 1 else None

    return Table.build(
        f"{TITLES[dataset]}: SGHMC-SA against the others",
        pairs,
        {
            Column("reference", "SGHMC-SA with"): lambda pair: pair[0].preset,
            Column("method", "against"): lambda pair: pair[1].name,
            Column("preset", "with"): lambda pair: pair[1].preset,
            Column("difference", "accuracy, points", "+.2f"): lambda pair: paired_difference(*pair, labels, 0, 100.0),
            Column("nll", "NLL", "+.4f"): lambda pair: paired_difference(*pair, labels, 1),
            Column("seeds", "accuracy over seeds, points", "+.2f"): over_seeds,
        },
        notes=[
            "Differences on the same test images, each prediction averaged over seeds and networks first; standard "
            "errors over the images, which do not hold the spread over seeds. The last column has the mean and "
            "standard error of the differences seed by seed, where both have the same number."
        ],
    )


def score_images(row: ImageRow, labels: Tensor) -> tuple[Tensor, Tensor]:
    """Return 1 for each right answer, and the NLL, both of shape (predictions, images)."""
    probabilities = row.probabilities()
    own = probabilities.gather(2, labels.view(1, -1, 1).expand(len(probabilities), -1, 1)).squeeze(2)
    return (probabilities.argmax(dim=2) == labels).double(), -own.double().log()


def paired_difference(first: ImageRow, second: ImageRow, labels: Tensor, score: int, scale: float = 1.0) -> Estimate:
    """Return the difference of accuracy (score 0) or NLL (1) of two rows, with its standard error over images."""
    one, other = (scale * score_images(row, labels)[score].mean(dim=0) for row in (first, second))
    gaps = one - other
    return Estimate(float(gaps.mean()), float(gaps.std()) / len(gaps) ** 0.5)


def uncertainty_table(dataset: str, rows: Sequence[ImageRow], labels: Tensor) -> Table:
    """Return the detection of foreign images by each score, and the accuracy of the most confident predictions."""
    items = [
        (row, name, score)
        for row in rows
        for name, kinds in row.results[0]["foreign"].items()
        if row.kind in kinds
        for score in kinds[row.kind][0]
    ]
    Item: TypeAlias = tuple[ImageRow, str, str]

    def detection(metric: str) -> Callable[[Item], Estimate | None]:
        return lambda item: item[0].detects(item[1], item[2], metric)

    def selective(share: float) -> Callable[[Item], Estimate]:
        shares = torch.tensor([share])
        return lambda item: Estimate.of(
            [100.0 * float(selective_accuracy(each, labels, shares)) for each in item[0].probabilities()]
        )

    return Table.build(
        f"{TITLES[dataset]}: uncertainty",
        items,
        {
            Column("method", "Method"): lambda item: item[0].name,
            Column("preset", "Preset"): lambda item: item[0].preset,
            Column("foreign", "foreign images"): lambda item: TITLES[item[1]],
            Column("score", "score"): lambda item: item[2].replace("_", " "),
            Column("auroc", "AUROC %", ".2f"): detection("auroc"),
            Column("aupr", "AUPR %", ".2f"): detection("aupr"),
            Column("fpr95", "FPR95 %", ".2f"): detection("fpr95"),
            Column("half", "accuracy %, surest half", ".2f"): selective(0.5),
            Column("most", "surest 90 %", ".2f"): selective(0.9),
        },
        notes=[
            "AUROC, AUPR and FPR95 of telling the test images of another data set, which the network never saw, from "
            "those of its own data by the score; a lower FPR95 is better. The last columns are the accuracy on the "
            "test images of which the model is most confident."
        ],
    )


def prior_table(dataset: str, rows: Sequence[ImageRow], labels: Tensor) -> Table | None:
    """Return the sparsity that SGHMC-SA's prior ends with, and the accuracy without the weights of the spike."""
    sparse = {row.preset: row for row in rows if row.kind == SPARSE}
    whole = [row for row in rows if row.method == "sghmc-sa" and row.reported]
    if not whole:
        return None

    def end(name: str, scale: float = 1.0) -> Callable[[ImageRow], Estimate]:
        return lambda row: Estimate.of([scale * each[name] for result in row.results for each in result["prior"]])

    return Table.build(
        f"{TITLES[dataset]}: the prior of fc1 after SGHMC-SA",
        whole,
        {
            Column("preset", "Preset"): lambda row: row.preset,
            Column("slab", "weights with ρ > ½, %", ".2f"): end("slab", 100.0),
            Column("delta", "δ", ".4f"): end("delta"),
            Column("kappa0", "mean κ₀", ".3g"): end("kappa0"),
            Column("kappa1", "mean κ₁", ".3g"): end("kappa1"),
            Column("accuracy", "accuracy %", ".2f"): lambda row: row.estimate("accuracy", 100.0),
            Column("sparse", "without the others", ".2f"): lambda row: sparse[row.preset].estimate("accuracy", 100.0),
            Column("difference", "difference, points", "+.2f"): lambda row: paired_difference(
                sparse[row.preset], row, labels, 0, 100.0
            ),
        },
        notes=[
            "The share, δ and κ are means over all chains ± standard error. Without the others: the average of the "
            "samples whose weights of fc1 with ρ of at most ½ at the end of their chain are set to zero. The "
            "difference is paired over the test images."
        ],
    )


def prior_figure(traces: Sequence[Sequence[Mapping[str, Any]]], title: str) -> Figure:
    """Draw the share of the slab, delta and the means of kappa against epochs, a line for each chain."""
    panels = {"slab": "share of fc1 with ρ > ½", "delta": "δ", "kappa0": "mean κ₀", "kappa1": "mean κ₁"}
    with new_figure(2.8) as figure:
        for axes, (name, label) in zip(figure.subplots(1, len(panels)), panels.items(), strict=True):
            for trace in traces:
                epochs, values = ([each[key] for each in trace] for key in ("epoch", name))
                axes.plot(epochs, values, color=BLUE, alpha=0.6, lw=1.2)
            axes.set(xlabel="epoch", title=label)
            axes.set_ylim(bottom=0.0)
        add_title(figure, title)
    return figure


def image_figures(dataset: str, rows: Sequence[ImageRow], labels: Tensor, about: str) -> dict[str, Figure]:
    """Return figures by name, for the rows of one preset that the paper reports.

    Curves are those of the first seed, bars are means over seeds. ``about`` is a part of the titles.
    """
    final = {row.name: row for row in rows if row.reported}
    there = OTHER[dataset]
    own, foreign = ({name: row.probabilities(part)[0] for name, row in final.items()} for part in ("test", there))
    colours = {name: COLOURS[row.method] for name, row in final.items()}
    reliability = {name: reliability_curve(p, labels) for name, p in own.items()}
    selective = {name: selective_accuracy(p, labels, COVERAGES) for name, p in own.items()}
    entropies = {name: (entropy(own[name]), entropy(foreign[name])) for name in own}
    scores = {
        name: {
            "error, %": Estimate.of([100.0 * (1.0 - each["accuracy"]) for each in row.metrics()]),
            "NLL": Estimate.of([each["nll"] for each in row.metrics()]),
            "Brier": Estimate.of([each["brier"] for each in row.metrics()]),
            "ECE, %": Estimate.of([100.0 * each["ece"] for each in row.metrics()]),
        }
        for name, row in final.items()
    }
    title, other = f"{TITLES[dataset]}, {about}", TITLES[there]
    figures = {
        "scores": plots.scores_figure(scores, colours),
        "reliability": plots.reliability_figure(reliability, colours, FEWEST_ROWS),
        "selective": plots.selective_accuracy_figure(selective, COVERAGES, colours),
        "detection": plots.detection_figure(entropies, colours),
    }
    titles = dict.fromkeys(figures, title) | {"detection": f"{title}: entropy tells {other} apart"}
    for name, row in final.items():
        if row.method == "sghmc-sa":
            spread = [mutual_information(stack_members(row.predictions[0], part)) for part in ("test", there)]
            both = {"entropy": entropies[name], "mutual information": (spread[0], spread[1])}
            figures["uncertainty"] = plots.uncertainty_figure(both, TITLES[dataset], other)
            titles["uncertainty"] = f"{title}: {name}"
    for name, figure in figures.items():
        add_title(figure, titles[name])
    return figures
