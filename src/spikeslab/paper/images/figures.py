"""Figures of MNIST and Fashion-MNIST: scores, reliability, selective accuracy and detection."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from matplotlib.figure import Figure
from torch import Tensor

from spikeslab.metrics import entropy, mutual_information, reliability_curve, selective_accuracy
from spikeslab.paper.images.runs import FOREIGN, OTHER, average_samples
from spikeslab.paper.images.tables import TITLES, ImageRow
from spikeslab.report import plots
from spikeslab.report.figures import BLUE, GREEN, GREY, ORANGE, add_title
from spikeslab.report.tables import Estimate

COLOURS = {"vanilla": GREY, "dropout": ORANGE, "sghmc": GREEN, "sghmc-sa": BLUE}
COVERAGES = torch.linspace(0.5, 1.0, 26)
FEWEST_ROWS = 20
"""Fewest images of a bin whose accuracy is drawn."""


def image_figures(dataset: str, runs: Sequence[ImageRow], labels: Tensor, about: str) -> dict[str, Figure]:
    """Return figures by name, for the runs of one preset.

    Vanilla and Dropout are evaluated at their last weights, SGHMC and SGHMC-SA by their posterior average. Curves are
    those of the first seed, bars are means over seeds.

    Args:
        dataset: ``"mnist"`` or ``"fashion"``.
        runs: Runs with one preset.
        labels: Labels of the test images.
        about: Preset and epochs, for the titles.
    """
    names = {run.method: list(run.kinds())[-1][1] for run in runs}
    first = {names[run.method]: run.predictions[0] for run in runs}
    own = {name: _final(predictions, "test") for name, predictions in first.items()}
    foreign = {name: _final(predictions, FOREIGN) for name, predictions in first.items()}
    colours = {name: COLOURS[method] for method, name in names.items()}
    reliability = {name: reliability_curve(p, labels) for name, p in own.items()}
    selective = {name: selective_accuracy(p, labels, COVERAGES) for name, p in own.items()}
    entropies = {name: (entropy(own[name]), entropy(foreign[name])) for name in own}
    title, other = f"{TITLES[dataset]}, {about}", TITLES[OTHER[dataset]]
    figures = {
        "scores": plots.scores_figure({names[run.method]: _scores(run) for run in runs}, colours),
        "reliability": plots.reliability_figure(reliability, colours, FEWEST_ROWS),
        "selective": plots.selective_accuracy_figure(selective, COVERAGES, colours),
        "detection": plots.detection_figure(entropies, colours),
    }
    titles = dict.fromkeys(figures, title) | {"detection": f"{title}: entropy tells {other} apart"}
    for run in runs:
        if run.method == "sghmc-sa":
            figures["uncertainty"] = plots.uncertainty_figure(_uncertainties(run), TITLES[dataset], other)
            titles["uncertainty"] = f"{title}: {names[run.method]}"
    for name, figure in figures.items():
        add_title(figure, titles[name])
    return figures


def _final(predictions: Mapping[str, Tensor], part: str) -> Tensor:
    """Return the average of the samples, or the point estimate of a run without samples."""
    return list(average_samples(predictions, part).values())[-1]


def _scores(run: ImageRow) -> dict[str, Estimate]:
    kind = list(run.kinds())[-1][0]
    return {
        "error, %": Estimate.of([100.0 * (1.0 - result["test"][kind]["accuracy"]) for result in run.results]),
        "NLL": run.estimate("test", kind, "nll"),
        "Brier": run.estimate("test", kind, "brier"),
        "ECE, %": run.estimate("test", kind, "ece", 100.0),
    }


def _uncertainties(run: ImageRow) -> dict[str, tuple[Tensor, Tensor]]:
    """Return the entropy of the average and the mutual information, of own and of foreign images."""
    samples = [run.predictions[0][f"{part}.samples"] for part in ("test", FOREIGN)]
    return {
        "entropy": (entropy(samples[0].mean(dim=0)), entropy(samples[1].mean(dim=0))),
        "mutual information": (mutual_information(samples[0]), mutual_information(samples[1])),
    }
