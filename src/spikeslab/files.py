"""Files that are whole or absent, even after a power cut."""

from __future__ import annotations

import errno
import glob
import hashlib
import os
from collections.abc import Mapping
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
    _replace(path.parent, {path.name: content})


def write_together(folder: Path, contents: Mapping[str, bytes]) -> None:
    """Write files to a folder, all or none: they are renamed once all of them are on the disk.

    Temporary files of an earlier process that was stopped while writing are removed.
    """
    folder.mkdir(parents=True, exist_ok=True)
    for name in contents:
        if (folder / name).is_dir():
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(folder / name))
        for left in folder.glob(f"{glob.escape(name)}.*.tmp"):
            process = left.name[len(name) + 1 : -len(".tmp")]
            if process.isdigit() and not _is_running(int(process)):
                left.unlink(missing_ok=True)
    _replace(folder, contents)


def _replace(folder: Path, contents: Mapping[str, bytes]) -> None:
    temporaries = {folder / f"{name}.{os.getpid()}.tmp": name for name in contents}
    try:
        for temporary, name in temporaries.items():
            temporary.write_bytes(contents[name])
            flush(temporary)
        for temporary, name in temporaries.items():
            temporary.replace(folder / name)
    except BaseException:
        for temporary in temporaries:
            temporary.unlink(missing_ok=True)
        raise
    flush(folder)


def _is_running(process: int) -> bool:
    if os.name != "posix":  # os.kill ends a process elsewhere
        return True
    try:
        os.kill(process, 0)
    except (ProcessLookupError, OverflowError):
        return False
    except PermissionError:
        pass
    return True


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
