"""Tables and figures of the image networks under attack, with the paper's numbers."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from torch import Tensor

from spikeslab.errors import pluralize
from spikeslab.paper._grid import CELLS
from spikeslab.paper.adversarial.study import ZETAS, AdversarialStudy, Attack, Curve, attack_images, read_target
from spikeslab.paper.images.data import LOADERS
from spikeslab.paper.images.figures import COLOURS
from spikeslab.paper.images.tables import NAMES, PAPER, TITLES
from spikeslab.report.figures import GREY, INK, VERMILION, new_figure, save
from spikeslab.report.tables import Cell, Column, Table

EXAMPLES = 3
LEGEND: dict[str, Any] = {"ncols": 7, "columnspacing": 1.2, "handlelength": 1.6, "handletextpad": 0.5}
TABLES, FIGURES = ("accuracy", "curves"), ("figure2", "confidence")
"""Names of the files."""
SHOWN = (0.0, 0.1, 0.2, 0.3, 0.4, 0.5)
HEAD = (Column("data", "Data"), Column("method", "Method"), Column("attack", "Attack along"))
KIND_NAMES = {"itself": "its own gradient", "single": "one sample's gradient", "averaged": "the average's gradient"}
# Accuracy in per cent at the zetas above 0, read off figure 2 of the paper: good to about 0.7 points.
READ_OFF: dict[str, dict[str, tuple[float, ...]]] = {
    "mnist": {
        "vanilla": (97.4, 92.9, 82.2, 64.3, 43.7, 28.1, 19.1, 14.2, 11.7, 10.3),
        "dropout": (98.1, 94.5, 87.0, 74.3, 57.9, 43.0, 30.3, 21.1, 15.5, 12.7),
        "sghmc": (99.1, 97.4, 93.0, 84.8, 70.8, 55.3, 42.2, 31.9, 24.6, 19.9),
        "sghmc-sa": (99.0, 98.1, 94.2, 86.3, 73.9, 58.4, 45.0, 34.7, 27.1, 22.7),
    },
    "fashion": {
        "vanilla": (88.9, 60.5, 40.2, 30.1, 22.4, 17.1, 14.2, 12.2, 10.7, 9.7, 8.9),
        "dropout": (90.7, 63.1, 42.5, 32.7, 24.8, 19.0, 15.9, 13.9, 12.2, 11.3, 10.6),
        "sghmc": (91.0, 77.1, 57.9, 45.0, 36.5, 28.9, 23.1, 19.1, 16.1, 14.4, 13.4),
        "sghmc-sa": (91.7, 78.5, 56.9, 46.2, 38.1, 30.6, 24.8, 20.9, 17.9, 16.3, 15.2),
    },
}


def paper_curve(attack: Attack) -> dict[float, float]:
    """Return the paper's accuracy in per cent by zeta; that of zeta 0 is from table 2."""
    dataset, method, _ = attack
    return dict(zip(ZETAS[dataset], (PAPER[dataset, False][method], *READ_OFF[dataset][method]), strict=True))


def accuracy_table(curves: Sequence[Curve], study: AdversarialStudy) -> Table:
    """Return the accuracy of every network under every attack at six zetas."""
    keys = {zeta: f"zeta {zeta:g}" for zeta in SHOWN}
    rows: list[dict[str, Cell]] = []
    for curve in curves:
        rows.append(_names(curve.attack) | {key: curve.accuracy(zeta) for zeta, key in keys.items()})
        if study.attack == "fgsm" and curve.attack.kind != "averaged":
            paper = paper_curve(curve.attack)
            rows.append(_names(curve.attack) | {"attack": "paper"} | {key: paper[zeta] for zeta, key in keys.items()})
    columns = [*HEAD, *(Column(key, f"ζ = {zeta:g}", ".2f") for zeta, key in keys.items())]
    return Table(f"Accuracy under attack, %: {_title(study)}", columns, rows, _notes(curves, study))


def curves_table(curves: Sequence[Curve], study: AdversarialStudy) -> Table:
    """Return all measurements: a row for each network, attack and zeta."""
    rows: list[dict[str, Cell]] = []
    for curve in curves:
        paper = paper_curve(curve.attack) if study.attack == "fgsm" else {}
        for zeta, sure, entropy in zip(curve.zetas, curve.confidence, curve.entropy, strict=True):
            accuracy = {"accuracy": curve.accuracy(zeta), "paper": paper.get(zeta)}
            rows.append(
                {**_names(curve.attack), **accuracy, "zeta": zeta, "confidence": 100.0 * sure, "entropy": entropy}
            )
    columns = [
        *HEAD,
        Column("zeta", "ζ", ".2f"),
        Column("accuracy", "accuracy %", ".2f"),
        Column("confidence", "mean confidence %", ".2f"),
        Column("entropy", "mean entropy", ".3f"),
        Column("paper", "accuracy %, paper", ".1f"),
    ]
    notes = [
        "Confidence is the largest probability of a prediction; entropy is in nats, at most 2.303. "
        "A network that knows when it is fooled loses confidence as it loses accuracy.",
        *_notes(curves, study),
    ]
    return Table(f"Accuracy and confidence under attack: {_title(study)}", columns, rows, notes)


