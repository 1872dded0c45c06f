"""Reports take seconds, so runs of these tests end without one."""

from __future__ import annotations

import pytest

from spikeslab.training.folder import RunFolder


@pytest.fixture(autouse=True)
def _without_report(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(RunFolder, "_write_report", lambda self: None)
