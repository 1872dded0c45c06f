"""Study of the image networks under attack (section 5.3, figure 2).

A point estimate is attacked along its own gradient. A posterior average is attacked in two ways and predicts both times
as the average: ``"single"`` follows the gradient of its last sample, the natural reading of the paper, and
``"averaged"`` that of the average itself. The first misses its target where the samples differ, so part of what it
shows is not robustness; the second is the honest attack.

A curve is measured in pieces of 1,000 images. Each finished piece is a line of a file, so that an interrupted study
continues, and pieces run in parallel. The tables and figures have the paper's numbers too.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from torch import Tensor

from spikeslab.attacks import LogProbabilities, fgsm_direction, move, of_model, of_posterior, pgd
from spikeslab.errors import ArgumentValueError, Phrase, check_choice, pluralize
from spikeslab.files import digest
from spikeslab.metrics import entropy
from spikeslab.paper._runs import read_result
from spikeslab.paper.grid import CELLS, Cell, CellFile, Record, run_cells
from spikeslab.paper.images.augmentation import PLAIN
from spikeslab.paper.images.data import LOADERS
from spikeslab.paper.images.presets import PRESETS, make_preset
from spikeslab.paper.images.runs import NETWORK, OTHER, ImageRun, read_network, read_run
from spikeslab.paper.images.study import ImageStudy
from spikeslab.paper.images.tables import COLOURS, NAMES, PAPER, TITLES
from spikeslab.report.figures import GREY, INK, VERMILION, new_figure, save
from spikeslab.report.tables import Column, Estimate, Provenance, Table, command_line

DATASETS = ("mnist", "fashion")
ATTACKS = ("fgsm", "pgd")
POINT, SAMPLED = ("itself",), ("single", "averaged")
KINDS = {"vanilla": POINT, "dropout": POINT, "sghmc": SAMPLED, "sghmc-sa": SAMPLED}
STEPS = tuple(round(0.05 * step, 2) for step in range(11))
ZETAS = {"mnist": STEPS, "fashion": (0.0, 0.01, *STEPS[1:])}
PIECE = 1000
IN_MEMORY = 1000
"""Images times samples whose intermediate results a gradient keeps: about 300 MB."""
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


class Attack(NamedTuple):
    """Attack of one kind on one network: a curve of the figure."""

    dataset: str
    method: str
    kind: str


@dataclass(frozen=True)
class AdversarialStudy:
    """Attacks on the first ``images`` test images, by FGSM or by PGD with ten steps.

    The networks are those of finished runs in ``mnist`` and ``fashion`` below ``runs``, made with the same preset and
    seed, and with its epochs and chains unless others are given; of several networks the first is attacked. Of each
    posterior ``samples`` are used, evenly spaced up to the last; ``None`` takes all.
    """

    datasets: tuple[str, ...]
    methods: tuple[str, ...]
    preset: str
    epochs: int | None = None
    chains: int | None = None
    seed: int = 0
    attack: str = "fgsm"
    images: int = 10_000
    samples: int | None = None
    runs: Path = Path("out")
    data_dir: Path | None = None
    workers: int = 1

    def __post_init__(self) -> None:
        check_choice("preset", self.preset, PRESETS)
        check_choice("attack", self.attack, ATTACKS)

    def image_run(self, dataset: str, method: str) -> ImageRun:
        """Return the run whose network is attacked."""
        preset = make_preset(self.preset, dataset)
        length = replace(preset, epochs=self.epochs or preset.epochs, chains=self.chains or preset.chains)
        return ImageRun(dataset, method, length, seed=self.seed)

    def folder(self, dataset: str, method: str) -> Path:
        """Return the folder of that run."""
        return self.image_run(dataset, method).folder(self.runs / dataset)

    @property
    def attacks(self) -> list[Attack]:
        """Attacks on all networks."""
        return [Attack(d, method, kind) for d in self.datasets for method in self.methods for kind in KINDS[method]]

    def pieces(self, attack: Attack) -> list[Cell]:
        """Return the pieces of a curve, each named by its first image and the digest of the network."""
        run = self.image_run(attack.dataset, attack.method)
        _, first = run.split(self.folder(attack.dataset, attack.method))[0]
        own = digest(first / NETWORK)[:12]
        return [Cell(f"{' '.join(attack)} {start} {own}", self.seed) for start in range(0, self.images, PIECE)]

    @property
    def cells(self) -> list[Cell]:
        """Pieces of all curves."""
        return [cell for attack in self.attacks for cell in self.pieces(attack)]

    @property
    def provenance(self) -> Provenance:
        """Command and seed that give the same numbers."""
        names = ("datasets", "methods", "preset", "epochs", "chains", "seed", "attack", "images", "samples")
        options = {name: getattr(self, name) for name in names}
        return Provenance(command_line("reproduce", "adversarial", **options), self.seed)


@dataclass(frozen=True)
class Curve:
    """Number of correct predictions, mean confidence and mean entropy in nats under one attack, for each zeta."""

    attack: Attack
    images: int
    right: Sequence[int]
    confidence: Sequence[float]
    entropy: Sequence[float]

    @classmethod
    def of(cls, attack: Attack, pieces: Sequence[Record]) -> Curve:
        """Return the curve over all its pieces."""
        images = sum(piece["images"] for piece in pieces)
        right, confidence, entropies = (
            [sum(values) for values in zip(*(piece[name] for piece in pieces), strict=True)]
            for name in ("right", "confidence", "entropy")
        )
        return cls(attack, images, right, [each / images for each in confidence], [each / images for each in entropies])

    @property
    def zetas(self) -> tuple[float, ...]:
        """Largest changes of a pixel."""
        return ZETAS[self.attack.dataset]

    def accuracy(self, zeta: float) -> Estimate:
        """Return the accuracy in per cent, with its binomial standard error over the images."""
        share = self.right[self.zetas.index(zeta)] / self.images
        return Estimate(100.0 * share, 100.0 * math.sqrt(share * (1.0 - share) / self.images))


def check_runs(study: AdversarialStudy) -> None:
    """Raise if a run is missing, unfinished or of other settings, or if there are too few samples or images."""
    for dataset in study.datasets:
        folders = {method: study.folder(dataset, method) for method in study.methods}
        results = {method: found for method, folder in folders.items() if (found := read_result(folder)) is not None}
        missing = [method for method in study.methods if method not in results]
        if missing:
            run = study.image_run(dataset, missing[0])
            changes = {name: value for name in ("epochs", "chains") if (value := getattr(study, name))}
            foreign = (OTHER[dataset], "cifar10")
            needed = ImageStudy(run, tuple(missing), (study.preset,), {}, changes, foreign).command
            raise ArgumentValueError(
                "runs",
                "must hold the finished runs",
                Phrase(f"{folders[missing[0]]} is missing or unfinished"),
                f"make {'it' if len(missing) == 1 else 'them'} with `{needed} --out {study.runs / dataset} --resume`",
            )
        for method, result in results.items():  # however many images they held out, in whatever precision
            run, samples = study.image_run(dataset, method), result["samples"]
            own = {name: result["settings"][name] for name in ("held_out", "precision")}
            read_run(replace(run, **own), folders[method])
            if samples and (study.samples or 1) > samples:
                expectation = f"must be at most the {samples} of {folders[method]}"
                raise ArgumentValueError("samples", expectation, study.samples)
        images = len(LOADERS[dataset](study.data_dir).y_test)
        if study.images > images:
            raise ArgumentValueError("images", f"must be at most {images:,}", study.images)


def run_adversarial(
    study: AdversarialStudy, out: Path, on_done: Callable[[int], None] = lambda cells: None
) -> list[Curve]:
    """Measure the pieces that ``out`` does not have, and return all curves; ``on_done`` counts finished pieces."""
    options: dict[str, Any] = {name: getattr(study, name) for name in ("preset", "attack", "images")}
    length: dict[str, Any] = {name: getattr(study, name) or "preset" for name in ("epochs", "chains")}
    samples = "all" if study.samples is None else study.samples
    file = CellFile.load_command(out / CELLS, "adversarial", **options, **length, samples=samples)
    run_cells(file, study.cells, partial(measure_piece, study), workers=study.workers, on_done=on_done)
    return [Curve.of(attack, [file.records[cell] for cell in study.pieces(attack)]) for attack in study.attacks]


def measure_piece(study: AdversarialStudy, cell: Cell) -> Record:
    """Measure one piece of one curve."""
    *names, start, _ = cell.method.split()
    attack = Attack(*names)
    data = LOADERS[attack.dataset](study.data_dir)
    rows = slice(int(start), min(int(start) + PIECE, study.images))
    x = PLAIN(data.x_test[rows])
    return measure(read_target(study, attack), study.attack, x, data.y_test[rows], ZETAS[attack.dataset])


class AttackedNetwork(NamedTuple):
    """Network whose gradient an attack follows, network that predicts, and the number of samples behind it."""

    attacked: LogProbabilities
    defence: LogProbabilities
    samples: int

    @torch.no_grad()
    def predict(self, images: Tensor) -> Tensor:
        """Return the probabilities of images of shape (zetas, rows, ...)."""
        probabilities: Tensor = self.defence(images.flatten(0, 1)).exp().unflatten(0, images.shape[:2])
        return probabilities


def read_target(study: AdversarialStudy, attack: Attack) -> AttackedNetwork:
    """Read the network that is attacked from its finished run."""
    run = study.image_run(attack.dataset, attack.method)
    model, posterior = read_network(run, study.folder(attack.dataset, attack.method))
    transform = run.normalize.standardise
    if posterior is None:
        return AttackedNetwork(of_model(model, transform), of_model(model, transform), 1)
    total, wanted = len(posterior), study.samples or len(posterior)
    chosen = [(index + 1) * total // wanted - 1 for index in range(wanted)]  # evenly spaced up to the last
    average = of_posterior(posterior, chosen, transform)
    attacked = of_model(posterior.sample(chosen[-1]), transform) if attack.kind == "single" else average
    return AttackedNetwork(attacked, average, len(chosen))


def measure(target: AttackedNetwork, attack: str, x: Tensor, y: Tensor, zetas: Sequence[float]) -> Record:
    """Return the sums over images of correct predictions, confidence and entropy, for each zeta.

    ``x`` are images in [0, 1]; the attack does not see their labels ``y``.
    """
    totals = torch.zeros(3, len(zetas), dtype=torch.float64)
    rows = max(1, min(100, IN_MEMORY // target.samples))
    for images, labels in zip(x.split(rows), y.split(rows), strict=True):
        probabilities = target.predict(attack_images(target.attacked, attack, images, zetas))
        confidence, predicted = probabilities.max(dim=-1)
        each = torch.stack([(predicted == labels).double(), confidence.double(), entropy(probabilities).double()])
        totals += each.sum(dim=-1)
    right, confident, entropies = totals.tolist()
    return {"images": len(y), "right": [round(r) for r in right], "confidence": confident, "entropy": entropies}


def attack_images(target: LogProbabilities, attack: str, x: Tensor, zetas: Sequence[float]) -> Tensor:
    """Return attacked images of shape (zetas, rows, ...); the attack does not see the labels."""
    if attack == "fgsm":
        direction = fgsm_direction(target, x)
        return torch.stack([move(x, direction, zeta) for zeta in zetas])
    return torch.stack([pgd(target, x, zeta) if zeta else x for zeta in zetas])


def paper_curve(attack: Attack) -> dict[float, float]:
    """Return the paper's accuracy in per cent by zeta; that of zeta 0 is from table 2."""
    dataset, method, _ = attack
    return dict(zip(ZETAS[dataset], (PAPER[dataset, False][method], *READ_OFF[dataset][method]), strict=True))


