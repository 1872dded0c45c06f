"""Diagnostics of a run: temperatures, the run reader, the doctor and the HTML report."""

from __future__ import annotations

from pathlib import Path

from spikeslab.diagnostics.temperatures import Thermometer
from spikeslab.files import write_atomically

__all__ = ["REPORT", "Thermometer", "write_report"]

REPORT = "report.html"


def write_report(folder: Path, path: Path | None = None) -> Path:
    """Write the HTML report of a run, by default to ``report.html`` in its folder, and return its path.

    Pass it to :class:`~spikeslab.training.RunFolder` as ``write_report``, so that a finished run has a report.
    """
    from spikeslab.diagnostics.report import run_page  # needs the extra `report`

    path = folder / REPORT if path is None else path
    write_atomically(path, run_page(folder).html().encode())
    return path
