"""Figure 2 of the paper with the attack on the average added, and the overconfidence under attack."""

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

from spikeslab.paper._grid import CELLS
from spikeslab.paper.adversarial.study import AdversarialStudy, Attack, Curve, attack_images, read_target
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
    """Images under attack, with the predictions of the network.

    Attributes:
        attack: Network and attack.
        images: Images of shape (zetas, rows, height, width), for the zetas of the tables.
        named: Names of the predicted classes, by zeta and row.
        right: True where a prediction is correct.
        confidence: Probabilities of the predicted classes.
    """

    attack: Attack
    images: Tensor
    named: list[list[str]]
    right: list[list[bool]]
    confidence: list[list[float]]


def make_examples(study: AdversarialStudy, dataset: str) -> Examples:
    """Attack the first test images of different classes by the last attack of the study."""
    data = LOADERS[dataset](study.data_dir)
    attack = [attack for attack in study.attacks if attack.dataset == dataset][-1]
    firsts = {int(label): index for index, label in reversed(list(enumerate(data.y_test[:100])))}
    chosen = sorted(firsts.values())[:EXAMPLES]
    x = study.image_run(*attack[:2]).normalize(data.x_test[chosen])
    target = read_target(study, attack)
    moved = attack_images(target.attacked, study.attack, x, SHOWN)
    with torch.no_grad():
        probabilities = target.defence(moved.flatten(0, 1)).exp().unflatten(0, moved.shape[:2])
    confidence, predicted = probabilities.max(dim=-1)
    return Examples(
        attack,
        moved[:, :, 0],
        [[data.classes[index] for index in row] for row in predicted.tolist()],
        (predicted == data.y_test[chosen]).tolist(),
        confidence.tolist(),
    )


def adversarial_figure(curves: Sequence[Curve], shown: Sequence[Examples], paper: bool) -> Figure:
    """Draw images on the left and accuracy against zeta on the right, a row for each data set.

    Args:
        curves: Curves of all data sets.
        shown: Images of each data set.
        paper: If True, the paper's points are drawn too.
    """
    with style():
        figure = Figure(figsize=(WIDTH, 0.6 + 3.4 * len(shown)), layout="constrained")
        rows = figure.subfigures(len(shown), 1, squeeze=False)[:, 0]
        for number, (row, example) in enumerate(zip(rows, shown, strict=True)):
            left, right = row.subfigures(1, 2, width_ratios=(1.08, 1.0))
            dataset, method, _ = example.attack
            _draw_images(left, example, f"({'ac'[number]}) {TITLES[dataset]}, predictions of {NAMES[method]}")
            panel = right.subplots()
            _draw_curves(panel, [curve for curve in curves if curve.attack.dataset == dataset], paper)
            panel.set_title(f"({'bd'[number]}) {TITLES[dataset]}, accuracy under attack")
        figure.legend(handles=_handles(curves, paper), loc="outside lower center", **LEGEND)
    return figure


def confidence_figure(curves: Sequence[Curve]) -> Figure:
    """Draw mean confidence minus accuracy against zeta, a panel for each data set."""
    datasets = list(dict.fromkeys(curve.attack.dataset for curve in curves))
    with style():
        figure = Figure(figsize=(WIDTH, 3.6), layout="constrained")
        panels = figure.subplots(1, len(datasets), squeeze=False, sharey=True)[0]
        for panel, dataset in zip(panels, datasets, strict=True):
            for curve in curves:
                if curve.attack.dataset == dataset:
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
        if paper and curve.attack.kind != "averaged":
            points = paper_curve(curve.attack.dataset, curve.attack.method)
            colour = COLOURS[curve.attack.method]
            panel.plot(list(points), list(points.values()), "o", mfc="none", mec=colour, ms=4, mew=0.9, alpha=0.55)
    panel.set(xlim=(-0.01, 0.51), ylim=(0.0, 101.0), xlabel="ζ, largest change of a pixel", ylabel="accuracy, %")
    panel.grid(axis="y", lw=0.4, alpha=0.5)


def _draw_line(panel: Axes, curve: Curve, values: Sequence[float]) -> None:
    line = "--" if curve.attack.kind == "averaged" else "-"
    panel.plot(curve.zetas, values, line, color=COLOURS[curve.attack.method])


def _handles(curves: Sequence[Curve], paper: bool) -> list[Line2D]:
    methods = dict.fromkeys(curve.attack.method for curve in curves)
    handles = [Line2D([], [], color=COLOURS[method], lw=2.4, label=NAMES[method]) for method in methods]
    if any(curve.attack.kind == "averaged" for curve in curves):
        handles.append(Line2D([], [], color=INK, label="attack on one network"))
        handles.append(Line2D([], [], color=INK, ls="--", label="attack on the average"))
    if paper:
        handles.append(Line2D([], [], color=GREY, ls="", marker="o", mfc="none", ms=4, label="paper"))
    return handles


def write_adversarial(study: AdversarialStudy, curves: Sequence[Curve], out: Path) -> tuple[list[Table], list[Path]]:
    """Write tables and figures; return the short table and the paths of all files."""
    table = accuracy_table(curves, study)
    files = [out / CELLS, *table.write(out / TABLES[0], study.provenance)]
    files += curves_table(curves, study).write(out / TABLES[1], study.provenance)
    shown = [make_examples(study, dataset) for dataset in study.datasets]
    figures = adversarial_figure(curves, shown, paper=study.attack == "fgsm"), confidence_figure(curves)
    files += [save(figure, out / f"{name}.png") for figure, name in zip(figures, FIGURES, strict=True)]
    return [table], files
