"""Findings of the doctor."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

from spikeslab.errors import pluralize
from spikeslab.report.tables import Column, Table


class Level(StrEnum):
    """Severity of a finding, most severe first."""

    PROBLEM = "problem"
    NOTE = "note"
    OK = "ok"


@dataclass(frozen=True)
class Finding:
    """Result of a check.

    Attributes:
        about: Subject in a word.
        level: Severity.
        sentence: The finding, with its numbers.
        change: Advice; ``None`` if nothing needs to be done.
    """

    about: str
    level: Level
    sentence: str
    change: str | None = None

    @property
    def text(self) -> str:
        """Finding and advice."""
        return self.sentence if self.change is None else f"{self.sentence} {self.change}"


def verdict(findings: Sequence[Finding]) -> str:
    """Summarise findings in one sentence.

    >>> verdict([Finding("loss", Level.OK, "It fell.")])
    'No problem was found.'
    """
    problems = [finding.about for finding in findings if finding.level is Level.PROBLEM]
    notes = sum(finding.level is Level.NOTE for finding in findings)
    more = f", and {pluralize(notes, 'note')}" if notes else ""
    if not problems:
        return f"No problem was found{more}."
    return f"{pluralize(len(problems), 'problem')} ({', '.join(problems)}){more}."


def findings_table(findings: Sequence[Finding]) -> Table:
    """Return a table with one row per finding."""
    titles = {"level": "Level", "about": "About", "sentence": "Finding", "change": "What to do"}
    rows = [{name: str(getattr(finding, name) or "–") for name in titles} for finding in findings]
    return Table("Findings", [Column(name, title) for name, title in titles.items()], rows)
