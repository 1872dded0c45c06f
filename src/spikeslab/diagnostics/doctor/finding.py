"""What a check says."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Level(StrEnum):
    """How bad it is, the worst first."""

    PROBLEM = "problem"
    NOTE = "note"
    OK = "ok"


@dataclass(frozen=True)
class Finding:
    """What a check found.

    Attributes:
        about: What was looked at, in a word.
        level: How bad it is.
        sentence: The finding, with its numbers.
        change: What to do; ``None`` where there is nothing to do.
    """

    about: str
    level: Level
    sentence: str
    change: str | None = None
