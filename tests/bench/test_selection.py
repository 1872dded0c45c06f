"""Tables of variable selection where peers are missing."""

from __future__ import annotations

from spikeslab.bench import BenchPlan, selection, timing


def test_a_peer_that_is_missing_is_named(monkeypatch):
    monkeypatch.setattr(selection, "is_installed", lambda package: False)
    monkeypatch.setattr(timing, "_time_calls", lambda run, calls: 1.0)
    steps = selection._steps(BenchPlan(1))
    assert "blackjax sgld, no prior, jitted step" in steps.notes[-1]
    assert [row["what"] for row in steps.rows if row[selection.TORCH] is None] == [
        selection.KERNEL,
        selection.POSTERIORS,
        selection.JITTED,
        selection.SCANNED,
    ]


def test_a_fit_without_any_package_is_a_table_of_names(monkeypatch):
    monkeypatch.setattr(selection, "is_installed", lambda package: False)
    table = selection._fits(BenchPlan(2))
    assert [row[selection.LASSO] for row in table.rows] == [None] * 5
    assert all(row["what"] in table.notes[-1] for row in table.rows)
