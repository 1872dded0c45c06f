"""Study of the image networks under attack (section 5.3, figure 2).

A point estimate is attacked along its own gradient. A posterior average is attacked in two ways and predicts both times
as the average: ``"single"`` follows the gradient of its last sample, the natural reading of the paper, and
``"averaged"`` that of the average itself. The first misses its target where the samples differ, so part of what it
shows is not robustness; the second is the honest attack.

A curve is measured in pieces of 1,000 images. Each finished piece is a line of a file, so that an interrupted study
continues, and pieces run in parallel.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor

from spikeslab.attacks import LogProbabilities, fgsm_direction, move, of_model, of_posterior, pgd
from spikeslab.errors import ArgumentValueError, Phrase, check_choice
from spikeslab.files import digest
from spikeslab.metrics import entropy
from spikeslab.paper._grid import CELLS, Cell, CellFile, Record, run_cells
from spikeslab.paper.images.data import LOADERS
from spikeslab.paper.images.presets import PRESETS, make_preset
from spikeslab.paper.images.runs import NETWORK, ImageRun, read_network, read_run
from spikeslab.paper.images.study import ImageStudy
from spikeslab.paper.runs import OLD_PRESETS, read_result
from spikeslab.report.tables import Estimate, Provenance, command_line

DATASETS = ("mnist", "fashion")
ATTACKS = ("fgsm", "pgd")
POINT, SAMPLED = ("itself",), ("single", "averaged")
KINDS = {"vanilla": POINT, "dropout": POINT, "sghmc": SAMPLED, "sghmc-sa": SAMPLED}
STEPS = tuple(round(0.05 * step, 2) for step in range(11))
ZETAS = {"mnist": STEPS, "fashion": (0.0, 0.01, *STEPS[1:])}
PIECE = 1000
IN_MEMORY = 1000
"""Images times samples whose intermediate results a gradient keeps: about 300 MB."""


class Attack(NamedTuple):
    """Attack of one kind on one network: a curve of the figure."""

    dataset: str
    method: str
    kind: str


@dataclass(frozen=True)
class AdversarialStudy:
    """Attacks on the first ``images`` test images, by FGSM or by PGD with ten steps.

    The networks are those of finished runs in ``mnist`` and ``fashion`` below ``runs``, made with the same preset,
    epochs and seed. Of each posterior ``samples`` are used, evenly spaced up to the last; ``None`` takes all.
    """

    datasets: tuple[str, ...]
    methods: tuple[str, ...]
    preset: str
    epochs: int
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
        return ImageRun(dataset, method, make_preset(self.preset, dataset), self.epochs, seed=self.seed)

    def folder(self, dataset: str, method: str) -> Path:
        """Return the folder of that run."""
        return self.image_run(dataset, method).folder(self.runs / dataset)

    @property
    def attacks(self) -> list[Attack]:
        """Attacks on all networks."""
        return [Attack(d, method, kind) for d in self.datasets for method in self.methods for kind in KINDS[method]]

    def pieces(self, attack: Attack) -> list[Cell]:
        """Return the pieces of a curve, each named by its first image and the digest of the network."""
        own = digest(self.folder(attack.dataset, attack.method) / NETWORK)[:12]
        return [Cell(f"{' '.join(attack)} {start} {own}", self.seed) for start in range(0, self.images, PIECE)]

    @property
    def cells(self) -> list[Cell]:
        """Pieces of all curves."""
        return [cell for attack in self.attacks for cell in self.pieces(attack)]

    @property
    def provenance(self) -> Provenance:
        """Command and seed that give the same numbers."""
        names = ("datasets", "methods", "preset", "epochs", "seed", "attack", "images", "samples")
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
    """Raise if a run or the images are missing, before any work is done.

    Raises:
        ArgumentValueError: If a run is missing or unfinished, or has too few samples, or the images are too few.
        CheckpointError: If a run was made with other settings.
    """
    for dataset in study.datasets:
        missing = [method for method in study.methods if read_result(study.folder(dataset, method)) is None]
        if missing:
            run = study.image_run(dataset, missing[0])
            needed = ImageStudy(run, tuple(missing), (study.preset,), (study.seed,)).command
            raise ArgumentValueError(
                "runs",
                "must hold the finished runs",
                Phrase(f"{study.folder(dataset, missing[0])} is missing or unfinished"),
                f"make {'it' if len(missing) == 1 else 'them'} with `{needed} --out {study.runs / dataset} --resume`",
            )
        for method in study.methods:
            run, folder = study.image_run(dataset, method), study.folder(dataset, method)
            held_out = (read_result(folder) or {})["settings"]["held_out"]  # any number will do
            samples = (read_run(replace(run, held_out=held_out), folder) or {})["samples"]
            if samples and (study.samples or 1) > samples:
                raise ArgumentValueError("samples", f"must be at most the {samples} of {folder}", study.samples)
        found = len(LOADERS[dataset](study.data_dir).y_test)
        if study.images > found:
            raise ArgumentValueError("images", f"must be at most {found:,}", study.images)


def run_adversarial(
    study: AdversarialStudy, out: Path, on_done: Callable[[int], None] = lambda cells: None
) -> list[Curve]:
    """Measure the pieces that ``out`` does not have yet, and return all curves; ``on_done`` is that of ``run_cells``.

    Raises:
        SettingsError: If ``out`` holds results of other settings.
    """
    options = {name: getattr(study, name) for name in ("preset", "epochs", "attack", "images")}
    samples = "all" if study.samples is None else study.samples
    renamed = {"--recipe": "--preset", **OLD_PRESETS}
    file = CellFile.of_command(out / CELLS, "adversarial", renamed, **options, samples=samples)
    run_cells(file, study.cells, partial(measure_piece, study), workers=study.workers, on_done=on_done)
    return [Curve.of(attack, [file[cell] for cell in study.pieces(attack)]) for attack in study.attacks]


def measure_piece(study: AdversarialStudy, cell: Cell) -> Record:
    """Measure one piece of one curve."""
    *names, start, _ = cell.method.split()
    attack = Attack(*names)
    data = LOADERS[attack.dataset](study.data_dir)
    rows = slice(int(start), min(int(start) + PIECE, study.images))
    x = study.image_run(attack.dataset, attack.method).normalize(data.x_test[rows])
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
    if posterior is None:
        return AttackedNetwork(of_model(model), of_model(model), 1)
    total, wanted = len(posterior), study.samples or len(posterior)
    chosen = [(index + 1) * total // wanted - 1 for index in range(wanted)]  # evenly spaced up to the last
    average = of_posterior(posterior, chosen)
    attacked = of_model(posterior.sample(chosen[-1])) if attack.kind == "single" else average
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