def _names(attack: Attack) -> dict[str, Cell]:
    return {"data": TITLES[attack.dataset], "method": NAMES[attack.method], "attack": KIND_NAMES[attack.kind]}


def _title(study: AdversarialStudy) -> str:
    attack = "FGSM" if study.attack == "fgsm" else "PGD, ten steps"
    return f"{attack}, {study.preset} settings, {pluralize(study.epochs, 'epoch')}"


def _notes(curves: Sequence[Curve], study: AdversarialStudy) -> list[str]:
    notes = [
        f"The first {curves[0].images:,} test images ± binomial standard error. The attack does not see the labels: it "
        "lowers the probability of the predicted class, no pixel moves by more than ζ, and all stay in [0, 1].",
        "SGHMC and SGHMC-SA always predict as the average of their samples. An attack along the gradient of one sample "
        "misses the others; the honest attack follows the gradient of the average.",
    ]
    if study.attack == "fgsm":
        notes.append("The paper's numbers are read off its figure 2, good to about 0.7 points; at ζ = 0 its table 2.")
    return notes


class Examples(NamedTuple):
    """Images under attack of shape (zetas, rows, height, width), with the predictions and their correctness."""

    attack: Attack
    images: Tensor
    predictions: list[list[str]]
    right: list[list[bool]]


def make_examples(study: AdversarialStudy, dataset: str) -> Examples:
    """Attack the first test images of different classes by the last attack of the study."""
    data = LOADERS[dataset](study.data_dir)
    attack = [attack for attack in study.attacks if attack.dataset == dataset][-1]
    firsts = {int(label): index for index, label in reversed(list(enumerate(data.y_test[:100])))}
    chosen = sorted(firsts.values())[:EXAMPLES]
    x = study.image_run(*attack[:2]).normalize(data.x_test[chosen])
    target = read_target(study, attack)
    moved = attack_images(target.attacked, study.attack, x, SHOWN)
    confidence, predicted = target.predict(moved).max(dim=-1)
    predictions = [
        [f"{data.classes[index]}\n{100.0 * share:.0f} %" for index, share in zip(*row, strict=True)]
        for row in zip(predicted.tolist(), confidence.tolist(), strict=True)
    ]
    return Examples(attack, moved[:, :, 0], predictions, (predicted == data.y_test[chosen]).tolist())


def adversarial_figure(curves: Sequence[Curve], shown: Sequence[Examples], paper: bool) -> Figure:
    """Draw images on the left and accuracy against zeta on the right, a row for each data set.

    With ``paper`` the paper's points are drawn too.
    """
    with new_figure(0.6 + 3.4 * len(shown)) as figure:
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
    with new_figure(3.6) as figure:
        panels = figure.subplots(1, len(datasets), squeeze=False, sharey=True)[0]
        for panel, dataset in zip(panels, datasets, strict=True):
            for curve in curves:
                if curve.attack.dataset == dataset:
                    accuracy = [curve.accuracy(zeta).mean for zeta in curve.zetas]
                    excess = [100.0 * sure - right for sure, right in zip(curve.confidence, accuracy, strict=True)]
                    _draw_line(panel, curve, excess)
            panel.axhline(0.0, color=GREY, lw=0.8, zorder=0)
            title = f"{TITLES[dataset]}, overconfidence under attack"
            panel.set(xlabel="ζ, largest change of a pixel", title=title)
        panels[0].set_ylabel("confidence minus accuracy, points")
        figure.legend(handles=_handles(curves, paper=False), loc="outside lower center", **LEGEND)
    return figure


def _draw_images(figure: Figure, example: Examples, title: str) -> None:
    zetas, rows = example.images.shape[:2]
    panels = figure.subplots(rows, zetas, squeeze=False)
    for (row, column), panel in np.ndenumerate(panels):
        panel.imshow(example.images[column, row].numpy(), cmap="gray_r", vmin=0.0, vmax=1.0)
        panel.set(xticks=[], yticks=[])
        panel.spines[:].set_visible(False)
        colour = INK if example.right[column][row] else VERMILION
        panel.set_xlabel(example.predictions[column][row], fontsize=8.0, color=colour, labelpad=2.0)
    for panel, zeta in zip(panels[0], SHOWN, strict=True):
        panel.set_title(f"ζ = {zeta:g}", fontsize=9.0, fontweight="normal", loc="center")
    figure.suptitle(title, x=0.01, ha="left", fontsize=10.5, fontweight="bold")


def _draw_curves(panel: Axes, curves: Sequence[Curve], paper: bool) -> None:
    for curve in curves:
        _draw_line(panel, curve, [curve.accuracy(zeta).mean for zeta in curve.zetas])
        if paper and curve.attack.kind != "averaged":
            points, colour = paper_curve(curve.attack), COLOURS[curve.attack.method]
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
