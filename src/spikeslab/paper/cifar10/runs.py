"""One compression of ResNet20 on CIFAR-10: a run in a folder, from the dense network to what the paper's table needs.

The recipe is fixed before the run. Without anything held out the test images are predicted once, after the last step.
Held-out images, where there are some, are judged in place of the test images, which then stay unseen; since a dense
network from outside has been trained on them, they rank settings and no more.
"""

from __future__ import annotations

import json
import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn

from spikeslab.compression import Compressed, Compression, Settings
from spikeslab.compression.evaluation import Evaluation, numbers
from spikeslab.compression.harness import WEIGHTS
from spikeslab.errors import SpikeSlabWarning, quote
from spikeslab.files import write_atomically
from spikeslab.paper.cifar10.data import Dense, OrderedBatches, batch_count, empty_network, train_batches
from spikeslab.paper.cifar10.penalty import SPARSE, Penalty
from spikeslab.paper.cifar10.presets import FIXED, PRESETS, split_method
from spikeslab.paper.images.data import Images
from spikeslab.training import Callback, CheckpointError, Every, MetricsLog, ShowProgress
from spikeslab.training.folder import METRICS, RECORD, changed_settings, in_json
from spikeslab.training.log import finite

RESULT = "result.json"
TEST, HELD_OUT = "test", "held_out"
TRAINING_IMAGES = 50_000
NEARLY = 0.005
"""The paper takes its best epoch among those whose sparsity is at most this far from the target."""


@dataclass(frozen=True)
class CifarRun:
    """What is run.

    Attributes:
        method: Method, with the strength of a fixed penalty after a colon.
        sparsity: Share of zeros in the whole network.
        preset: Name of the recipe.
        epochs: Epochs.
        batch_size: Images in a mini-batch.
        erasing: Whether rectangles of training images are erased.
        changes: Settings in place of the recipe's, by name.
        seed: Seed of the order of the images and of the noise.
        held_out: Training images that are held out, and judged in place of the test images.
        best_epoch: Whether the test images are judged after every epoch, as the paper did.
        structure: Whether single ``"weights"`` become zero or whole ``"channels"``, of which ``sparsity`` is then the
            share, among those that can be removed.
    """

    method: str
    sparsity: float
    preset: str
    epochs: int
    batch_size: int
    erasing: bool
    changes: tuple[tuple[str, Any], ...] = ()
    seed: int = 0
    held_out: int = 0
    best_epoch: bool = False
    structure: str = WEIGHTS

    @property
    def name(self) -> str:
        """Name of its folder."""
        parts = [self.method, f"{self.sparsity:g}", self.label.replace(", ", "-"), f"{self.epochs}epochs"]
        parts += [f"held{self.held_out}"] if self.held_out else []
        return "-".join([*parts, f"seed{self.seed}"]).replace(":", "=")

    @property
    def label(self) -> str:
        """The recipe, and what differs from it."""
        recipe = PRESETS[self.preset]
        others = [("batch", self.batch_size)] if self.batch_size != recipe.batch_size else []
        others += [("erasing", int(self.erasing))] if self.erasing != recipe.erasing else []
        words = [self.preset] if self.structure == WEIGHTS else [self.preset, self.structure]
        return ", ".join([*words, *(f"{name}={shown(value)}" for name, value in (*others, *self.changes))])

    def settings(self, rows: int) -> Settings:
        """All settings of the compression, of ``rows`` training images."""
        steps = self.epochs * batch_count(rows, self.batch_size)
        settings = PRESETS[self.preset].settings(self.sparsity, self.epochs, steps)
        changes, (name, strength) = dict(self.changes), split_method(self.method)
        if "strength" in changes and (name not in FIXED or strength is not None):
            raise ValueError(f"strength must go with {quote(FIXED)} alone, without a colon, but got {self.method!r}.")
        return settings.changed(**{"strength": strength, **changes})

    def facts(self, dense: Dense) -> dict[str, Any]:
        """What decides the result besides the settings."""
        return {
            "preset": self.preset,
            "label": self.label,
            "row": self.method,
            "batch_size": self.batch_size,
            "erasing": self.erasing,
            "held_out": self.held_out,
            "best_epoch": self.best_epoch,
            "structure": self.structure,
            "dense": dense.digest,
            "seen_all": dense.seen_all,
        }


def shown(value: Any) -> str:
    """The value of a setting as ``--set`` takes it.

    >>> shown((5e-4, 1.0)), shown(False)
    ('0.0005:1', 'false')
    """
    if isinstance(value, (tuple, list)):
        return ":".join(shown(part) for part in value)
    if isinstance(value, bool):
        return str(value).lower()
    return f"{value:g}" if isinstance(value, float) else str(value)


def check_run(run: CifarRun) -> None:
    """Raise if a run is impossible: all of it is made of an empty network and two black images, and nothing is run.

    Raises:
        ValueError, TypeError: With the name of the setting that is wrong.
    """
    black = [(torch.zeros(2, 3, 8, 8), torch.zeros(2, dtype=torch.long))]
    _compression(run, empty_network(), black, run.settings(TRAINING_IMAGES), num_data=TRAINING_IMAGES)