def accuracy_table(curves: Sequence[Curve], study: AdversarialStudy) -> Table:
    """Return the accuracy of every network under every attack at six zetas."""
    keys = {zeta: f"zeta {zeta:g}" for zeta in SHOWN}
    rows: list[Record] = []
    for curve in curves:
        rows.append(_names(curve.attack) | {key: curve.accuracy(zeta) for zeta, key in keys.items()})
        if study.attack == "fgsm" and curve.attack.kind != "averaged":
            paper = paper_curve(curve.attack)
            rows.append(_names(curve.attack) | {"attack": "paper"} | {key: paper[zeta] for zeta, key in keys.items()})
    columns = [*HEAD, *(Column(key, f"ζ = {zeta:g}", ".2f") for zeta, key in keys.items())]
    return Table(f"Accuracy under attack, %: {_title(study)}", columns, rows, _notes(curves, study))


def curves_table(curves: Sequence[Curve], study: AdversarialStudy) -> Table:
    """Return all measurements: a row for each network, attack and zeta."""
    rows: list[Record] = []
    for curve in curves:
        paper = paper_curve(curve.attack) if study.attack == "fgsm" else {}
        for zeta, sure, nats in zip(curve.zetas, curve.confidence, curve.entropy, strict=True):
            accuracy = {"accuracy": curve.accuracy(zeta), "paper": paper.get(zeta)}
            rows.append(_names(curve.attack) | accuracy | {"zeta": zeta, "confidence": 100.0 * sure, "entropy": nats})
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


