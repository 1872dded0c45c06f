"""Figure 2 of the paper with the honest attack beside its own, and how sure the networks are under attack."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from torch import Tensor

from spikeslab.paper.adversarial.runs import CELLS, AdversarialPlan, Contest, Curve, attacked_images, read_targets
from spikeslab.paper.adversarial.tables import SHOWN, accuracy_table, curves_table, paper_curve
from spikeslab.paper.images.data import LOADERS
from spikeslab.paper.images.figures import COLOURS
from spikeslab.paper.images.tables import NAMES, TITLES
from spikeslab.report.figures import GREY, INK, VERMILION, WIDTH, save, style
from spikeslab.report.tables import Table

EXAMPLES = 3
LEGEND: dict[str, Any] = {"ncols": 7, "columnspacing": 1.2, "handlelength": 1.6, "handletextpad": 0.5}
TABLES, FIGURES = ("accuracy", "curves"), ("figure2", "confidence")
"""Names of the files."""


@dataclass(frozen=True)
class Examples:
    """A few images under attack, and what the network makes of them.

    Attributes:
        contest: Network and attack.
        images: Images of shape (zetas, rows, height, width), for the zetas of the tables.
        named: Names of the predicted classes, by zeta and row.
        right: Whether they are right.
        confidence: Their probabilities.
    """

    contest: Contest
    images: Tensor
    named: list[list[str]]
    right: list[list[bool]]
    confidence: list[list[float]]


def examples(plan: AdversarialPlan, dataset: str) -> Examples:
    """The first test images of different classes under the last, most honest attack of the plan."""
    data = LOADERS[dataset](plan.data_dir)
    contest = [contest for contest in plan.contests if contest.dataset == dataset][-1]
    firsts = {int(label): index for index, label in reversed(list(enumerate(data.y_test[:100])))}
    chosen = sorted(firsts.values())[:EXAMPLES]
    x = plan.image_run(*contest[:2]).normalize(data.x_test[chosen])
    targets = read_targets(plan, contest)
    moved = attacked_images(targets.attacked, plan.attack, x, SHOWN)
    with torch.no_grad():
        probabilities = targets.defence(moved.flatten(0, 1)).exp().unflatten(0, moved.shape[:2])
    confidence, predicted = probabilities.max(dim=-1)
    return Examples(
        contest,
        moved[:, :, 0],
        [[data.classes[index] for index in row] for row in predicted.tolist()],
        (predicted == data.y_test[chosen]).tolist(),
        confidence.tolist(),
    )


def adversarial_figure(curves: Sequence[Curve], shown: Sequence[Examples], paper: bool) -> Figure:
    """Images on the left, accuracy against zeta on the right, a row for each data set.

    Args:
        curves: The curves.
        shown: Images of each data set.
        paper: Whether the paper's points stand beside the curves.
    """
    with style():
        figure = Figure(figsize=(WIDTH, 0.6 + 3.4 * len(shown)), layout="constrained")
        rows = figure.subfigures(len(shown), 1, squeeze=False)[:, 0]
        for number, (row, example) in enumerate(zip(rows, shown, strict=True)):
            left, right = row.subfigures(1, 2, width_ratios=(1.08, 1.0))
            dataset, method, _ = example.contest
            _draw_images(left, example, f"({'ac'[number]}) {TITLES[dataset]}, predictions of {NAMES[method]}")
            panel = right.subplots()
            _draw_curves(panel, [curve for curve in curves if curve.contest.dataset == dataset], paper)
            panel.set_title(f"({'bd'[number]}) {TITLES[dataset]}, accuracy under attack")
        figure.legend(handles=_handles(curves, paper), loc="outside lower center", **LEGEND)
    return figure


def confidence_figure(curves: Sequence[Curve]) -> Figure:
    """Mean confidence minus accuracy against zeta, a panel for each data set."""
    datasets = list(dict.fromkeys(curve.contest.dataset for curve in curves))
    with style():
        figure = Figure(figsize=(WIDTH, 3.6), layout="constrained")
        panels = figure.subplots(1, len(datasets), squeeze=False, sharey=True)[0]
        for panel, dataset in zip(panels, datasets, strict=True):
            for curve in curves:
                if curve.contest.dataset == dataset:
                    accuracy = [curve.accuracy(zeta).mean for zeta in curve.zetas]
                    excess = [100.0 * sure - right for sure, right in zip(curve.confidence, accuracy, strict=True)]
                    _draw_line(panel, curve, excess)
            panel.axhline(0.0, color=GREY, lw=0.8, zorder=0)
            panel.set_title(f"{TITLES[dataset]}, overconfidence under attack")
            panel.set_xlabel("ζ, largest change of a pixel")
        panels[0].set_ylabel("confidence minus accuracy, points")
        figure.legend(handles=_handles(curves, paper=False), loc="outside lower center", **LEGEND)
    return figure


def _draw_images(figure: Figure, example: Examples, title: str) -> None:
    zetas, rows = example.images.shape[:2]
    panels = figure.subplots(rows, zetas, squeeze=False)
    for row in range(rows):
        for column in range(zetas):
            panel = panels[row, column]
            panel.imshow(example.images[column, row].numpy(), cmap="gray_r", vmin=0.0, vmax=1.0)
            panel.set(xticks=[], yticks=[])
            panel.spines[:].set_visible(False)
            label = f"{example.named[column][row]}\n{100.0 * example.confidence[column][row]:.0f} %"
            panel.set_xlabel(label, fontsize=8.0, color=INK if example.right[column][row] else VERMILION, labelpad=2.0)
    for panel, zeta in zip(panels[0], SHOWN, strict=True):
        panel.set_title(f"ζ = {zeta:g}", fontsize=9.0, fontweight="normal", loc="center")
    figure.suptitle(title, x=0.01, ha="left", fontsize=10.5, fontweight="bold")


def _draw_curves(panel: Axes, curves: Sequence[Curve], paper: bool) -> None:
    for curve in curves:
        _draw_line(panel, curve, [curve.accuracy(zeta).mean for zeta in curve.zetas])
        if paper and curve.contest.kind != "averaged":
            points = paper_curve(curve.contest.dataset, curve.contest.method)
            colour = COLOURS[curve.contest.method]
            panel.plot(list(points), list(points.values()), "o", mfc="none", mec=colour, ms=4, mew=0.9, alpha=0.55)
    panel.set(xlim=(-0.01, 0.51), ylim=(0.0, 101.0), xlabel="ζ, largest change of a pixel", ylabel="accuracy, %")
    panel.grid(axis="y", lw=0.4, alpha=0.5)


def _draw_line(panel: Axes, curve: Curve, values: Sequence[float]) -> None:
    line = "--" if curve.contest.kind == "averaged" else "-"
    panel.plot(curve.zetas, values, line, color=COLOURS[curve.contest.method])


def _handles(curves: Sequence[Curve], paper: bool) -> list[Line2D]:
    methods = dict.fromkeys(curve.contest.method for curve in curves)
    handles = [Line2D([], [], color=COLOURS[method], lw=2.4, label=NAMES[method]) for method in methods]
    if any(curve.contest.kind == "averaged" for curve in curves):
        handles.append(Line2D([], [], color=INK, label="attack on one network"))
        handles.append(Line2D([], [], color=INK, ls="--", label="attack on the average"))
    if paper:
        handles.append(Line2D([], [], color=GREY, ls="", marker="o", mfc="none", ms=4, label="paper"))
    return handles


def write_adversarial(plan: AdversarialPlan, curves: Sequence[Curve], out: Path) -> tuple[list[Table], list[Path]]:
    """Write tables and figures, replacing earlier ones; returns the short table and the paths of all files."""
    table = accuracy_table(curves, plan)
    files = [out / CELLS, *table.write(out / TABLES[0], plan.run)]
    files += curves_table(curves, plan).write(out / TABLES[1], plan.run)
    shown = [examples(plan, dataset) for dataset in plan.datasets]
    figures = adversarial_figure(curves, shown, paper=plan.attack == "fgsm"), confidence_figure(curves)
    files += [save(figure, out / f"{name}.png") for figure, name in zip(figures, FIGURES, strict=True)]
    return [table], files