def _compression(run: CifarRun, model: nn.Module, train: Any, settings: Settings, **more: Any) -> Compression:
    return Compression(
        model,
        train,
        sparsity=run.sparsity,
        epochs=run.epochs,
        method=split_method(run.method)[0],
        settings=settings,
        seed=run.seed,
        progress=False,
        **_sparse(run.structure),
        **more,
    )


def run_cifar10(
    run: CifarRun,
    out: Path,
    data: Images,
    dense: Dense,
    *,
    command: str = "",
    progress: bool = True,
    checkpoint_every: Every | None = None,
) -> dict[str, Any]:
    """Do a run in its folder below ``out``, or go on with it; a run that is done is read.

    Returns:
        What ``result.json`` holds: the numbers of the dense, the sparse and the averaged network on the images that
        are judged, the non-zeros, the best epoch where it was asked for, and how it came about.

    Raises:
        CheckpointError: If the folder holds a run with other settings.
    """
    folder = out / run.name
    facts, settings = run.facts(dense), run.settings(len(data.y_train) - run.held_out)
    if (folder / RESULT).exists():
        return _read(folder / RESULT, facts, settings)
    x, y, x_held, y_held = data.hold_out(run.held_out)
    judged = OrderedBatches(x_held, y_held) if run.held_out else OrderedBatches(data.x_test, data.y_test)
    callbacks: list[Callback] = [Penalty()]
    callbacks += [ShowProgress(f"{run.method} at {run.sparsity:g}, seed {run.seed}")] if progress else []
    compression = _compression(
        run,
        dense.model,
        train_batches(x, y, batch_size=run.batch_size, seed=run.seed, erasing=run.erasing),
        settings,
        val_loader=judged if run.held_out or run.best_epoch else None,
        folder=folder,
        resume=True,
        callbacks=callbacks,
        checkpoint_every=checkpoint_every,
        command=command,
        facts=facts,
    )
    with warnings.catch_warnings():  # the paper's spike is wider than its slab, as the docs say
        warnings.filterwarnings("ignore", message="the spike .* is wider", category=SpikeSlabWarning)
        compressed = compression.run()
    result: dict[str, Any] = finite(
        {
            "command": command,
            "facts": facts,
            **describe(compressed, judged, dense),
            "part": HELD_OUT if run.held_out else TEST,
            "best_epoch": best_epoch(folder) if run.best_epoch else None,
            "seconds": json.loads((folder / RECORD).read_text(encoding="utf-8"))["seconds"],
        }
    )
    write_atomically(folder / RESULT, json.dumps(result, indent=1).encode())
    return result


def _sparse(structure: str) -> dict[str, Any]:
    """Which weights become zero, as arguments: the paper's, or whole channels wherever they can be removed."""
    return {"weights": SPARSE} if structure == WEIGHTS else {"structure": structure}


def describe(compressed: Compressed, judged: OrderedBatches, dense: Dense) -> dict[str, Any]:
    """The numbers of a compression; images that were not judged on the way are judged here, once."""
    found = compressed.evaluation or {
        "dense": Evaluation(compressed.task, judged).of_model(dense.model),
        **compressed.evaluate(judged),
    }
    kept = ("method", "target", "epochs", "seed", "samples", "settings", "sparse_layers", "network", "compacted")
    return {name: compressed.report[name] for name in kept if name in compressed.report} | {
        "rows": len(judged.labels),
        "files": compressed.evaluate_stored(judged),
        **{name: numbers(each) for name, each in found.items()},
    }


def best_epoch(folder: Path) -> dict[str, float] | None:
    """The epoch of the highest accuracy, by the log, among those that are nearly as sparse as the last."""
    records = MetricsLog(folder / METRICS).read()
    judged = [
        {"epoch": record["epoch"], "accuracy": record["evaluation"]["accuracy"]}
        for record in records
        if record["sparsity_sparse"] >= records[-1]["sparsity_sparse"] - NEARLY
    ]
    return max(judged, key=lambda record: record["accuracy"], default=None)


def _read(path: Path, facts: dict[str, Any], settings: Settings) -> dict[str, Any]:
    """The result of a run that is done.

    Raises:
        CheckpointError: If it was done with other settings.
    """
    result: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    changes = changed_settings(identity(result), in_json(settings.record() | facts))
    if changes:
        raise CheckpointError(f"settings must be those with which {path.parent} was made, but {changes}.")
    return result


def identity(result: Mapping[str, Any]) -> dict[str, Any]:
    """All that decided a result but the method, the sparsity, the epochs and the seed, which it has beside.

    A setting that was not there yet when the run was made had its default.
    """
    return {**in_json(Settings().record()), **result["settings"], **result["facts"]}


def read_results(out: Path) -> list[tuple[Path, dict[str, Any]]]:
    """All runs below a folder that are done, with their folders, whichever command made them."""
    found = [(path.parent, json.loads(path.read_text(encoding="utf-8"))) for path in sorted(out.glob(f"*/{RESULT}"))]
    return [(folder, result) for folder, result in found if "facts" in result]
