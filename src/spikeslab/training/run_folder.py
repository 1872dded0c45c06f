"""Folder of a run: its settings, log, checkpoints and report.

::

    run.json         command, settings, versions and progress
    metrics.jsonl    one record of numbers per line
    checkpoints/     the last two states
    evaluation.json  result of the last evaluation
    report.html      a page to look at
"""

from __future__ import annotations

import json
import os
import platform
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from importlib.metadata import version
from pathlib import Path
from types import NoneType
from typing import TYPE_CHECKING, Any, BinaryIO

from spikeslab.errors import (
    ArgumentTypeError,
    ArgumentValueError,
    Interrupted,
    Phrase,
    SpikeSlabError,
    first_line,
    mark,
    quote,
    warn,
)
from spikeslab.files import (
    FolderExistsError,
    ForeignFileError,
    check_links,
    open_regular,
    read_record,
    sweep,
    write_record,
)
from spikeslab.training.callbacks import EVALUATION, Callback, Evaluate, Every, PeriodicCallback
from spikeslab.training.changes import ERROR, NEW, ChangedSettingsError, OnChange, check_names, check_on_change, choose
from spikeslab.training.checkpoints import Checkpoint, CheckpointError, Checkpoints
from spikeslab.training.log import Log, MetricsLog, nan_to_null

if TYPE_CHECKING:
    from spikeslab.training.loop import Training

RECORD_FILE, METRICS_FILE, EVALUATION_FILE, LOCK_FILE = "run.json", "metrics.jsonl", "evaluation.json", ".lock"
CHECKPOINTS, POSTERIOR, TENSORBOARD = "checkpoints", "posterior", "tensorboard"
RESULT_FILE = "report.json"
"""Numbers of a compression, which it writes after its last step."""
ENTRIES = (RECORD_FILE, METRICS_FILE, EVALUATION_FILE, LOCK_FILE, CHECKPOINTS, POSTERIOR, TENSORBOARD)
VERSION = 2
"""Version of the record, which has a checksum since 2."""
FIELDS: dict[str, type | tuple[type, ...]] = {
    "command": (str, NoneType),
    "seed": (int, NoneType),
    "versions": dict,
    "settings": dict,
    "num_data": (int, NoneType),
    "status": str,
    "steps": int,
    "epochs": (int, float),
    "total_steps": int,
    "seconds": (int, float),
}
FAILED = "failed"
STATUSES = ("running", "finished", "interrupted", FAILED)


class FolderInUseError(SpikeSlabError, BlockingIOError):
    """Raised when another process uses the folder of a run."""


