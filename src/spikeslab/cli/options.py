"""Defaults of options, and checks of them before any work is done."""

from __future__ import annotations

import os
from collections.abc import Collection, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryFile

from spikeslab.cli.errors import InputError
from spikeslab.errors import SpikeSlabError, check_choice, check_count

HEAD = 200
"""Bytes at the beginning of a file that a mark is looked for in."""
TABLE_MARK, PNG_MARK = '{\n  "title": ', "PNG"
CORES = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
"""Cores that this process may use."""


def check_folder(out: Path) -> None:
    """Raise if ``out`` cannot be a folder, before any work is done."""
    for path in (out, *out.parents):
        if path.exists():
            if not path.is_dir():
                raise InputError(f"--out must be a folder, but {path} is a file.")
            return


def check_file(option: str, path: Path, mark: str | None, what: str) -> None:
    """Raise if ``path`` cannot be written, or is a file without the mark of those which the command writes.

    Without a mark every file is somebody else's.
    """
    if path.is_dir():
        raise InputError(f"{option} must be a file, but {path} is a folder.")
    parent = next(folder for folder in path.absolute().parents if folder.exists())
    if not parent.is_dir():
        raise InputError(f"{option} must be in a folder, but {parent} is a file.")
    if not path.exists():
        return
    if not path.is_file():
        raise InputError(f"{option} must be a file, but {path} is a device or a pipe.")
    with path.open("rb") as file:
        head = file.read(HEAD).decode("utf-8", errors="replace")
    if mark is None or mark not in head:
        raise InputError(f"{option} must be a new file or one with {what}, but {path} holds something else.")


def check_results(out: Path, tables: Iterable[str], figures: Iterable[str]) -> None:
    """Raise if ``out`` cannot be a folder, or has files of these names that are no tables and figures."""
    check_folder(out)
    for name in tables:
        numbers = out / f"{name}.json"
        check_file("--out", numbers, TABLE_MARK, "a table")
        # A table is known by its numbers: anybody's Markdown begins with a title.
        check_file("--out", numbers.with_suffix(".md"), "" if numbers.exists() else None, "a table")
    for name in figures:
        check_file("--out", out / f"{name}.png", PNG_MARK, "a figure")


def check_writable(option: str, folder: Path) -> None:
    """Raise if nothing can be written to the folder, or to the one in which it would be made."""
    parent = next(path for path in (folder.absolute(), *folder.absolute().parents) if path.exists())
    try:
        with TemporaryFile(dir=parent):
            return
    except OSError as error:
        raise InputError(
            f"{option} must be in a folder that can be written to, but {parent}: {error.strerror}."
        ) from error


def check_option(option: str, value: int, minimum: int) -> None:
    """Raise if an option is not an integer of at least ``minimum``."""
    with bad_input():
        check_count(option, value, minimum)


def check_seed(seed: int) -> None:
    """Raise if ``--seed`` is none that torch and NumPy both take."""
    check_option("--seed", seed, minimum=0)
    if seed >= 1 << 63:
        raise InputError(f"--seed must be an integer below 2**63, but got {seed}.")


def use_threads(threads: int | None) -> None:
    """Keep torch to as many threads as ``--threads`` says; ``None`` leaves it torch's choice."""
    if threads is not None:
        check_option("--threads", threads, minimum=1)
        import torch

        torch.set_num_threads(threads)


def check_choices(option: str, value: str, choices: Collection[str]) -> tuple[str, ...]:
    """Return the parts of a list with commas if each is one of ``choices``; what is named twice counts once."""
    return tuple(dict.fromkeys(check_choice(option, part.strip(), choices) for part in value.split(",")))


@contextmanager
def bad_input() -> Iterator[None]:
    """Turn errors of checks, whose message is a sentence, into bad input."""
    try:
        yield
    except SpikeSlabError:
        raise
    except ValueError as error:
        raise InputError(str(error)) from error
