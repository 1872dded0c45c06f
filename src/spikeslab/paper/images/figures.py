"""Figures of MNIST and Fashion-MNIST: scores, reliability, selective accuracy and detection."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from matplotlib.figure import Figure
from torch import Tensor

from spikeslab.metrics import entropy, mutual_information, reliability_curve, selective_accuracy
from spikeslab.paper.images.runs import FOREIGN, OTHER
from spikeslab.paper.images.tables import TITLES, ImageRow
from spikeslab.report import plots
from spikeslab.report.figures import BLUE, GREEN, GREY, ORANGE, add_title
from spikeslab.report.tables import Estimate

COLOURS = {"vanilla": GREY, "dropout": ORANGE, "sghmc": GREEN, "sghmc-sa": BLUE}
COVERAGES = torch.linspace(0.5, 1.0, 26)
FEWEST_ROWS = 20
"""Fewest images of a bin whose accuracy is drawn."""


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
    title, other = f"{TITLES[dataset]}, {about}", TITLES[OTHER[dataset]]
    figures = {
        "scores": plots.scores_figure({name: _scores(row) for name, row in final.items()}, colours),
        "reliability": plots.reliability_figure(reliability, colours, FEWEST_ROWS),
        "selective": plots.selective_accuracy_figure(selective, COVERAGES, colours),
        "detection": plots.detection_figure(entropies, colours),
    }
    titles = dict.fromkeys(figures, title) | {"detection": f"{title}: entropy tells {other} apart"}
    for name, row in final.items():
        if row.method == "sghmc-sa":
            spread = [mutual_information(row.predictions[0][f"{part}.samples"]) for part in ("test", FOREIGN)]
            scores = {"entropy": entropies[name], "mutual information": (spread[0], spread[1])}
            figures["uncertainty"] = plots.uncertainty_figure(scores, TITLES[dataset], other)
            titles["uncertainty"] = f"{title}: {name}"
    for name, figure in figures.items():
        add_title(figure, titles[name])
    return figures


def _scores(row: ImageRow) -> dict[str, Estimate]:
    return {
        "error, %": Estimate.of([100.0 * (1.0 - result["test"][row.kind]["accuracy"]) for result in row.results]),
        "NLL": row.estimate("nll"),
        "Brier": row.estimate("brier"),
        "ECE, %": row.estimate("ece", 100.0),
    }
