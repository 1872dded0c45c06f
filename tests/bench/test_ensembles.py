"""Predictions of many samples in units of one forward pass."""

from __future__ import annotations

from spikeslab.bench import BenchPlan, ensembles


def test_predictions_are_measured_at_several_sizes():
    table = ensembles.run_predict(BenchPlan(1, quick=True)).tables["predict"]
    assert [row["rows"] for row in table.rows] == [1, 50, 100, 1000]
    assert all(row[key] > 0.0 for row in table.rows for key in ("loop", "one", "many", "median", "predictive"))
