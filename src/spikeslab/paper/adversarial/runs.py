"""Accuracy of the image runs under attack (section 5.3, figure 2): finished networks, and images that move by zeta.

A point estimate is attacked along its own gradient. A posterior average is attacked in two ways and predicts both times
as the average: ``"single"`` follows the gradient of its last sample, the natural reading of the paper, and
``"averaged"`` that of the average itself. The first misses its target where the samples differ, so part of what it
shows is not robustness; the second is the honest one.

A curve is measured in pieces of 1,000 images. Each finished piece is a line of a file, so that a run that was stopped
goes on, and pieces run side by side.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from hashlib import sha256
from importlib.metadata import version
from pathlib import Path
from typing import Any, NamedTuple, cast

import torch
from torch import Tensor, nn

from spikeslab.attacks import LogProbabilities, fgsm_direction, move, of_model, of_posterior, pgd
from spikeslab.metrics import entropy
from spikeslab.paper.cells import Cell, CellFile, Record, run_cells
from spikeslab.paper.images.data import LOADERS
from spikeslab.paper.images.presets import make_recipe
from spikeslab.paper.images.runs import NETWORK, RESULT, ImageRun, read_network, read_result
from spikeslab.paper.images.study import ImagePlan
from spikeslab.posterior import Chains
from spikeslab.report.tables import Estimate, Provenance, command_line

DATASETS = ("mnist", "fashion")
ATTACKS = ("fgsm", "pgd")
KINDS = {
    "vanilla": ("itself",),
    "dropout": ("itself",),
    "sghmc": ("single", "averaged"),
    "sghmc-sa": ("single", "averaged"),
}
STEPS = tuple(round(0.05 * step, 2) for step in range(11))
ZETAS = {"mnist": STEPS, "fashion": (0.0, 0.01, *STEPS[1:])}
CELLS = "cells.jsonl"
PIECE = 1000
# Images times samples whose intermediate results a gradient keeps: about 300 MB.
HELD = 1000


class Contest(NamedTuple):
    """An attack of one kind on one network: a curve of the figure."""

    dataset: str
    method: str
    kind: str


@dataclass(frozen=True)
class AdversarialPlan:
    """What is attacked, and how.

    Attributes:
        datasets: ``"mnist"``, ``"fashion"``.
        methods: Methods.
        recipe: Name of the settings of the runs.
        epochs: Epochs of the runs.
        seed: Seed of the runs.
        attack: ``"fgsm"``, or ``"pgd"`` with ten steps.
        images: The first so many test images.
        samples: Samples of a posterior that are used, evenly spaced, the last among them; ``None`` takes all.
        runs: Folder that holds ``mnist`` and ``fashion`` with the finished runs.
        data_dir: Where the images are.
        workers: Processes.
    """

    datasets: tuple[str, ...]
    methods: tuple[str, ...]
    recipe: str
    epochs: int
    seed: int = 0
    attack: str = "fgsm"
    images: int = 10_000
    samples: int | None = None
    runs: Path = Path("out")
    data_dir: Path | None = None
    workers: int = 1

    def image_run(self, dataset: str, method: str) -> ImageRun:
        """The run whose network is attacked."""
        return ImageRun(dataset, method, make_recipe(self.recipe, dataset), self.epochs, seed=self.seed)

    def folder(self, dataset: str, method: str) -> Path:
        """Where that run is."""
        return self.runs / dataset / self.image_run(dataset, method).name

    @property
    def contests(self) -> list[Contest]:
        """All curves."""
        return [Contest(d, method, kind) for d in self.datasets for method in self.methods for kind in KINDS[method]]

    def pieces(self, contest: Contest) -> list[Cell]:
        """The pieces of a curve, each with its first image and the digest of the network, which may be trained anew."""
        network = self.folder(contest.dataset, contest.method) / NETWORK
        digest = sha256(network.read_bytes()).hexdigest()[:12]
        return [Cell(" ".join((*contest, str(start), digest)), self.seed) for start in range(0, self.images, PIECE)]

    @property
    def cells(self) -> list[Cell]:
        """The pieces of all curves."""
        return [cell for contest in self.contests for cell in self.pieces(contest)]

    @property
    def run(self) -> Provenance:
        """Command and seed that give the same numbers."""
        names = ("datasets", "methods", "recipe", "epochs", "seed", "attack", "images", "samples")
        return Provenance(
            command_line("reproduce", "adversarial", **{name: getattr(self, name) for name in names}), self.seed
        )


@dataclass(frozen=True)
class Curve:
    """What a network makes of the attacked images, for each zeta.

    Attributes:
        contest: Data set, method and kind of attack.
        zetas: Sizes of the attack.
        images: Number of images.
        right: How many are classified rightly.
        confidence: Mean of the largest probability.
        entropy: Mean entropy of the prediction, in nats.
    """

    contest: Contest
    zetas: tuple[float, ...]
    images: int
    right: tuple[int, ...]
    confidence: tuple[float, ...]
    entropy: tuple[float, ...]

    def accuracy(self, zeta: float) -> Estimate:
        """Accuracy in per cent, with its binomial standard error over the images."""
        share = self.right[self.zetas.index(zeta)] / self.images
        return Estimate(100.0 * share, 100.0 * math.sqrt(share * (1.0 - share) / self.images))


def check_runs(plan: AdversarialPlan) -> None:
    """Raise if a run or the images are missing, before any work is done.

    Raises:
        FileNotFoundError: If a run is missing or has not finished; the message has the command that makes it.
        CheckpointError: If a run was done with other settings.
        ValueError: If there are fewer images or samples than wanted.
    """
    for dataset in plan.datasets:
        missing = [method for method in plan.methods if not (plan.folder(dataset, method) / RESULT).is_file()]
        if missing:
            need = ImagePlan(dataset, tuple(missing), (plan.recipe,), plan.epochs, (plan.seed,), augment=False)
            raise FileNotFoundError(
                f"--runs must hold the finished runs, but {plan.folder(dataset, missing[0])} is none: make "
                f"{'it' if len(missing) == 1 else 'them'} with `{need.command} --out {plan.runs / dataset} --resume`."
            )
        for method in plan.methods:
            result = _result(plan, dataset, method)
            if result["samples"] and (plan.samples or 1) > result["samples"]:
                raise ValueError(
                    f"--samples must be at most the {result['samples']} that {plan.folder(dataset, method)} has, but "
                    f"got {plan.samples}."
                )
        found = len(LOADERS[dataset](plan.data_dir).y_test)
        if plan.images > found:
            raise ValueError(f"--images must be at most {found:,}, but got {plan.images}.")


def _result(plan: AdversarialPlan, dataset: str, method: str) -> dict[str, Any]:
    """What a finished run found; how many images it held out does not matter here."""
    run, folder = plan.image_run(dataset, method), plan.folder(dataset, method)
    held_out = json.loads((folder / RESULT).read_text(encoding="utf-8"))["settings"]["held_out"]
    return cast(dict[str, Any], read_result(replace(run, held_out=held_out), folder))


def run_adversarial(
    plan: AdversarialPlan, out: Path, on_done: Callable[[int], None] = lambda cells: None
) -> list[Curve]:
    """Measure the pieces that ``out`` does not have yet.

    Args:
        plan: What is attacked.
        out: Folder of the finished pieces.
        on_done: Called with the number of pieces done since the last call.

    Raises:
        SettingsError: If ``out`` holds results of other settings.
    """
    settings: dict[str, str | int] = {
        "spikeslab reproduce": "adversarial",
        "--recipe": plan.recipe,
        "--epochs": plan.epochs,
        "--attack": plan.attack,
        "--images": plan.images,
        "--samples": "all" if plan.samples is None else plan.samples,
        "version": version("spikeslab"),
    }
    file = CellFile(out / CELLS, settings)
    on_done(sum(cell in file for cell in plan.cells))
    run_cells(file, plan.cells, partial(work, plan), workers=plan.workers, on_done=lambda _: on_done(1))
    return [_curve(contest, [file[cell] for cell in plan.pieces(contest)]) for contest in plan.contests]


def work(plan: AdversarialPlan, cell: Cell) -> Record:
    """One piece of one curve."""
    *names, start, _ = cell.method.split()
    contest = Contest(*names)
    data = LOADERS[contest.dataset](plan.data_dir)
    rows = slice(int(start), min(int(start) + PIECE, plan.images))
    x = plan.image_run(contest.dataset, contest.method).normalize(data.x_test[rows])
    return measure(read_targets(plan, contest), plan.attack, x, data.y_test[rows], ZETAS[contest.dataset])


class Targets(NamedTuple):
    """Whose gradient the attack follows, who predicts, and the networks behind it."""

    attacked: LogProbabilities
    defence: LogProbabilities
    samples: int


def read_targets(plan: AdversarialPlan, contest: Contest) -> Targets:
    """The targets of a finished run."""
    run = plan.image_run(contest.dataset, contest.method)
    model, posterior = read_network(run, plan.folder(contest.dataset, contest.method))
    return targets(model, posterior, contest.kind, plan.samples)


def targets(model: nn.Module, posterior: Chains | None, kind: str, samples: int | None = None) -> Targets:
    """The targets of a kind of attack on a network, or on the average of its posterior."""
    if posterior is None:
        return Targets(of_model(model), of_model(model), 1)
    chosen = evenly_spaced(len(posterior), samples or len(posterior))
    average = of_posterior(posterior, chosen)
    attacked = of_model(posterior.sample(chosen[-1])) if kind == "single" else average
    return Targets(attacked, average, len(chosen))


def evenly_spaced(total: int, wanted: int) -> list[int]:
    """Indices of ``wanted`` of ``total`` samples, the last among them.

    >>> evenly_spaced(20, 4)
    [4, 9, 14, 19]
    """
    return [(index + 1) * total // wanted - 1 for index in range(wanted)]


def measure(targets: Targets, attack: str, x: Tensor, y: Tensor, zetas: Sequence[float]) -> Record:
    """Sums over images of right predictions, confidence and entropy, for each zeta.

    Args:
        targets: Whose gradient is followed, and who predicts.
        attack: ``"fgsm"`` or ``"pgd"``; neither sees the labels.
        x: Images in [0, 1].
        y: Labels.
        zetas: Sizes of the attack.
    """
    totals = torch.zeros(3, len(zetas), dtype=torch.float64)
    rows = max(1, min(100, HELD // targets.samples))
    for images, labels in zip(x.split(rows), y.split(rows), strict=True):
        moved = attacked_images(targets.attacked, attack, images, zetas)
        with torch.no_grad():
            probabilities = targets.defence(moved.flatten(0, 1)).exp().unflatten(0, moved.shape[:2])
        confidence, predicted = probabilities.max(dim=-1)
        each = torch.stack([(predicted == labels).double(), confidence.double(), entropy(probabilities).double()])
        totals += each.sum(dim=-1)
    right, confident, entropies = totals.tolist()
    return {"images": len(y), "right": [round(r) for r in right], "confidence": confident, "entropy": entropies}


def attacked_images(target: LogProbabilities, attack: str, x: Tensor, zetas: Sequence[float]) -> Tensor:
    """Images under attack without labels, of shape (zetas, rows, ...)."""
    if attack == "fgsm":
        direction = fgsm_direction(target, x)
        return torch.stack([move(x, direction, zeta) for zeta in zetas])
    return torch.stack([pgd(target, x, zeta) if zeta else x for zeta in zetas])


def _curve(contest: Contest, pieces: Sequence[Record]) -> Curve:
    images = sum(piece["images"] for piece in pieces)
    sums = {
        name: tuple(sum(values) for values in zip(*(piece[name] for piece in pieces), strict=True))
        for name in ("right", "confidence", "entropy")
    }
    confidence, entropies = (tuple(total / images for total in sums[name]) for name in ("confidence", "entropy"))
    return Curve(contest, ZETAS[contest.dataset], images, sums["right"], confidence, entropies)
