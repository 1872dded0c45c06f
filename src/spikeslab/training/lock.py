"""One process at a time in a folder."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from types import TracebackType
from typing import BinaryIO

from spikeslab.errors import SpikeSlabError

NAME = ".lock"


class FolderInUseError(SpikeSlabError, BlockingIOError):
    """Another process uses a folder."""


class FolderLock:
    """Keeps other processes out of a folder while a ``with`` block runs.

    The operating system lifts the lock when the process ends, however it ends, so a killed run leaves none behind.

    Args:
        folder: The folder; made where it does not exist.

    Raises:
        FolderInUseError: On entry, if another process holds the lock.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._file: BinaryIO | None = None

    def __enter__(self) -> FolderLock:
        self.folder.mkdir(parents=True, exist_ok=True)
        file = (self.folder / NAME).open("a+b")
        try:
            lock_file(file)
        except OSError as error:
            file.seek(0)
            owner = file.read(20).decode("ascii", "replace").strip()
            file.close()
            raise FolderInUseError(
                f"{self.folder} is in use by another run, process {owner or 'unknown'}: wait for it, stop it, or "
                "choose another {folder}."
            ) from error
        file.truncate(0)
        file.write(str(os.getpid()).encode())
        file.flush()
        self._file = file
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None


if sys.platform == "win32":
    import msvcrt

    def lock_file(file: BinaryIO) -> None:
        """Lock an open file until it is closed; an ``OSError`` if another process has."""
        file.seek(1 << 20)  # far beyond the content, which stays readable
        msvcrt.locking(file.fileno(), msvcrt.LK_NBLCK, 1)
else:
    import fcntl

    def lock_file(file: BinaryIO) -> None:
        """Lock an open file until it is closed; an ``OSError`` if another process has."""
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
