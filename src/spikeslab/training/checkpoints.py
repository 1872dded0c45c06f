"""Checkpoints: folders that hold a complete state and are recognised if damaged.

A checkpoint is a folder such as ``step-000000500`` with ``state.json``, ``tensors.safetensors``, ``files/`` (copies of
files in the state, such as the samples of a posterior on disk) and ``SHA256SUMS``, which ``sha256sum --check`` reads
too. It is written under another name, flushed to the disk and renamed, so it is complete or absent.

>>> import tempfile
>>> import torch
>>> layer = torch.nn.Linear(2, 1)
>>> with tempfile.TemporaryDirectory() as folder:
...     checkpoints = Checkpoints(folder)
...     _ = checkpoints.save(500, {"model": layer.state_dict()})
...     checkpoint = checkpoints.latest()
...     _ = layer.load_state_dict(checkpoint.state["model"])
>>> checkpoint.step
500
"""

from __future__ import annotations

import json
import os
import re
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from safetensors import SafetensorError
from safetensors.torch import load_file, save_file

from spikeslab.errors import SpikeSlabError, check_count, first_line
from spikeslab.files import check_links, check_name, check_tensors, digest, flush, parse_json, read_regular
from spikeslab.states import Parts, State, join, split

FORMAT, VERSION = "spikeslab-checkpoint", 1
STATE, TENSORS, FILES, SUMS = "state.json", "tensors.safetensors", "files", "SHA256SUMS"
NAME = re.compile(r"step-(\d{9,})")
OLD, WRITING = ".old-", ".writing-"
"""Prefixes of folders that are being replaced or written."""


class CheckpointError(SpikeSlabError, ValueError):
    """Raised when a run cannot be resumed: a checkpoint is missing, damaged or of another run."""


@dataclass(frozen=True)
class Checkpoint:
    """Checkpoint that was read and verified.

    Attributes:
        step: Step at which it was made.
        path: Folder of the checkpoint.
        state: The saved state.
    """

    step: int
    path: Path
    state: dict[str, State]


class Checkpoints:
    """Newest checkpoints of a run.

    Args:
        directory: Folder of the checkpoints; created when the first one is saved.
        keep: Number of checkpoints that are kept. With two, one is left if the other is damaged.
    """

    def __init__(self, directory: str | os.PathLike[str], keep: int = 2) -> None:
        self.directory = Path(directory)
        self.keep = check_count("keep", keep)

    def steps(self) -> list[int]:
        """Return the steps of the checkpoints, oldest first."""
        if not self.directory.is_dir():
            return []
        names = (NAME.fullmatch(path.name.removeprefix(OLD)) for path in self.directory.iterdir() if path.is_dir())
        return sorted({int(match[1]) for match in names if match})

    def path(self, step: int) -> Path:
        """Return the folder of the checkpoint made at ``step``."""
        final = self.directory / f"step-{step:09d}"
        replaced = self.directory / f"{OLD}{final.name}"  # by a process that was killed before it put the new one there
        return replaced if replaced.is_dir() and not final.exists() else final

    def save(self, step: int, state: dict[str, State]) -> Path:
        """Write a checkpoint, remove old ones, and return its folder.

        Args:
            step: Step of the checkpoint; an earlier one of the same step is replaced.
            state: A nested state, as ``state_dict()`` methods return it.
        """
        self.directory.mkdir(parents=True, exist_ok=True)
        self.recover()
        final = self.path(step)
        temporary = self.directory / f"{WRITING}{final.name}"
        temporary.mkdir()
        _write(temporary, step, state)
        if final.exists():
            final.rename(self.directory / f"{OLD}{final.name}")
        temporary.rename(final)
        flush(self.directory)
        self.recover()
        return final

    def recover(self) -> None:
        """Clean up after a process that was killed while it saved; nothing else may save meanwhile.

        A checkpoint that was set aside and not replaced is put back, and what is half written or too old is removed.
        """
        check_links(self.directory)
        for step in self.steps():
            if (found := self.path(step)).name.startswith(OLD):
                found.rename(found.with_name(found.name.removeprefix(OLD)))
        remains = [path for sign in (OLD, WRITING) for path in self.directory.glob(f"{sign}step-*")]
        for path in [*remains, *map(self.path, self.steps()[: -self.keep])]:
            check_links(path)
            shutil.rmtree(path)

    def load(self, step: int) -> Checkpoint:
        """Read the checkpoint made at ``step``.

        Raises:
            CheckpointError: If it is missing, damaged, or of another program or version.
        """
        if step not in self.steps():
            found = ", ".join(map(str, self.steps())) or "none"
            raise CheckpointError(f"{self.directory} has no checkpoint of step {step}; it has {found}.")
        return Checkpoint(step, self.path(step), _read(self.path(step), step))

    def latest(self) -> Checkpoint | None:
        """Read the newest checkpoint; return ``None`` if there is none.

        Raises:
            CheckpointError: If it is damaged; the message names the newest one that is intact.
        """
        steps = self.steps()
        if not steps:
            return None
        try:
            return self.load(steps[-1])
        except CheckpointError as error:
            raise CheckpointError(*error.args, self._suggest(steps[:-1])) from error

    def _suggest(self, steps: list[int]) -> str:
        for step in reversed(steps):
            try:
                self.load(step)
            except CheckpointError:
                continue
            return f"The one of step {step} is good: continue from it with resume={step} in Python."
        return "No other checkpoint is good."