def _names(attack: Attack) -> Record:
    return {"data": TITLES[attack.dataset], "method": NAMES[attack.method], "attack": KIND_NAMES[attack.kind]}


def _title(study: AdversarialStudy) -> str:
    attack = "FGSM" if study.attack == "fgsm" else "PGD, ten steps"
    preset = study.image_run(study.datasets[0], study.methods[0]).preset
    return f"{attack}, {study.preset} preset, {pluralize(preset.epochs, 'epoch')}"


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


def adversarial_figure(curves: Sequence[Curve], study: AdversarialStudy) -> Figure:
    """Draw images on the left and accuracy against zeta on the right, with the paper's, a row for each data set."""
    with new_figure(0.6 + 3.4 * len(study.datasets)) as figure:
        rows = figure.subfigures(len(study.datasets), 1, squeeze=False)[:, 0]
        for row, dataset, letters in zip(rows, study.datasets, ("ab", "cd"), strict=False):
            left, right = row.subfigures(1, 2, width_ratios=(1.08, 1.0))
            _draw_images(left, study, dataset, letters[0])
            panel = right.subplots()
            _draw_curves(panel, [curve for curve in curves if curve.attack.dataset == dataset], study.attack == "fgsm")
            panel.set_title(f"({letters[1]}) {TITLES[dataset]}, accuracy under attack")
        figure.legend(handles=_handles(curves, study.attack == "fgsm"), loc="outside lower center", **LEGEND)
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


