from __future__ import annotations

import io
import json
import platform
from pathlib import Path

import pytest
import torch
from rich.console import Console

from spikeslab import __version__
from spikeslab.report.tables import Column, Estimate, Provenance, Table

COLUMNS = [Column("method", "Method"), Column("mse", "MSE", ".2f"), Column("selected", "selected", ",")]
ROWS = [{"method": "SGLD-SA", "mse": 3.14159, "selected": 1234}, {"method": "SGLD", "mse": 100.0, "selected": None}]


@pytest.fixture
def table() -> Table:
    return Table("Errors", COLUMNS, ROWS, notes=["A note."])


def test_markdown(table: Table) -> None:
    assert table.markdown().splitlines() == [
        "## Errors",
        "",
        "| Method  |    MSE | selected |",
        "|:--------|-------:|---------:|",
        "| SGLD-SA |   3.14 |    1,234 |",
        "| SGLD    | 100.00 |        – |",
        "",
        "A note.",
    ]


def test_files_hold_the_raw_numbers_and_where_they_come_from(table: Table, tmp_path: Path) -> None:
    (tmp_path / "other.txt").write_text("mine")
    files = table.write(tmp_path / "errors", Provenance("spikeslab demo --seed 3", seed=3))
    assert files == [tmp_path / "errors.md", tmp_path / "errors.json"]
    record = json.loads((tmp_path / "errors.json").read_text())
    assert record["rows"] == ROWS
    assert record["run"] == {
        "command": "spikeslab demo --seed 3",
        "seed": 3,
        "spikeslab": __version__,
        "torch": torch.__version__,
        "python": platform.python_version(),
    }
    assert "Made by `spikeslab demo --seed 3`" in (tmp_path / "errors.md").read_text()
    assert (tmp_path / "other.txt").read_text() == "mine"


def test_several_commands_are_a_block_of_lines(table: Table, tmp_path: Path) -> None:
    commands = "spikeslab demo --seed 3\nspikeslab demo --seed 4"
    table.write(tmp_path / "errors", Provenance(commands, seed=3))
    made = f"\nMade by\n\n```bash\n{commands}\n```\n\nThe raw numbers are in `errors.json`.\n"
    assert (tmp_path / "errors.md").read_text().endswith(made)


def test_terminal(table: Table) -> None:
    console = Console(width=80, file=io.StringIO())
    console.print(table.rich())
    text = console.file.getvalue()
    assert "Errors" in text
    assert "100.00" in text


def test_rows_must_fit_the_columns() -> None:
    message = r"^rows must have the cells 'method', 'mse', 'selected', but got 'method'\.$"
    with pytest.raises(ValueError, match=message):
        Table("Errors", COLUMNS, [{"method": "SGLD"}])


def test_estimates_show_their_standard_error_and_keep_both_numbers() -> None:
    columns = [Column("mse", "MSE", "+.2f"), Column("once", "once", ".1f")]
    table = Table("Errors", columns, [{"mse": Estimate.of([1.0, 2.0, 3.0]), "once": Estimate.of([2.0])}])
    assert "| +2.00 ± 0.58 |  2.0 |" in table.markdown()
    (row,) = json.loads(table.json(Provenance("x", 0)))["rows"]
    assert row == {"mse": {"mean": 2.0, "error": pytest.approx(3**-0.5)}, "once": {"mean": 2.0, "error": None}}


def test_a_table_is_the_old_one_or_the_new_one_and_writers_do_not_meet(
    table: Table, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "errors.md.tmp").write_text("another process is writing")
    table.write(tmp_path / "errors", Provenance("first", seed=0))
    assert (tmp_path / "errors.md.tmp").read_text() == "another process is writing"

    def fail(path: Path, target: Path) -> None:
        raise OSError("power cut")

    monkeypatch.setattr(Path, "replace", fail)
    with pytest.raises(OSError, match=r"^power cut$"):
        table.write(tmp_path / "errors", Provenance("second", seed=0))
    assert "Made by `first`" in (tmp_path / "errors.md").read_text()
