"""One compression of ResNet20 on CIFAR-10: a run in a folder, from the dense network to what the paper's table needs.

The recipe is fixed before the run. Without anything held out the test images are predicted once, after the last step.
Held-out images, where there are some, are judged in place of the test images, which then stay unseen; since a dense
network from outside has been trained on them, they rank settings and no more.
"""

from __future__ import annotations

import json
import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from spikeslab.compression import Compressed, Compression, Settings
from spikeslab.compression.evaluation import Evaluation, numbers
from spikeslab.datasets.images import Images
from spikeslab.errors import SpikeSlabWarning, quoted
from spikeslab.experiments.cifar10_data import Dense, OrderedBatches, train_batches
from spikeslab.experiments.cifar10_penalty import SPARSE, Penalty
from spikeslab.experiments.cifar10_recipes import FIXED, PRESETS, split_method
from spikeslab.files import write_atomically
from spikeslab.training import Callback, CheckpointError, Every, MetricsLog, ShowProgress
from spikeslab.training.folder import METRICS, RECORD
from spikeslab.training.log import finite

RESULT = "result.json"
TEST, HELD_OUT = "test", "held_out"
STRUCTURES = WEIGHTS, CHANNELS = ("weights", "channels")
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
        return ", ".join([*words, *(f"{name}={_text(value)}" for name, value in (*others, *self.changes))])

    def settings(self, rows: int) -> Settings:
        """All settings of the compression, of ``rows`` training images."""
        steps = self.epochs * (rows // min(rows, self.batch_size))
        settings = PRESETS[self.preset].settings(self.sparsity, self.epochs, steps)
        changes, (name, strength) = dict(self.changes), split_method(self.method)
        if "strength" in changes and (name not in FIXED or strength is not None):
            raise ValueError(f"strength must go with {quoted(FIXED)} alone, without a colon, but got {self.method!r}.")
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


def _text(value: Any) -> str:
    if isinstance(value, tuple):
        return ":".join(_text(part) for part in value)
    return f"{value:g}" if isinstance(value, float) else str(value)


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
    with warnings.catch_warnings():  # the paper's spike is wider than its slab, as the docs say
        warnings.filterwarnings("ignore", message="the spike .* is wider", category=SpikeSlabWarning)
        compression = Compression(
            dense.model,
            train_batches(x, y, batch_size=run.batch_size, seed=run.seed, erasing=run.erasing),
            judged if run.held_out or run.best_epoch else None,
            sparsity=run.sparsity,
            epochs=run.epochs,
            method=split_method(run.method)[0],
            settings=settings,
            seed=run.seed,
            folder=folder,
            resume=True,
            progress=False,
            callbacks=callbacks,
            checkpoint_every=checkpoint_every,
            command=command,
            facts=facts,
            **_sparse(run.structure),
        )
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
    before = {**result["settings"], **result["facts"]}
    now = json.loads(json.dumps({**settings.record(), **facts}, default=str))
    changes = [
        f"{name} was {value!r} and is now {now.get(name)!r}" for name, value in before.items() if now.get(name) != value
    ]
    if changes:
        raise CheckpointError(f"settings must be those with which {path.parent} was made, but {', '.join(changes)}.")
    return result


def read_results(out: Path) -> list[tuple[Path, dict[str, Any]]]:
    """All runs below a folder that are done, with their folders, whichever command made them."""
    found = [(path.parent, json.loads(path.read_text(encoding="utf-8"))) for path in sorted(out.glob(f"*/{RESULT}"))]
    return [(folder, result) for folder, result in found if "facts" in result]
