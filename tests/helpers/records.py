"""Records on disk that are changed with their checksums."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from spikeslab.errors import SpikeSlabError
from spikeslab.files import read_record, write_record


def load_record(path: Path) -> dict[str, Any]:
    """Return a record without its checksum."""
    return read_record(path, SpikeSlabError)


def change_record(path: Path, change: Callable[[dict[str, Any]], object]) -> dict[str, Any]:
    """Change a record in place, write it, and return it."""
    record = load_record(path)
    change(record)
    write_record(path, record)
    return record
