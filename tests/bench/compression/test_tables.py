"""Tables of the study from cells made by hand."""

from __future__ import annotations

import pytest

from spikeslab.bench.compression.grid import CellKey
from spikeslab.bench.compression.results import StudyResults
from spikeslab.bench.compression.tables import make_tables
from spikeslab.report.tables import Estimate, Provenance


def make_results(tmp_path) -> StudyResults:
    def record(rmse: float, nll: float, **more) -> dict:
        numbers = {"rmse": rmse, "nll": nll, "held_out_rmse": rmse, "held_out_nll": nll}
        return {
            "single": numbers,
            "seconds": 3.0,
            "zeros": 9,
            "target": 9,
            "settings": {"lr": 1},
            "command": "",
            **more,
        }

    average = {"rmse": 0.2, "nll": 0.1, "held_out_rmse": 0.2, "held_out_nll": 0.1}
    gmp = CellKey("mlp", 0.9, "gmp")
    return StudyResults(
        {
            CellKey("mlp", 0.0, "dense"): {0: record(0.1, 0.0), 1: record(0.1, 0.0)},
            CellKey("mlp", 0.9, "spikeslab"): {
                0: record(0.3, 0.2, average=average),
                1: record(0.5, 0.4, average=average),
            },
            gmp: {0: record(0.6, 0.5), 1: record(0.7, 0.45, zeros=8)},
            gmp._replace(setting=(("lr", 0.1),)): {0: record(0.5, 0.3), 1: record(0.6, 0.4)},
        },
        tmp_path,
    )


def test_scores(tmp_path):
    table = make_tables(make_results(tmp_path), ["A network is left out."])["compression"]
    rows = {row["method"]: row for row in table.rows}
    assert list(rows) == ["dense", "spikeslab", "spikeslab, average", "gmp", "gmp-tuned"]
    assert rows["spikeslab"]["rmse"] == Estimate.of([0.3, 0.5])
    assert rows["spikeslab, average"]["rmse"].mean == pytest.approx(0.2)
    assert rows["gmp"]["accuracy"] is None
    assert rows["gmp"]["setting"] == "defaults"
    assert rows["gmp-tuned"]["setting"] == "lr=0.1"
    assert "A network is left out." in table.notes
    assert "Other numbers of zeros: mlp 0.9 gmp (seed 1) has 8 zeros instead of 9." in table.notes
    assert table.raw["cells"]["mlp 0.9 gmp"]["1"]["single"]["rmse"] == 0.7
    assert '"0.3"' not in table.json(Provenance("spikeslab bench", 0))  # numbers stay numbers


def test_differences_and_counts(tmp_path):
    tables = make_tables(make_results(tmp_path))
    rows = {row["alternative"]: row for row in tables["compression-differences"].rows}
    assert rows["gmp"]["single"] == Estimate.of([0.3 - 0.6, 0.5 - 0.7])
    assert rows["gmp"]["single_verdict"] == "ahead"  # lower by 0.25 ± 0.05
    assert rows["gmp-tuned"]["average"].mean == pytest.approx(-0.35)
    assert rows["gmp-tuned"]["average_verdict"] == "ahead"
    assert rows["gmp"]["average_nll"].mean == pytest.approx(-0.375)
    wins = {(row["kind"], row["alternative"]): row for row in tables["compression-wins"].rows}
    assert wins["last network", "gmp"]["ahead"] == 1
    assert wins["last network", "gmp"]["nll_ahead"] == 0  # -0.3 and -0.05: -0.175 ± 0.125


def test_trials(tmp_path):
    rows = make_tables(make_results(tmp_path))["compression-tuning"].rows
    assert [(row["setting"], row["rmse"], row["chosen"]) for row in rows] == [
        ("defaults", 0.6, ""),
        ("lr=0.1", 0.5, "yes"),
    ]
