"""Cells are kept as they finish, never made twice, and never mixed with those of other settings."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from spikeslab.paper.grid import Cell, CellFile, CellFileError, run_cells

CELLS = [Cell("a", 0), Cell("a", 1), Cell("b", 0)]


def square(cell: Cell) -> dict[str, int]:
    return {"square": cell.seed**2, "process": os.getpid()}


def test_a_second_run_does_no_work(tmp_path: Path) -> None:
    path = tmp_path / "new" / "cells.jsonl"
    done: list[int] = []
    run_cells(CellFile.load(path, {"--steps": 1}), CELLS[:2], square, on_done=done.append)
    assert done == [0, 1, 1]
    run_cells(CellFile.load(path, {"--steps": 1}), CELLS, square, on_done=done.append)
    assert done[3:] == [2, 1]
    before = path.read_text()
    run_cells(CellFile.load(path, {"--steps": 1}), CELLS, square, on_done=done.append)
    assert done[5:] == [3]
    assert path.read_text() == before


def test_cells_are_made_by_several_processes(tmp_path: Path) -> None:
    file = CellFile(tmp_path / "cells.jsonl", {"--steps": 1})
    run_cells(file, CELLS, square, workers=2)
    assert {cell: file.records[cell]["square"] for cell in CELLS} == {cell: cell.seed**2 for cell in CELLS}
    assert os.getpid() not in {file.records[cell]["process"] for cell in CELLS}
    assert CellFile.load(file.path, {"--steps": 1}).records == file.records


def test_finished_cells_survive_a_failure(tmp_path: Path) -> None:
    def fail(cell: Cell) -> dict[str, int]:
        if cell.method == "b":
            raise KeyboardInterrupt
        return square(cell)

    file = CellFile(tmp_path / "cells.jsonl", {"--steps": 1})
    with pytest.raises(KeyboardInterrupt):
        run_cells(file, CELLS, fail)
    assert list(CellFile.load(file.path, {"--steps": 1}).records) == CELLS[:2]


def test_a_line_cut_short_by_a_crash_is_made_again(tmp_path: Path) -> None:
    file = CellFile(tmp_path / "cells.jsonl", {"--steps": 1})
    run_cells(file, CELLS, square)
    whole = file.path.read_text()
    file.path.write_text(whole[:-10])
    again = CellFile.load(file.path, {"--steps": 1})
    assert list(again.records) == CELLS[:2]
    run_cells(again, CELLS, square)
    assert file.path.read_text() == whole


def test_other_settings_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "cells.jsonl"
    run_cells(CellFile.load(path, {"--steps": 1, "version": "0.1"}), CELLS, square)
    with pytest.raises(CellFileError) as caught:
        CellFile.load(path, {"--steps": 2, "version": "0.1"})
    assert str(caught.value) == (
        f"Cannot continue: {path} was made with --steps 1 instead of --steps 2. Use those settings or another out."
    )


def test_files_with_an_old_name_of_a_setting_are_read(tmp_path: Path) -> None:
    file = CellFile(tmp_path / "cells.jsonl", {"--preset": "sound"})
    run_cells(file, CELLS, square)
    assert CellFile.load(file.path, {"--preset": "default"}, {"sound": "default"}).records == file.records
    with pytest.raises(CellFileError, match="--preset default instead of --preset paper"):
        CellFile.load(file.path, {"--preset": "paper"}, {"sound": "default"})


@pytest.mark.parametrize("text", ["something else\n", '{"--steps": 1}\n{"seed": 0}\n', "[1]\n[2]\n"])
def test_other_files_are_refused(tmp_path: Path, text: str) -> None:
    path = tmp_path / "cells.jsonl"
    path.write_text(text)
    with pytest.raises(CellFileError) as caught:
        CellFile.load(path, {"--steps": 1})
    assert str(caught.value).startswith(f"{path} ")
    assert str(caught.value).lower().endswith("choose another out.")
    assert path.read_text() == text
