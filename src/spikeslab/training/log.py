"""Log of a run: one JSON record per line, and optionally TensorBoard."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from spikeslab.errors import MissingExtraError, SpikeSlabError, pluralize, show
from spikeslab.files import (
    Line,
    encode_line,
    flush,
    iterate_lines,
    open_regular,
    read_regular,
    thin_records,
    write_atomically,
)
from spikeslab.training.callbacks import Every, PeriodicCallback

if TYPE_CHECKING:
    from torch.utils.tensorboard.writer import SummaryWriter

    from spikeslab.training.loop import Training


class RunError(SpikeSlabError, ValueError):
    """Raised when a folder is not that of a run, or a file in it is damaged."""


class MetricsLog:
    """File of JSON lines that stays readable if the process is killed, and in which a change is noticed.

    Args:
        path: The file; created with the first record.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path)
        self._count, self._last = 0, b""
        self._known = False

    def write(self, record: Mapping[str, Any]) -> None:
        """Append a record; numbers that are not finite become null."""
        self._look()
        line = encode_line(nan_to_null(record), self._last)
        with os.fdopen(open_regular(self.path, os.O_WRONLY | os.O_APPEND | os.O_CREAT), "ab") as file:
            file.write(line + b"\n")
        self._count, self._last = self._count + 1, line

    def read(self) -> list[dict[str, Any]]:
        """Read the records; an incomplete last line is skipped.

        Of a log that is too long for memory these are the last record and every second, fourth, ... of the others.

        Raises:
            RunError: If a line is not a record with a step, or has changed since it was written.
        """
        return thin_records(self.records(), self.path)

    def records(self, mark: Mapping[str, Any] | None = None) -> Iterator[dict[str, Any]]:
        """Yield the records, with the memory of one; an incomplete last line is skipped.

        Args:
            mark: Number and checksum of the first records, as a checkpoint has marked them.

        Raises:
            RunError: If a line is not a record with a step, has changed since it was written, or is missing.
        """
        wanted = mark["records"] if mark else 0
        count, last = 0, b""
        for count, (text, record) in enumerate(self._lines(), start=1):
            last = text if count == wanted else last
            yield record
        if mark and wanted and self.path.exists() and hashlib.sha256(last).hexdigest() != mark["sha256"]:
            raise RunError(
                f"{self.path} is damaged: it does not begin with the {pluralize(wanted, 'record')} that the checkpoint "
                "knows. Put it back, or delete it to go on without them."
            )

    def keep_until(self, step: int) -> int:
        """Remove the records after ``step``, which a resumed run writes again, and return the last step or -1."""
        last, kept, count, size = -1, b"", 0, 0
        for text, record in self._lines():
            if record["step"] > step:
                break
            last, kept, count, size = record["step"], text, count + 1, size + len(text) + 1
        if self.path.exists() and self.path.stat().st_size != size:
            write_atomically(self.path, read_regular(self.path)[:size])
        self._count, self._last, self._known = count, kept, True
        return last

    def last_step(self) -> int:
        """Return the highest step of the records, or -1."""
        return max((record["step"] for _, record in self._lines()), default=-1)

    def _lines(self) -> Iterator[Line]:
        """Yield the lines, with the memory of one.

        Raises:
            RunError: If a line is not a record with a step, or has changed since it was written.
        """
        for number, line in enumerate(iterate_lines(self.path, RunError), start=1):
            step = line.record.get("step")
            if not isinstance(step, int) or abs(step) >= 1 << 63:
                raise RunError(f"{self.path} must have an integer step in line {number}, but got {show(step)}.")
            yield line

    def _look(self) -> None:
        """Count the records of the file before the first access."""
        if self._known:
            return
        count, last = 0, b""
        for count, (last, _) in enumerate(iterate_lines(self.path, RunError), start=1):  # noqa: B007
            pass
        self._count, self._last, self._known = count, last, True

    def mark(self) -> dict[str, Any]:
        """Return the number of records and a checksum of them, for a checkpoint; the file is on the disk then."""
        self._look()
        if self._count:
            flush(self.path)
        return {"records": self._count, "sha256": hashlib.sha256(self._last).hexdigest()}

    def check(self, mark: Mapping[str, Any] | None) -> None:
        """Raise if the file exists and does not begin with the records that a checkpoint has marked.

        Raises:
            RunError: If records are missing.
        """
        for _ in self.records(mark):
            pass


def nan_to_null(value: Any) -> Any:
    """Return a nested value with ``None`` in place of numbers that JSON cannot hold.

    >>> nan_to_null({"loss": float("nan"), "deltas": (0.5, float("inf"))})
    {'loss': None, 'deltas': [0.5, None]}
    """
    if isinstance(value, Mapping):
        return {key: nan_to_null(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [nan_to_null(item) for item in value]
    return None if isinstance(value, float) and value - value != 0.0 else value


def describe(run: Training) -> dict[str, Any]:
    """Return a record: progress, mean loss since the last record, lr, temperature, latents and callbacks' metrics."""
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


class Log(PeriodicCallback):
    """Writes a record to ``metrics.jsonl``, and to a folder for TensorBoard, at an interval and after the last step."""

    def __init__(self, log: MetricsLog, every: Every, tensorboard: Path | None = None) -> None:
        super().__init__(every)
        self.log = log
        self._tensorboard = tensorboard
        self._writer: SummaryWriter | None = None

    def begin(self, run: Training) -> None:
        """Remove the records after the step at which the run resumes."""
        super().begin(run)
        self._step = self.log.keep_until(run.steps)
        if self._tensorboard is not None:
            self._writer = _summary_writer(self._tensorboard, purge_step=run.steps + 1)

    def act(self, run: Training) -> None:
        """Write a record."""
        record = describe(run)
        self.log.write(record)
        if self._writer is not None:
            for name, value in _flatten(record).items():
                self._writer.add_scalar(name, value, run.steps)

    def close(self) -> None:
        """Close TensorBoard's file."""
        if self._writer is not None:
            self._writer.close()


def _flatten(record: Mapping[str, Any], prefix: str = "") -> dict[str, float]:
    """Return the numbers of a record, with nested names joined by slashes."""
    flat: dict[str, float] = {}
    for name, value in record.items():
        if isinstance(value, Mapping):
            flat |= _flatten(value, f"{prefix}{name}/")
        elif isinstance(value, (int, float)):
            flat[f"{prefix}{name}"] = float(value)
    return flat


def _summary_writer(folder: Path, purge_step: int) -> SummaryWriter:
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError as error:
        raise MissingExtraError(
            "tensorboard=True needs the package 'tensorboard', which is not installed: "
            "pip install 'spikeslab[tensorboard]'."
        ) from error
    return SummaryWriter(str(folder), purge_step=purge_step)
