"""Memory that numba's compiler leaves behind.

Loading a kernel, even from numba's cache, runs through most of LLVM's code and tables, which stay resident: some 70 MB,
more than all else that the kernels need. Once a kernel is loaded nobody reads them.
"""

from __future__ import annotations

import ctypes
import mmap
import re
from pathlib import Path
from typing import NamedTuple

LIBRARY = "libllvmlite"
SMAPS = Path("/proc/self/smaps")
HEADER = re.compile(r"^([0-9a-f]+)-([0-9a-f]+) (\S{4}) \S+ \S+ \S+\s*(.*)$")


class Mapping(NamedTuple):
    """Part of a file in memory, with the bytes of it that are resident and those that are no longer the file's."""

    start: int
    stop: int
    permissions: str
    path: str
    resident: int = 0
    anonymous: int = 0

    @property
    def is_file_content(self) -> bool:
        """True if nobody can write to it and nobody has, the dynamic linker included."""
        return "w" not in self.permissions and self.anonymous == 0


def release_compiler() -> int:
    """Let go of LLVM's resident code and tables, and return their number of bytes, 0 where the system cannot.

    They remain in the system's cache of files: if numba compiles again, they are mapped again. Call it after kernels
    have been loaded, not in a step.
    """
    if not hasattr(mmap, "MADV_DONTNEED"):
        return 0
    try:
        mappings = find_mappings(LIBRARY)
        advise = ctypes.CDLL(None).madvise
    except (OSError, AttributeError):
        return 0
    released = 0
    for found in mappings:
        size = ctypes.c_size_t(found.stop - found.start)
        # Pages that were written to, such as relocated tables, would be lost.
        if found.is_file_content and advise(ctypes.c_void_p(found.start), size, mmap.MADV_DONTNEED) == 0:
            released += found.resident
    return released


def find_mappings(library: str) -> list[Mapping]:
    """Return the mappings of the files of this process whose names begin with ``library``."""
    mappings: list[Mapping] = []
    for line in SMAPS.read_text(encoding="utf-8", errors="replace").splitlines():
        if header := HEADER.match(line):
            start, stop, permissions, path = header.groups()
            mappings.append(Mapping(int(start, 16), int(stop, 16), permissions, path))
        elif line.startswith("Rss:"):
            mappings[-1] = mappings[-1]._replace(resident=1024 * int(line.split()[1]))
        elif line.startswith("Anonymous:"):
            mappings[-1] = mappings[-1]._replace(anonymous=1024 * int(line.split()[1]))
    return [found for found in mappings if Path(found.path).name.startswith(library)]
