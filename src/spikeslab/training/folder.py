"""The folder of a run: what was asked for, what happened, and all that is needed to go on.

::

    run.json         the command, the settings, the versions, and how far it came
    metrics.jsonl    a line of numbers for every record
    checkpoints/     the last two states
    evaluation.json  what the last evaluation found
    report.html      a page to look at
"""

from __future__ import annotations

import json
import os
import platform
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any

from spikeslab.errors import SpikeSlabWarning
from spikeslab.files import FolderExistsError, write_atomically
from spikeslab.training.callbacks import EVALUATED, Callback, Evaluate, Every
from spikeslab.training.checkpoints import Checkpoint, CheckpointError, Checkpoints
from spikeslab.training.interruption import Interrupted
from spikeslab.training.lock import FolderLock
from spikeslab.training.log import Log, MetricsLog, finite

if TYPE_CHECKING:
    from spikeslab.training.loop import Training

RECORD, METRICS, CHECKPOINTS, EVALUATION, TENSORBOARD = (
    "run.json",
    "metrics.jsonl",
    "checkpoints",
    "evaluation.json",
    "tensorboard",
)
VERSION = 1


class RunFolder:
    """Where a run lives.

    Args:
        path: The folder; made where it does not exist.
        resume: Whether to continue the run that is there; the step of a checkpoint continues from that one. Without
            one there, a new run begins.
        settings: What decides the result, by the names that the user knows; a run is continued only with the same.
        defaults: What a setting was before it had a name: one that an older record lacks counts as this.
        seed: Seed of the run, for the record.
        command: Command that makes the run, for the record.
        checkpoint_every: How often the state is saved. A killed run loses at most this.
        log_every: How often a record is written.
        keep: Checkpoints that are kept.
        tensorboard: Whether to write TensorBoard's files too.
        report: Function from the folder to its report, called when the run finishes, such as
            :func:`spikeslab.diagnostics.write_report`; ``None`` writes no report.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        resume: bool | int = False,
        settings: Mapping[str, Any] | None = None,
        defaults: Mapping[str, Any] | None = None,
        seed: int | None = None,
        command: str | None = None,
        checkpoint_every: Every | None = None,
        log_every: Every | None = None,
        keep: int = 2,
        tensorboard: bool = False,
        report: Callable[[Path], object] | None = None,
    ) -> None:
        if not isinstance(resume, int) or resume < 0:
            raise ValueError(f"resume must be True, False or the step of a checkpoint, but got {resume!r}.")
        for name, every in (("checkpoint_every", checkpoint_every), ("log_every", log_every)):
            if every is not None and not isinstance(every, Every):
                raise TypeError(f"{name} must be Every(steps=...), Every(epochs=...) or the like, but got {every!r}.")
        self.path = Path(path)
        if self.path.exists() and not self.path.is_dir():
            raise NotADirectoryError(f"path must be a folder, but {self.path} is a file.")
        self.resume = resume
        self.settings = in_json(settings or {})
        self._defaults = in_json(defaults or {})
        self.seed = seed
        self.command = command
        self.report = report
        self.checkpoints = Checkpoints(self.path / CHECKPOINTS, keep)
        self.log = MetricsLog(self.path / METRICS)
        self._saving = Save(self.checkpoints, checkpoint_every or Every(seconds=300))
        log_to = self.path / TENSORBOARD if tensorboard else None
        self.callbacks: list[Callback] = [Log(self.log, log_every or Every(epochs=1), log_to), self._saving]

    @contextmanager
    def used_by(self, run: Training, total_steps: int) -> Iterator[None]:
        """Lock the folder, continue what is there if that is wanted, and record how the run ends.

        Raises:
            BlockingIOError: If another process uses the folder.
            FileExistsError: If there is a run and ``resume`` is False.
            CheckpointError: If the checkpoint is damaged or of another run.
        """
        with FolderLock(self.path):
            self._restore(run)
            if run.steps > total_steps:
                raise CheckpointError(
                    f"{{epochs}} must not end before the run in {self.path}, which is at step {run.steps}, but got "
                    f"{total_steps} steps."
                )
            self._record(run, total_steps, "running")
            try:
                yield
            except BaseException as error:
                status = "interrupted" if isinstance(error, Interrupted) else "failed"
                self._record(run, total_steps, status, f"{error}" or type(error).__name__)
                raise
            finally:
                self._write_evaluation(run)
            self._record(run, total_steps, "finished")
            if self.report is not None:
                self._write_report(self.report)

    def check(self) -> None:
        """Raise if the folder holds a run that this one may not continue; nothing is written.

        Raises:
            FileExistsError: If there is a run and ``resume`` is False.
            CheckpointError: If it was begun with other settings, or its record is damaged.
        """
        before = self._read_record()
        if before is not None:
            self._check_continuable(before)

    def stop(self, run: Training) -> str:
        """Save the state of a run that was asked to stop; returns a sentence that says how to go on."""
        self._saving.save(run)
        return f"The state is saved in {self.path}: continue with {{resume=True}}."

    def _restore(self, run: Training) -> None:
        self.check()
        checkpoint = self._checkpoint(run)
        if checkpoint is None:
            # A run that is killed before its first checkpoint begins anew, with what it had collected forgotten.
            self._saving.save(run)
            return
        try:
            run.load_state_dict(checkpoint.state)
        except (ValueError, KeyError) as error:
            raise CheckpointError(f"Cannot resume: {checkpoint.path} does not fit this run: {error}") from error

    def _check_continuable(self, before: Mapping[str, Any]) -> None:
        if self.resume is False:
            raise FolderExistsError(
                f"{{folder}} must not hold a run yet, but {self.path} does: continue it with {{resume=True}}, or "
                "choose another folder."
            )
        changes = changed_settings(self._defaults | before["settings"], self.settings)
        if changes:
            raise CheckpointError(f"Cannot resume: {self.path} was begun with other settings: {changes}.")

    def _checkpoint(self, run: Training) -> Checkpoint | None:
        """The checkpoint to go on from: the newest, or the one asked for, or the newest that all ranks have."""
        if self.resume is not True and self.resume is not False:
            return self.checkpoints.load(int(self.resume))
        if run.ranks.data_size == 1:
            return self.checkpoints.latest()
        steps = self.checkpoints.steps()
        common = run.ranks.lowest(steps[-1] if steps else -1)
        return None if common < 0 else self.checkpoints.load(common)

    def _read_record(self) -> dict[str, Any] | None:
        path = self.path / RECORD
        if not path.exists():
            return None
        try:
            record: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
            known = record["version"] == VERSION and isinstance(record["settings"], dict)
        except (ValueError, KeyError, TypeError) as error:
            raise CheckpointError(f"Cannot resume: the record of the run, {path}, is unreadable.") from error
        if not known:
            raise CheckpointError(
                f"Cannot resume: {path} is of version {record['version']!r}, and this program reads {VERSION}."
            )
        return record

    def _record(self, run: Training, total_steps: int, status: str, message: str | None = None) -> None:
        record = {
            "version": VERSION,
            "command": self.command,
            "seed": self.seed,
            "versions": {name: version(name) for name in ("spikeslab", "torch", "numpy")}
            | {"python": platform.python_version()},
            "settings": self.settings,
            "num_data": run.sampler.param_groups[0].get("num_data"),
            "status": status,
            "message": message,
            "steps": run.steps,
            "total_steps": total_steps,
            "epochs": run.epoch,
            "seconds": round(run.seconds, 3),
        }
        write_atomically(self.path / RECORD, json.dumps(record, indent=1).encode())

    def _write_evaluation(self, run: Training) -> None:
        for callback in run.callbacks:
            if callback.name == EVALUATED and isinstance(callback, Evaluate) and callback.last:
                write_atomically(self.path / EVALUATION, json.dumps(finite(callback.last), indent=1).encode())

    def _write_report(self, write: Callable[[Path], object]) -> None:
        """Write the report; a failure is a warning, since the run itself has finished."""
        try:
            write(self.path)
        except ModuleNotFoundError:  # the extra is not installed
            return
        except Exception as error:
            warnings.warn(
                f"the run finished, but its report could not be made ({error}): try spikeslab report {self.path}.",
                SpikeSlabWarning,
                stacklevel=2,
            )


def in_json(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Settings as a record has them."""
    return dict(json.loads(json.dumps(dict(settings), default=str)))


