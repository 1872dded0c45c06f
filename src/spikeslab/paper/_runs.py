"""Finished runs of the image experiments on disk: where they are, what they found, and with which settings."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from spikeslab.compression.settings import OLD_METHODS
from spikeslab.files import read_record, write_record
from spikeslab.training import CheckpointError
from spikeslab.training.log import nan_to_null
from spikeslab.training.run_folder import describe_changes, to_json

RESULT = "result.json"
"""File of what a run found; only finished runs have it."""
OLD_PRESETS = {"tuned": "default", "sound": "default", "taught": "distilled", "compressed": "paper-short"}
"""Names that presets had in earlier records, and their present names."""


def run_folder(out: Path, name: str, *, finished: bool = True) -> Path:
    """Return the folder of a run below ``out``, which may have the earlier name of its preset or method.

    With ``finished`` only a finished run may.
    """
    earlier = [out / name.replace(f"-{new}-", f"-{old}-", 1) for old, new in OLD_PRESETS.items()]
    methods = {old: new for old, new in OLD_METHODS.items() if name.startswith(f"{new}-")}
    earlier += [out / name.replace(new, old, 1) for old, new in methods.items()]
    found = [folder for folder in earlier if (folder / RESULT if finished else folder).exists()]
    return found[0] if found and not (out / name).exists() else out / name


def read_result(folder: Path) -> dict[str, Any] | None:
    """Return what a finished run found, or ``None`` if it has not finished."""
    path = folder / RESULT
    if not path.exists():
        return None
    record: dict[str, Any] = upgrade(read_record(path, CheckpointError))
    return record


def write_result(folder: Path, result: Mapping[str, Any]) -> dict[str, Any]:
    """Write what a run found, with ``null`` for numbers that are not finite, and return what was written."""
    record: dict[str, Any] = nan_to_null(result)
    write_record(folder / RESULT, record)
    return record


def check_settings(folder: Path, before: Mapping[str, Any], now: Mapping[str, Any]) -> None:
    """Raise if the settings of a finished run differ from those that are wanted.

    Raises:
        CheckpointError: If a setting differs.
    """
    changes = describe_changes(before, to_json(now))
    if changes:
        raise CheckpointError(f"{folder} holds a run with other settings: {changes}.")


def upgrade(value: Any, key: str = "") -> Any:
    """Return a part of an earlier record, which stands there under ``key``, with the present names."""
    if isinstance(value, dict):
        present = {"preset" if name == "recipe" else name: each for name, each in value.items()}
        return {name: upgrade(each, name) for name, each in present.items()}
    if key in ("name", "preset", "label") and isinstance(value, str):
        head, comma, rest = value.partition(",")
        return OLD_PRESETS.get(head, head) + comma + rest
    if key in ("method", "row") and isinstance(value, str):
        return OLD_METHODS.get(value, value)
    if key == "command" and isinstance(value, str):
        return re.sub(r"(?<=--preset )\S+", lambda match: OLD_PRESETS.get(match[0], match[0]), value)
    return value
