"""Reports take seconds, so runs of these tests end without one."""

from __future__ import annotations

import pytest


@pytest.fixture(autouse=True)
def _without_report(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("spikeslab.compression.harness.write_report", None)
