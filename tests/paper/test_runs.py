"""Finished runs on disk, also those of earlier versions."""

from __future__ import annotations

from pathlib import Path

from spikeslab.paper._runs import read_result, run_folder, write_result


def test_committed_results_are_read_with_present_names() -> None:
    root = Path(__file__).parents[2] / "results"
    result = read_result(root / "mnist" / "runs" / "sghmc-sa-tuned-30-seed0")
    assert result is not None
    assert result["settings"]["preset"]["name"] == "default"


def test_a_method_is_found_and_read_by_its_earlier_name(tmp_path: Path) -> None:
    before = tmp_path / "one-shot-0.9-default-30epochs-seed0"
    before.mkdir()
    write_result(before, {"method": "one-shot", "facts": {"row": "one-shot"}})
    assert run_folder(tmp_path, "magnitude-0.9-default-30epochs-seed0") == before
    assert read_result(before) == {"method": "magnitude", "facts": {"row": "magnitude"}}
