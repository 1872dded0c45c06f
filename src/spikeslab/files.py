"""Files that are whole or absent, even after a power cut."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

from spikeslab.errors import ArgumentValueError, Phrase, SpikeSlabError


class FolderExistsError(SpikeSlabError, FileExistsError):
    """A folder holds something that would be replaced."""


def check_free(folder: Path, argument: str) -> None:
    """Raise unless a folder is new or empty.

    Raises:
        ArgumentValueError: If it is a file.
        FolderExistsError: If it holds something.
    """
    if folder.exists() and not folder.is_dir():
        raise ArgumentValueError(argument, "must be a folder", Phrase(f"{folder} is a file"))
    if folder.exists() and any(folder.iterdir()):
        raise FolderExistsError(f"{{{argument}}} must be a new or an empty folder, but {folder} holds something.")


def write_atomically(path: Path, content: bytes) -> None:
    """Write a file under another name, flush it to the disk, and rename it, which replaces ``path`` in one step.

    The other name is this process's own: several may write the same table, and the last one wins.
    """
    temporary = path.with_name(f"{path.name}.{os.getpid()}.tmp")
    temporary.write_bytes(content)
    flush(temporary)
    temporary.replace(path)
    flush(path.parent)


def flush(path: Path) -> None:
    """Wait until a file's content, or a folder's list of names, is on the disk."""
    if os.name == "nt" and path.is_dir():  # Windows cannot open a folder, and needs no such wait
        return
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def digest(path: Path) -> str:
    """Return the SHA-256 of a file, in hexadecimal."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
