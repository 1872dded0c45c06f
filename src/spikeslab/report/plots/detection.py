"""Figures of uncertainty in- and out-of-distribution: its histograms, and how well it tells the two apart.

Both take pairs of scores by name: those of inputs of the kind that the model was trained on, and those of others.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from matplotlib.figure import Figure
from torch import Tensor

from spikeslab.metrics import detection, detection_curves
from spikeslab.report.figures import BLUE, GREY, VERMILION, WIDTH, style
from spikeslab.report.plots.classifiers import array, coloured, percent

BINS = 40


def uncertainty_figure(scores: Mapping[str, tuple[Tensor, Tensor]], own: str, foreign: str) -> Figure:
    """Draw histograms of scores, a panel for each, such as the predictive entropy and the mutual information.

    Args:
        scores: Scores of own and foreign inputs, by the name of the score.
        own: Name of the inputs of the kind that the model was trained on.
        foreign: Name of the others.
    """
    with style():
        figure = Figure(figsize=(WIDTH, 3.0), layout="constrained")
        panels = figure.subplots(1, len(scores), squeeze=False)[0]
        for axes, (name, pair) in zip(panels, scores.items(), strict=True):
            top = max(float(values.max()) for values in pair)
            edges = np.linspace(0.0, top or 1.0, BINS + 1)
            for values, colour, label in zip(pair, (BLUE, VERMILION), (own, foreign), strict=True):
                share = np.histogram(array(values.double()), edges)[0] / len(values)
                axes.stairs(share, edges, color=colour, fill=True, alpha=0.25)
                axes.stairs(share, edges, color=colour, label=label)
            axes.set_xlim(0.0, float(edges[-1]))
            axes.set_yscale("log")  # nearly all own inputs are in the first bin
            axes.set_ylim(0.5 / max(len(values) for values in pair), 1.0)
            axes.yaxis.set_major_formatter(percent)
            axes.set_xlabel(f"{name}, nats")
        panels[0].set_ylabel("share of the inputs, log scale")
        figure.legend(*panels[0].get_legend_handles_labels(), loc="outside lower center", ncols=2)
    return figure


def detection_figure(scores: Mapping[str, tuple[Tensor, Tensor]], colours: Mapping[str, str] | None = None) -> Figure:
    """Draw the ROC and the precision-recall curve of each score that shall be higher for foreign inputs.

    The false alarms of the ROC have a logarithmic axis: what matters of a good score is how few they are.

    Args:
        scores: Scores of own and foreign inputs, by the name of the model or of the score.
        colours: Colour of each.
    """
    with style():
        figure = Figure(figsize=(WIDTH, 4.4), layout="constrained")
        roc, recall = figure.subplots(1, 2)
        models = list(coloured(scores, colours))
        fewest = 1.0 / max(len(own) for _, (own, _), _ in models)
        guess = np.geomspace(fewest, 1.0, 100)
        roc.plot(guess, guess, color=GREY, linewidth=0.8, zorder=0)
        for name, (own, foreign), colour in models:
            curves, found = detection_curves(own, foreign), detection(own, foreign)
            label = f"{name}: AUROC {found.auroc:.3f}, AUPR {found.aupr:.3f}, FPR95 {found.fpr95:.3f}"
            roc.plot(array(curves.false_positive), array(curves.true_positive), color=colour, label=label)
            recall.plot(array(curves.recall), array(curves.precision), color=colour)
        roc.set_title("ROC")
        roc.set(xlabel="own inputs called foreign, log scale", ylabel="foreign inputs called foreign")
        roc.set_xscale("log")
        roc.set(xlim=(fewest, 1.0), ylim=(0.0, 1.01))
        roc.xaxis.set_major_formatter(percent)
        recall.set_title("precision and recall")
        recall.set(xlabel="recall: foreign inputs called foreign", ylabel="precision")
        least = min(float(line.get_ydata().min()) for line in recall.lines)  # of a guess, the share of foreign inputs
        recall.set(xlim=(0.0, 1.01), ylim=(least - 0.01, 1.01))
        figure.legend(*roc.get_legend_handles_labels(), loc="outside lower center")
    return figure
