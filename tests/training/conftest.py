"""Reports take seconds, so runs of tests end without one unless the test is about it."""

from __future__ import annotations

import pytest

from spikeslab.training.folder import RunFolder

WRITE_REPORT = RunFolder._write_report


@pytest.fixture(autouse=True)
def _without_report(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(RunFolder, "_write_report", lambda self: None)


@pytest.fixture
def with_report(monkeypatch: pytest.MonkeyPatch) -> None:
    """Runs end in a report, as they do for users."""
    monkeypatch.setattr(RunFolder, "_write_report", WRITE_REPORT)
