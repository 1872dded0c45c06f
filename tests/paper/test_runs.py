"""Finished runs on disk, also those of earlier versions."""

from __future__ import annotations

from pathlib import Path

from spikeslab.paper._runs import read_result


def test_committed_results_are_read_with_present_names() -> None:
    root = Path(__file__).parents[2] / "results"
    result = read_result(root / "mnist" / "runs" / "sghmc-sa-tuned-30-seed0")
    assert result is not None
    assert result["settings"]["preset"]["name"] == "default"