def _draw_images(figure: Figure, study: AdversarialStudy, dataset: str, letter: str) -> None:
    """Draw the first test images of different classes under the last attack of the study, with the predictions."""
    data = LOADERS[dataset](study.data_dir)
    attack = [attack for attack in study.attacks if attack.dataset == dataset][-1]
    firsts = {int(label): index for index, label in reversed(list(enumerate(data.y_test[:100])))}
    chosen = sorted(firsts.values())[:EXAMPLES]
    target = read_target(study, attack)
    x = PLAIN(data.x_test[chosen])
    moved = attack_images(target.attacked, study.attack, x, SHOWN)
    confidence, predicted = target.predict(moved).max(dim=-1)
    for (row, column), panel in np.ndenumerate(figure.subplots(len(chosen), len(SHOWN), squeeze=False)):
        panel.imshow(moved[column, row, 0].numpy(), cmap="gray_r", vmin=0.0, vmax=1.0)
        panel.set(xticks=[], yticks=[])
        panel.spines[:].set_visible(False)
        label = int(predicted[column, row])
        text = f"{data.classes[label]}\n{100.0 * float(confidence[column, row]):.0f} %"
        colour = INK if label == int(data.y_test[chosen[row]]) else VERMILION
        panel.set_xlabel(text, fontsize=8.0, color=colour, labelpad=2.0)
        if row == 0:
            panel.set_title(f"ζ = {SHOWN[column]:g}", fontsize=9.0, fontweight="normal", loc="center")
    title = f"({letter}) {TITLES[dataset]}, predictions of {NAMES[attack.method]}"
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
    figures = adversarial_figure(curves, study), confidence_figure(curves)
    files += [save(figure, out / f"{name}.png") for figure, name in zip(figures, FIGURES, strict=True)]
    return [table], files
