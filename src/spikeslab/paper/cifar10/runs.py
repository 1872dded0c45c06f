"""Run of one compression of ResNet20 on CIFAR-10, from the dense network to the numbers of table 3.

Settings are fixed before a run. The test images are predicted once, after the last step. Held-out images, where there
are some, take the place of the test images, which then stay unseen; a dense network from a file has usually been
trained on them, so they only rank settings.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

import torch
from torch import nn

from spikeslab.compression import Compressed, Compression, Settings
from spikeslab.compression.compress import WEIGHTS, CompressionRun
from spikeslab.compression.tasks import Evaluation, keep_numbers
from spikeslab.errors import ArgumentError, ArgumentValueError, SpikeSlabWarning, first_line, mark, quote
from spikeslab.paper._runs import RESULT, check_settings, read_result, run_folder, write_result
from spikeslab.paper.cifar10.data import Dense, OrderedBatches, new_network
from spikeslab.paper.cifar10.presets import FIXED, PRESETS, split_method
from spikeslab.paper.images.augmentation import Augment
from spikeslab.paper.images.data import Images
from spikeslab.priors import Prior
from spikeslab.training import Callback, CheckpointError, Every, MetricsLog, ShowProgress, TensorBatches, Training
from spikeslab.training.run_folder import METRICS_FILE, RECORD_FILE, read_run_record, to_json
from spikeslab.weights import select_weights

SPARSE = "layer*.conv*.weight"
"""Weights that the paper prunes: all 3 x 3 convolutions but the first."""
INNER = "layer*.conv1.weight"
"""Layers that lose channels: the first convolution of each block."""
TEST, HELD_OUT = "test", "held_out"
SINGLE, AVERAGE = "sparse", "average"
TRAINING_IMAGES = 50_000
GIVEN = {"method", "sparsity", "structure", *(field.name for field in fields(Settings))}
"""Arguments of ``compress`` that a run gives."""
NEARLY = 0.005
"""Distance from the last sparsity within which the paper takes its best epoch."""


@dataclass(frozen=True)
class CifarRun:
    """Run of one method at one sparsity of the whole network with one seed.

    A method may have the strength of a fixed penalty after a colon. ``changes`` are settings in place of the preset's,
    by name. ``erasing`` erases rectangles of training images. ``held_out`` training images are evaluated in place of
    the test images; with ``best_epoch`` these are evaluated after every epoch, as in the paper. The structure
    ``"channels"`` prunes whole channels, of which ``sparsity`` is then the share among those that can be removed.
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
        """Name of the folder."""
        parts = [self.method, f"{self.sparsity:g}", self.label.replace(", ", "-"), f"{self.epochs}epochs"]
        parts += [f"held{self.held_out}"] if self.held_out else []
        return "-".join([*parts, f"seed{self.seed}"]).replace(":", "=")

    @property
    def label(self) -> str:
        """Preset, and the values that differ from it."""
        preset = PRESETS[self.preset]
        others = [("batch", self.batch_size)] if self.batch_size != preset.batch_size else []
        others += [("erasing", int(self.erasing))] if self.erasing != preset.erasing else []
        words = [self.preset] if self.structure == WEIGHTS else [self.preset, self.structure]
        return ", ".join([*words, *(f"{name}={format_value(value)}" for name, value in (*others, *self.changes))])

    def settings(self, rows: int) -> Settings:
        """Return all settings of the compression with ``rows`` training images."""
        steps = self.epochs * (rows // min(rows, self.batch_size))
        settings = PRESETS[self.preset].settings(self.sparsity, self.epochs, steps)
        changes, (name, strength) = dict(self.changes), split_method(self.method)
        if "strength" in changes and (name not in FIXED or strength is not None):
            raise ArgumentValueError("strength", f"must go with {quote(FIXED)} alone, without a colon", self.method)
        return settings.change(**{"strength": strength, **changes})

    def facts(self, dense: Dense) -> dict[str, Any]:
        """Return what decides the result besides the settings."""
        names = ("preset", "label", "batch_size", "erasing", "held_out", "best_epoch", "structure")
        own = {name: getattr(self, name) for name in names}
        return own | {"row": self.method, "dense": dense.digest, "seen_all": dense.seen_all}


def format_value(value: Any) -> str:
    """Return the value of a setting as ``--set`` takes it.

    >>> format_value((5e-4, 1.0)), format_value(False)
    ('0.0005:1', 'false')
    """
    if isinstance(value, (tuple, list)):
        return ":".join(format_value(part) for part in value)
    if isinstance(value, bool):
        return str(value).lower()
    return f"{value:g}" if isinstance(value, float) else str(value)


def check_run(run: CifarRun) -> None:
    """Raise if a run is impossible, by preparing it with an untrained network and two black images.

    Raises:
        ArgumentError: With the name of the setting that is wrong, or of ``methods`` if the method causes it.
    """
    black = [(torch.zeros(2, 3, 8, 8), torch.zeros(2, dtype=torch.long))]
    try:
        _prepare(run, new_network(), black, run.settings(TRAINING_IMAGES), num_data=TRAINING_IMAGES)
    except (ArgumentError, ValueError, TypeError) as error:
        if isinstance(error, ArgumentError) and error.argument in GIVEN:
            raise error.change(hint="") from error  # the hint may name arguments that a run does not have
        expectation = f"must be ones for {mark('preset', run.preset)}"
        raise ArgumentValueError("methods", expectation, run.method, first_line(error, marked=True)) from error


def _prepare(run: CifarRun, model: nn.Module, train: Any, settings: Settings, **more: Any) -> CompressionRun:
    sparse: dict[str, Any] = {"weights": SPARSE if run.structure == WEIGHTS else INNER, "structure": run.structure}
    return Compression(
        model,
        train,
        sparsity=run.sparsity,
        epochs=run.epochs,
        method=split_method(run.method)[0],
        settings=settings,
        seed=run.seed,
        progress=False,
        **sparse,
        **more,
    ).prepare()


def run_cifar10(
    run: CifarRun,
    out: Path,
    data: Images,
    dense: Dense,
    *,
    command: str = "",
    report: bool = True,
    checkpoint_every: Every | None = None,
) -> dict[str, Any]:
    """Do a run in its folder below ``out``, or continue it; a finished run is read.

    Returns the content of ``result.json``: metrics of the dense, the sparse and the averaged network on the test or the
    held-out images, the non-zeros, the best epoch where it was asked for, and the settings.
    """
    folder = run_folder(out, run.name)
    x, y, x_held, y_held = data.hold_out(run.held_out)
    facts, settings = run.facts(dense), run.settings(len(y))
    found = read_result(folder)
    if found is not None:
        check_settings(folder, result_settings(found), asdict(settings) | facts)
        return found
    batches = OrderedBatches(x_held, y_held) if run.held_out else OrderedBatches(data.x_test, data.y_test)
    augment = Augment("cifar10", run.erasing)
    compression = _prepare(
        run,
        dense.model,
        TensorBatches(x, y, batch_size=run.batch_size, seed=run.seed, transform=augment),
        settings,
        val_loader=batches if run.held_out or run.best_epoch else None,
        folder=folder,
        resume=True,
        report=report,
        callbacks=[LogPenalty(), ShowProgress(f"{run.method} at {run.sparsity:g}, seed {run.seed}")],
        checkpoint_every=checkpoint_every,
        command=command,
        facts=facts,
    )
    with warnings.catch_warnings():  # the paper's spike is wider than its slab, as the docs say
        warnings.filterwarnings("ignore", message="the spike .* is wider", category=SpikeSlabWarning)
        compressed = compression.run()
    return write_result(
        folder,
        {
            "command": command,
            "facts": facts,
            **describe(compressed, batches, dense),
            "part": HELD_OUT if run.held_out else TEST,
            "best_epoch": find_best_epoch(folder) if run.best_epoch else None,
            "seconds": read_run_record(folder / RECORD_FILE, CheckpointError)["seconds"],
        },
    )


def describe(compressed: Compressed, batches: OrderedBatches, dense: Dense) -> dict[str, Any]:
    """Return the numbers of a compression; images that were not evaluated in training are evaluated here, once."""
    found = compressed.evaluation or {
        "dense": Evaluation(compressed.task, batches).of_model(dense.model),
        **compressed.evaluate(batches),
    }
    kept = ("method", "target", "epochs", "seed", "samples", "settings", "sparse_layers", "network", "compacted")
    return {name: compressed.report[name] for name in kept if name in compressed.report} | {
        "rows": len(batches.labels),
        "files": compressed.evaluate_stored(batches),
        **{name: keep_numbers(each) for name, each in found.items()},
    }


def find_best_epoch(folder: Path) -> dict[str, float] | None:
    """Return the epoch of the highest accuracy in the log, among those that are nearly as sparse as the last."""
    records = MetricsLog(folder / METRICS_FILE).read()
    epochs = [
        {"epoch": record["epoch"], "accuracy": record["evaluation"]["accuracy"]}
        for record in records
        if record["sparsity_sparse"] >= records[-1]["sparsity_sparse"] - NEARLY
    ]
    return max(epochs, key=lambda record: record["accuracy"], default=None)


def result_settings(result: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings and facts behind a result; a setting that is newer than the run has its default."""
    return to_json(Settings.upgrade(result["settings"]) | result["facts"])


def read_results(out: Path) -> list[tuple[Path, dict[str, Any]]]:
    """Return the folder and the result of every finished run below ``out``."""
    found = [(path.parent, read_result(path.parent)) for path in sorted(out.glob(f"*/{RESULT}"))]
    return [(folder, result) for folder, result in found if result is not None and "facts" in result]


class LogPenalty(Callback):
    """Logs the effective penalty and the norm of the sparse weights.

    With batch normalisation a penalty acts through the norm: the smaller it is, the larger is the turn of a step.
    """

    def __init__(self) -> None:
        self._run: Training | None = None

    def begin(self, run: Training) -> None:
        """Keep the training loop."""
        self._run = run

    def metrics(self) -> dict[str, Any]:
        """Return the current penalty and norm."""
        if self._run is None:
            return {}
        group = self._run.sampler.param_groups[0]
        prior: Prior | None = getattr(self._run.sampler, "prior", None)
        l1, l2 = prior.effective_penalty(int(group["num_data"])) if prior else (0.0, float(group["weight_decay"]))
        squares = sum(float(w.detach().square().sum()) for w in select_weights(self._run.model, SPARSE).values())
        return {"effective_l1": l1, "effective_l2": l2, "norm": squares**0.5}
