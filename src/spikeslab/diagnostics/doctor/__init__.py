"""The doctor: reads what a run has written and says in plain words how it went and what to change.

A check is a function from :class:`~spikeslab.diagnostics.run_facts.RunFacts` to a :class:`Finding`, or to ``None``
where the run has not written what it needs. To add one, write the function and put it into ``CHECKS``.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeAlias

from spikeslab.diagnostics.doctor.chain import check_law, check_masks, check_mixing, check_samples, check_swaps
from spikeslab.diagnostics.doctor.finding import Finding, Level
from spikeslab.diagnostics.doctor.progress import (
    check_clipping,
    check_latents,
    check_loss,
    check_sparsity,
    check_status,
)
from spikeslab.diagnostics.doctor.thermometer import check_temperature, check_travel
from spikeslab.diagnostics.run_facts import RunFacts
from spikeslab.errors import pluralize
from spikeslab.report.tables import Column, Table

__all__ = ["CHECKS", "Finding", "Level", "examine", "findings_table", "verdict"]

Check: TypeAlias = Callable[[RunFacts], Finding | None]

CHECKS: tuple[Check, ...] = (
    check_status,
    check_loss,
    check_mixing,
    check_samples,
    check_law,
    check_temperature,
    check_travel,
    check_latents,
    check_sparsity,
    check_masks,
    check_swaps,
    check_clipping,
)


def examine(facts: RunFacts) -> list[Finding]:
    """What all checks found, problems first; checks without data to look at are silent."""
    found = [finding for check in CHECKS if (finding := check(facts)) is not None]
    order = list(Level)
    return sorted(found, key=lambda finding: order.index(finding.level))


def verdict(findings: Sequence[Finding]) -> str:
    """All findings in one sentence.

    >>> verdict([Finding("loss", Level.OK, "It fell.")])
    'No problem was found.'
    """
    problems = [finding.about for finding in findings if finding.level is Level.PROBLEM]
    notes = sum(finding.level is Level.NOTE for finding in findings)
    more = f", and {pluralize(notes, 'thing')} to know" if notes else ""
    if not problems:
        return f"No problem was found{more}."
    return f"{pluralize(len(problems), 'problem')} ({', '.join(problems)}){more}."


def findings_table(findings: Sequence[Finding]) -> Table:
    """One row for each finding."""
    return Table(
        "Findings",
        [
            Column("level", "Level"),
            Column("about", "About"),
            Column("sentence", "Finding"),
            Column("change", "What to do"),
        ],
        [
            {
                "level": str(finding.level),
                "about": finding.about,
                "sentence": finding.sentence,
                "change": finding.change or "–",
            }
            for finding in findings
        ],
    )
