"""The UCI regressions, on small data made here."""

from __future__ import annotations

import json

import numpy as np
import pytest

from spikeslab.cli.app import run
from spikeslab.paper.uci import sampling as uci
from spikeslab.paper.uci import study as uci_study
from spikeslab.paper.uci.data import FILES
from spikeslab.report.tables import Estimate


@pytest.fixture
def folder(tmp_path):
    """Yacht as it might be."""
    _, rows, columns, _ = FILES["yacht"]
    table = np.random.default_rng(0).standard_normal((rows, columns))
    table[:, -1] = table[:, 0] + 0.1 * table[:, -1]
    np.savetxt(tmp_path / "yacht.csv", table, delimiter=",", header="names", comments="")
    return tmp_path


def test_the_command_writes_tables_and_a_figure_and_goes_on_where_it_stopped(folder, capsys, monkeypatch):
    monkeypatch.delenv("SPIKESLAB_DATA", raising=False)
    out = folder / "out"
    arguments = ["reproduce", "uci", "--data-dir", str(folder), "--datasets", "yacht", "--out", str(out)]
    arguments += ["--epochs", "2", "--workers", "1"]
    assert run([*arguments, "--methods", "SGHMC"]) == 0
    first = (out / "cells.jsonl").read_text()
    assert run([*arguments, "--methods", "SGHMC, A-SGHMC-SA"]) == 0
    assert (out / "cells.jsonl").read_text().startswith(first)
    record = json.loads((out / "table.json").read_text())
    assert [row["method"] for row in record["rows"]] == ["SGHMC", "A-SGHMC-SA"]
    assert record["rows"][1]["paper"] == {"mean": 0.782, "error": 0.052}
    assert record["run"]["command"] == (
        "spikeslab reproduce uci --datasets yacht --methods SGHMC,A-SGHMC-SA --epochs 2 --preset default "
        "--splits paper --seed 0"
    )
    assert {path.name for path in out.iterdir()} == {
        "cells.jsonl",
        "table.md",
        "table.json",
        "differences.md",
        "differences.json",
        "rmse.png",
    }
    capsys.readouterr()
    assert run([*arguments, "--preset", "paper"]) == 2
    assert "was made with --preset default instead of --preset paper" in capsys.readouterr().err


def test_differences_are_paired_by_split(tmp_path):
    study = uci_study.UCIStudy(("yacht",), ("SGHMC", "A-SGHMC-SA"), "paper", "paper")
    file = uci_study.CellFile(tmp_path / "cells.jsonl", {})
    for method, values in (("SGHMC", [1.0, 2.0, None, 4.0]), ("A-SGHMC-SA", [0.5, 1.0, 9.0, None])):
        file.add(uci_study.Cell(f"yacht {method}", 0), {"rmse": values})
    results = uci_study.UCIResults(study, file)
    assert results.difference(("yacht", "SGHMC"), "rmse") == Estimate.of([-0.5, -1.0])
    assert results.count_diverged(("yacht", "SGHMC")) == 1
    assert results.estimate(("yacht", "A-SGHMC-SA"), "rmse") == Estimate.of([0.5, 1.0, 9.0])


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--datasets", "iris"], "--datasets must be one of 'boston', 'yacht', 'energy', 'energy-heating', 'wine', "),
        (["--methods", "SGD"], "--methods must be one of 'SGHMC', 'A-SGHMC', 'SGHMC-EM', "),
        (["--preset", "best"], "--preset must be one of 'default', 'paper', but got 'best'."),
        (["--splits", "mine"], "--splits must be one of 'standard', 'paper', but got 'mine'."),
        (["--epochs", "1"], "--epochs must be an integer >= 2, but got 1."),
        (["--seed", "-1"], "--seed must be an integer >= 0, but got -1."),
        (
            ["--splits", "standard"],
            "--data-dir (or the variable SPIKESLAB_DATA) must be a folder with boston.csv",
        ),
    ],
)
def test_bad_options_are_refused_before_any_work(tmp_path, capsys, monkeypatch, arguments, message):
    monkeypatch.delenv("SPIKESLAB_DATA", raising=False)
    assert run(["reproduce", "uci", "--out", str(tmp_path / "new"), *arguments]) == 2
    assert capsys.readouterr().err.startswith(f"Error: {message}")
    assert not (tmp_path / "new").exists()


def test_the_names_of_the_command_line_are_those_of_the_study():
    from spikeslab.cli.reproduce import DATA_VARIABLE, UCI_DATASETS, UCI_METHODS
    from spikeslab.paper.uci.data import NAMES, VARIABLE

    assert set(UCI_DATASETS) == set(uci_study.TITLES) == set(NAMES) == set(uci.CHOSEN)
    assert tuple(uci.METHODS) == UCI_METHODS
    assert DATA_VARIABLE == VARIABLE
