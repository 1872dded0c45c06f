"""The log of a run: a line of JSON for every record, and TensorBoard for those who want it."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from spikeslab.files import write_atomically
from spikeslab.training.callbacks import Callback, Every

if TYPE_CHECKING:
    from torch.utils.tensorboard.writer import SummaryWriter

    from spikeslab.training.loop import Training


class MetricsLog:
    """A file of JSON lines, appended to, which a killed process leaves readable.

    Args:
        path: The file; made at the first record.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path)

    def write(self, record: Mapping[str, Any]) -> None:
        """Append a record; numbers that are not finite become null."""
        line = json.dumps(finite(record), allow_nan=False)
        with self.path.open("a", encoding="utf-8") as file:
            file.write(f"{line}\n")

    def read(self) -> list[dict[str, Any]]:
        """All records; a last line that is not whole is left out.

        Raises:
            ValueError: If another line is not a record.
        """
        if not self.path.exists():
            return []
        *lines, _ = self.path.read_text(encoding="utf-8").split("\n")
        try:
            records = [json.loads(line) for line in lines]
        except ValueError as error:
            raise ValueError(f"{self.path} must hold a JSON object on every line, but got: {error}.") from error
        if not all(isinstance(record, dict) for record in records):
            raise ValueError(f"{self.path} must hold a JSON object on every line, but got something else.")
        return records

    def keep_until(self, step: int) -> None:
        """Remove records of steps after ``step``, which a run that continues there makes again."""
        records = self.read()
        kept = [json.dumps(record) for record in records if record["step"] <= step]
        if self.path.exists():
            write_atomically(self.path, "".join(f"{line}\n" for line in kept).encode())


def finite(value: Any) -> Any:
    """``value`` with null for each number that is not finite, for which JSON has no word."""
    if isinstance(value, Mapping):
        return {key: finite(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [finite(item) for item in value]
    return None if isinstance(value, float) and value - value != 0.0 else value


def describe(run: Training) -> dict[str, Any]:
    """What a record holds: where the run is, its mean loss since the last record, its settings and latents now."""
    group = run.sampler.param_groups[0]
    record: dict[str, Any] = {
        "step": run.steps,
        "epoch": run.epoch,
        "seconds": round(run.seconds, 3),
        "loss": run.take_loss(),
        "lr": float(group["lr"]),
        "temperature": float(group.get("temperature", 0.0)),
    }
    prior = getattr(run.sampler, "prior", None)
    record |= {} if prior is None else prior.latents()
    for callback in run.callbacks:
        record |= callback.metrics()
    return record


class Log(Callback):
    """Writes a record to ``metrics.jsonl``, and to TensorBoard, now and then.

    Args:
        log: The file.
        every: How often; the last step is always recorded.
        tensorboard: Where given, the folder of TensorBoard's files.
    """

    def __init__(self, log: MetricsLog, every: Every, tensorboard: Path | None = None) -> None:
        self.log = log
        self.every = every
        self.last: dict[str, Any] = {}
        self._tensorboard = tensorboard
        self._writer: SummaryWriter | None = None
        self._time = 0.0

    def begin(self, run: Training) -> None:
        """Forget what came after the step from which the run continues."""
        self.log.keep_until(run.steps)
        records = self.log.read()
        self.last = records[-1] if records else {}
        self._time = run.seconds
        if self._tensorboard is not None:
            self._writer = _summary_writer(self._tensorboard, purge_step=run.steps + 1)

    def after_step(self, run: Training) -> None:
        """Write a record, if it is this step's turn."""
        if self.every.due(run, run.seconds - self._time):
            self._write(run)

    def end(self, run: Training) -> None:
        """Write a record, unless the last step already has one."""
        if self.last.get("step") != run.steps:
            self._write(run)

    def close(self) -> None:
        """Close TensorBoard's file."""
        if self._writer is not None:
            self._writer.close()

    def _write(self, run: Training) -> None:
        self.last = describe(run)
        self._time = run.seconds
        self.log.write(self.last)
        if self._writer is not None:
            for name, value in _flat(self.last).items():
                self._writer.add_scalar(name, value, run.steps)


def _flat(record: Mapping[str, Any], prefix: str = "") -> dict[str, float]:
    """The numbers of a record, nested names joined by a slash."""
    flat: dict[str, float] = {}
    for name, value in record.items():
        if isinstance(value, Mapping):
            flat |= _flat(value, f"{prefix}{name}/")
        elif isinstance(value, (int, float)):
            flat[f"{prefix}{name}"] = float(value)
    return flat


def _summary_writer(folder: Path, purge_step: int) -> SummaryWriter:
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError as error:
        raise ImportError(
            "tensorboard=True needs the package 'tensorboard', which is not installed: "
            "pip install 'spikeslab[tensorboard]'."
        ) from error
    return SummaryWriter(str(folder), purge_step=purge_step)