def changed_settings(before: Mapping[str, Any], now: Mapping[str, Any]) -> str:
    """Return what differs between two records of settings, in words with marked names; "" if they agree.

    >>> changed_settings({"lr": 0.1, "seed": 0}, {"lr": 0.2, "seed": 0})
    '{lr} was 0.1 and is now 0.2'
    """
    return ", ".join(
        f"{{{name}}} was {before.get(name)!r} and is now {now.get(name)!r}"
        for name in {**before, **now}
        if before.get(name) != now.get(name)
    )


class Save(Callback):
    """Saves a checkpoint now and then.

    Args:
        checkpoints: Where to.
        every: How often; the state after the last step is always saved.
    """

    def __init__(self, checkpoints: Checkpoints, every: Every) -> None:
        self.checkpoints = checkpoints
        self.every = every
        self._saved = -1
        self._time = 0.0

    def begin(self, run: Training) -> None:
        """Count the time from here."""
        self._time = run.seconds

    def after_step(self, run: Training) -> None:
        """Save, if it is this step's turn; where a clock decides, ranks that share a chain follow the first."""
        due = self.every.due(run, run.seconds - self._time)
        if self.every.seconds is not None:
            due = bool(run.ranks.highest(due))
        if due:
            self.save(run)

    def end(self, run: Training) -> None:
        """Save, unless the last step already has."""
        if self._saved != run.steps:
            self.save(run)

    def save(self, run: Training) -> None:
        """Save now."""
        self.checkpoints.save(run.steps, run.state_dict())
        self._saved, self._time = run.steps, run.seconds