class RunFolder:
    """Folder in which a run keeps its settings, log, checkpoints and report.

    Args:
        path: The folder; created if it does not exist.
        resume: If True, continue the run in the folder from its latest checkpoint; if an integer, from the checkpoint
            of that step. An empty folder begins a new run.
        settings: Settings that decide the result; a run can only be resumed with the same ones.
        seed: Seed of the run, for the record.
        command: Command that makes the run, for the record.
        checkpoint_every: Interval between checkpoints, five minutes by default. A killed run loses at most this.
        log_every: Interval between records of the log, one epoch by default.
        keep: Number of checkpoints that are kept.
        tensorboard: If True, also write TensorBoard's files.
        on_change: What to do if a resumed run has other settings, code or data than its checkpoint: ``"error"`` refuses
            with a table of old and new, ``"old"`` continues with the values of the checkpoint, ``"new"`` with those of
            the code; or a mapping from names or their beginnings to these words, as ``{"sampler.lr": "new"}``.
        write_report: Function that writes the report, called with the folder when the run finishes, such as
            :func:`spikeslab.diagnostics.write_report`; ``None`` writes no report.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        resume: bool | int = False,
        settings: Mapping[str, Any] | None = None,
        seed: int | None = None,
        command: str | None = None,
        checkpoint_every: Every | None = None,
        log_every: Every | None = None,
        keep: int = 2,
        tensorboard: bool = False,
        on_change: OnChange = ERROR,
        write_report: Callable[[Path], object] | None = None,
    ) -> None:
        if not isinstance(resume, int) or resume < 0:
            raise ArgumentValueError("resume", "must be True, False or the step of a checkpoint", resume)
        for name, every in (("checkpoint_every", checkpoint_every), ("log_every", log_every)):
            if every is not None and not isinstance(every, Every):
                raise ArgumentTypeError(name, "must be an Every, such as Every(epochs=1)", every)
        self.path = Path(path)
        if self.path.exists() and not self.path.is_dir():
            raise ArgumentValueError("folder", "must be a folder", Phrase(f"{self.path} is a file"))
        self.resume = resume
        self.settings = to_json(settings or {})
        self.seed = seed
        self.command = command
        self.on_change = check_on_change(on_change)
        self.write_report = write_report
        self.checkpoints = Checkpoints(self.path / CHECKPOINTS, keep)
        self.log = MetricsLog(self.path / METRICS_FILE)
        self._save = Save(self.checkpoints, checkpoint_every or Every(seconds=300), self.log)
        log_to = self.path / TENSORBOARD if tensorboard else None
        self.callbacks: list[Callback] = [Log(self.log, log_every or Every(epochs=1), log_to), self._save]

    @contextmanager
    def open_for(self, run: Training, total_steps: int) -> Iterator[None]:
        """Lock the folder, resume the run in it if wanted, and record how the run ends.

        Raises:
            FolderInUseError: If another process uses the folder.
            FolderExistsError: If there is a run and ``resume`` is False.
            CheckpointError: If the checkpoint is damaged or does not fit the run.
        """
        check_links(*(self.path / name for name in ENTRIES))
        with lock_folder(self.path):
            for folder in (self.path, self.path / POSTERIOR):
                sweep(folder, locked=True)
            self._restore(run, total_steps)
            self.checkpoints.recover()
            self._write_record(run, total_steps, "running")
            try:
                yield
            except BaseException as error:
                status = "interrupted" if isinstance(error, Interrupted) else FAILED
                self._write_record(run, total_steps, status, f"{error}" or type(error).__name__)
                raise
            finally:
                self._write_evaluation(run)
            self._write_record(run, total_steps, "finished")
            if self.write_report is not None:
                self.try_to_write_report(self.write_report)

    def check(self) -> None:
        """Check, without writing anything, that a run may begin or resume here.

        Raises:
            FolderExistsError: If there is a run and ``resume`` is False.
            CheckpointError: If it was begun with other settings, or its record is damaged.
        """
        before = self._read_record()
        # Without a record there may be the checkpoint of step 0, of a run that was killed as it began.
        if self.resume is False and (before is not None or any(self.checkpoints.steps())):
            raise FolderExistsError(
                f"{mark('folder')} must not hold a run yet, but {self.path} does: continue it with "
                f"{mark('resume', True)}, or choose another folder."
            )
        if before is None:
            return
        settings = to_json(self.upgrade_settings(before["settings"]))
        accepted = {name: value for name, value in self.settings.items() if choose(self.on_change, name) == NEW}
        changes = describe_changes(settings, {**self.settings, **{name: settings.get(name) for name in accepted}})
        if changes:
            raise CheckpointError(f"Cannot resume: {self.path} was begun with other settings: {changes}.")

    def upgrade_settings(self, settings: dict[str, Any]) -> dict[str, Any]:
        """Return the settings of an earlier record under their present names; a subclass may rename some."""
        return settings

    def stop(self, run: Training) -> str:
        """Save the state of a run that was asked to stop, and return a sentence that says how to continue."""
        self._save.act_now(run)
        return f"The state is saved in {self.path}: continue with {mark('resume', True)}."

    def _restore(self, run: Training, total_steps: int) -> None:
        self.check()
        checkpoint = self._find_checkpoint(run)
        step = run.steps if checkpoint is None else checkpoint.step
        if step > total_steps:
            raise CheckpointError(
                f"Cannot resume: the run in {self.path} is at step {step}, beyond the {total_steps} steps asked for. "
                f"Raise {mark('epochs')} or {mark('steps')}."
            )
        if checkpoint is None:
            self._check_beginning(run)
            # The first checkpoint: a run that is killed before the next one starts again from here.
            self._save.act_now(run)
            return
        self.log.check(checkpoint.state.get("log"))
        check_names(self.on_change, {**checkpoint.state.get("settings", {}), **run.settings_dict(), **self.settings})
        try:
            run.load_state_dict(checkpoint.state, self.on_change)
        except ChangedSettingsError:
            raise
        except (ValueError, KeyError, TypeError, AttributeError, IndexError, RuntimeError, OverflowError) as error:
            raise CheckpointError(
                f"Cannot resume: {checkpoint.path} does not fit this run: {first_line(error)}."
            ) from error

    def _check_beginning(self, run: Training) -> None:
        """Raise if a run without a checkpoint has taken steps, which would be lost; ranks that share it agree."""
        record = self._read_record()
        steps = max(0 if record is None else record["steps"], self.log.last_step(), 0)
        if steps := run.ranks.highest(steps):
            raise CheckpointError(
                f"Cannot resume: the run in {self.path} was at step {steps}, but {self.checkpoints.directory} holds no "
                f"checkpoint. Put one back, or begin again in another {mark('folder')}."
            )

    def _find_checkpoint(self, run: Training) -> Checkpoint | None:
        """Read the checkpoint asked for, or the latest one, which ranks that share a chain must all have."""
        if not isinstance(self.resume, bool):
            return self.checkpoints.load(self.resume)
        if run.ranks.data_size == 1:
            latest = self.checkpoints.latest()
            self._check_latest(latest)
            return latest
        steps = self.checkpoints.steps()
        common = run.ranks.lowest(steps[-1] if steps else -1)
        return None if common < 0 else self.checkpoints.load(common)

    def _check_latest(self, checkpoint: Checkpoint | None) -> None:
        """Raise if a later checkpoint was there: a run saves one before it records that it has stopped or ended."""
        record = self._read_record()
        if checkpoint is None or record is None or record.get("status") == FAILED:
            return
        if checkpoint.step < record["steps"]:
            raise CheckpointError(
                f"Cannot resume: the run in {self.path} was at step {record['steps']}, but its latest checkpoint is of "
                f"step {checkpoint.step}. Put the later one back; {mark('resume', checkpoint.step)} in Python goes on "
                "from the earlier one."
            )

    def _read_record(self) -> dict[str, Any] | None:
        path = self.path / RECORD_FILE
        if not path.exists() and not path.is_symlink():
            return None
        return read_run_record(path, CheckpointError)

    def _write_record(self, run: Training, total_steps: int, status: str, message: str | None = None) -> None:
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
        write_record(self.path / RECORD_FILE, record)

    def _write_evaluation(self, run: Training) -> None:
        for callback in run.callbacks:
            if callback.name == EVALUATION and isinstance(callback, Evaluate) and callback.last:
                write_record(self.path / EVALUATION_FILE, nan_to_null(callback.last))

    def try_to_write_report(self, write: Callable[[Path], object]) -> None:
        """Write the report; a failure is only a warning, since the run has finished."""
        try:
            write(self.path)
        except ModuleNotFoundError:  # the extra is not installed
            return
        except Exception as error:
            warn(f"The run finished, but its report failed ({error}): try spikeslab report {self.path}.")


def read_run_record(path: Path, error: type[SpikeSlabError]) -> dict[str, Any]:
    """Read the record of a run, ``run.json``.

    Raises:
        SpikeSlabError: If it is missing, damaged or of another version.
    """
    run = read_record(path, error, (1, VERSION), sealed_since=VERSION)
    for name, kind in FIELDS.items():
        if not isinstance(run.get(name), kind) or isinstance(run.get(name), bool):
            raise error(f"{path} must have a valid {name!r}, but got {run.get(name)!r}.")
    if run["status"] not in STATUSES:
        raise error(f"{path} must have a status among {quote(STATUSES)}, but got {run['status']!r}.")
    return run


def to_json(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return settings as JSON stores them."""
    return dict(json.loads(json.dumps(dict(settings), default=str)))