def _write(folder: Path, step: int, state: dict[str, State]) -> None:
    parts = split(state)
    save_file(parts.tensors, folder / TENSORS)
    (folder / FILES).mkdir()
    names = {}
    for index, (name, source) in enumerate(parts.files.items()):
        names[name] = f"{index:06d}-{source.name}"
        shutil.copyfile(source, folder / FILES / names[name])
    record = {"format": FORMAT, "version": VERSION, "step": step, "files": names, "state": parts.text}
    (folder / STATE).write_text(json.dumps(record, indent=1, allow_nan=False), encoding="utf-8")
    (folder / SUMS).write_text(_format_sums(folder), encoding="utf-8")
    for path in (*_contents(folder), folder / SUMS, folder / FILES, folder):
        flush(path)


def _contents(folder: Path) -> list[Path]:
    """Return the files below a folder; links and anything else that leads out of it are refused."""
    paths = [*folder.iterdir(), *((folder / FILES).iterdir() if (folder / FILES).is_dir() else ())]
    check_links(folder, *paths)
    return sorted(path for path in paths if path.is_file() and path != folder / SUMS)


def _format_sums(folder: Path) -> str:
    return "".join(f"{digest(path)}  {path.relative_to(folder).as_posix()}\n" for path in _contents(folder))


def _read(folder: Path, step: int) -> dict[str, Any]:
    try:
        check_links(folder.parent, folder, folder / FILES)
        expected = read_regular(folder / SUMS)
        found = _format_sums(folder).encode()
    except FileNotFoundError as error:
        raise CheckpointError(f"{folder} is not a whole checkpoint: {SUMS} is missing.") from error
    except OSError as error:
        raise CheckpointError(f"{folder} is not a readable checkpoint: {first_line(error)}.") from error
    if expected != found:
        raise CheckpointError(f"{folder} has changed since it was written: {_difference(folder, expected)}.")
    try:
        record = parse_json(read_regular(folder / STATE))
        made = (record["format"], record["version"], record["step"])
        files = {name: folder / FILES / check_name(file) for name, file in record["files"].items()}
        check_tensors(folder / TENSORS)
        state: dict[str, Any] = join(Parts(record["state"], load_file(folder / TENSORS), files))
        whole = isinstance(state, dict) and all(path.is_file() for path in files.values())
    except RecursionError as error:
        raise CheckpointError(f"{folder} is not a readable checkpoint: {STATE} is nested too deeply.") from error
    except (OSError, ValueError, KeyError, TypeError, AttributeError, SafetensorError) as error:
        raise CheckpointError(f"{folder} is not a readable checkpoint: {first_line(error)}.") from error
    if not whole:
        raise CheckpointError(f"{folder} is not a whole checkpoint: {STATE} does not fit the other files.")
    if made != (FORMAT, VERSION, step):
        raise CheckpointError(
            f"{folder} must be a {FORMAT} of version {VERSION} and step {step}, but got a {made[0]} of version "
            f"{made[1]} and step {made[2]}."
        )
    return state


def _difference(folder: Path, expected: bytes) -> str:
    """Describe the first difference between a checkpoint and its checksums."""
    try:
        then, now = (
            {name: value for value, name in (line.split("  ", 1) for line in text.splitlines())}
            for text in (expected.decode(), _format_sums(folder))
        )
    except ValueError:
        return f"{SUMS} is unreadable"
    for name in {**now, **then}:
        if then.get(name) != now.get(name):
            return f"{name} {'was added' if name not in then else 'has changed' if name in now else 'is missing'}"
    return f"{SUMS} has changed"