def describe_changes(before: Mapping[str, Any], now: Mapping[str, Any]) -> str:
    """Describe the differences between two records of settings for an error message; empty if they agree.

    >>> from spikeslab.errors import spell
    >>> spell(describe_changes({"lr": 0.1, "seed": 0}, {"lr": 0.2, "seed": 0}))
    'lr was 0.1 and is now 0.2'
    """
    return ", ".join(
        f"{mark(name)} was {before.get(name)!r} and is now {now.get(name)!r}"
        for name in {**before, **now}
        if before.get(name) != now.get(name)
    )


class Save(PeriodicCallback):
    """Saves a checkpoint at an interval and after the last step."""

    def __init__(self, checkpoints: Checkpoints, every: Every, log: MetricsLog) -> None:
        super().__init__(every)
        self.checkpoints, self.log = checkpoints, log

    def is_due(self, run: Training) -> bool:
        """Return True if the interval has passed; ranks that share a chain agree on the clock of the first."""
        due = super().is_due(run)
        return due if self.every.seconds is None else bool(run.ranks.highest(due))

    def act(self, run: Training) -> None:
        """Save the state."""
        self.checkpoints.save(run.steps, {**run.state_dict(), "log": self.log.mark()})


@contextmanager
def lock_folder(folder: Path) -> Iterator[None]:
    """Keep other processes out of a folder, which is created if needed.

    The operating system releases the lock when the process ends, so a killed run leaves none behind.

    Raises:
        FolderInUseError: If another process holds the lock.
    """
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / LOCK_FILE
    with os.fdopen(open_regular(path, os.O_RDWR | os.O_CREAT), "r+b") as file:
        owner = file.read(21)
        if owner and (len(owner) > 20 or not owner.strip().isdigit()):
            raise ForeignFileError(f"{path} is not a lock of a run: move it away, or choose another {mark('folder')}.")
        try:
            lock_file(file)
        except OSError as error:
            raise FolderInUseError(
                f"{folder} is in use by another run, process {owner.decode().strip() or 'unknown'}: wait for it, stop "
                f"it, or choose another {mark('folder')}."
            ) from error
        file.seek(0)
        file.truncate(0)
        file.write(str(os.getpid()).encode())
        file.flush()
        yield


if sys.platform == "win32":
    import msvcrt

    def lock_file(file: BinaryIO) -> None:
        """Lock an open file until it is closed; raise ``OSError`` if another process has locked it."""
        file.seek(1 << 20)  # far beyond the content, which stays readable
        msvcrt.locking(file.fileno(), msvcrt.LK_NBLCK, 1)
else:
    import fcntl

    def lock_file(file: BinaryIO) -> None:
        """Lock an open file until it is closed; raise ``OSError`` if another process has locked it."""
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
