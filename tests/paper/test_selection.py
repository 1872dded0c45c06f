"""The selection study and its tables, with the linear problem on small data."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import pytest

from spikeslab.paper import selection
from spikeslab.paper import selection_problem as problem
from spikeslab.paper.grid import Cell, CellFileError
from spikeslab.paper.linear import simulate_linear
from spikeslab.paper.linear.study import LINEAR
from spikeslab.paper.selection import SelectionStudy, make_tables
from spikeslab.paper.selection_figures import write_study

SMALL = replace(LINEAR, simulate=partial(simulate_linear, rows=60, variables=20))
STUDY = SelectionStudy(SMALL, seeds=2, sgld_seeds=1, steps=1000)


def test_all_of_it_once_and_nothing_twice(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    steps: dict[str, int] = {}

    def progress(stage: str, count: int) -> None:
        steps[stage] = steps.get(stage, 0) + count

    results = STUDY.run(tmp_path, progress)
    assert steps == STUDY.stages
    tables, files = write_study(results, tmp_path)
    assert {path.name for path in files} == {path.name for path in tmp_path.iterdir()} - {selection.PICTURES}

    paper, methods, differences = tables
    assert [row["paper_mae"] for row in paper.rows[:4]] == [1.89, 1.72, 1.48, 1.54]
    assert len(paper.rows) == 12
    assert len(methods.rows) == 17
    assert len(differences.rows) == 16
    by_key = dict(zip((method.key for method in LINEAR.methods), methods.rows, strict=True))
    assert by_key["oracle"]["exact"].mean == 1.0
    assert 3.0 < by_key["oracle"]["population_mse"].mean < 4.0
    assert by_key["default"]["population_mse"].mean < 4.0
    assert by_key["default"]["count"] == 2
    assert by_key["SGLD 0.1 1"]["count"] == 1
    assert by_key["SGLD 0.1 1"]["mse"].error is None

    seeds = (0, 1)
    pairs = [results.cells.records[Cell(key, s)]["mse"] for key in ("default", "lasso") for s in seeds]
    gaps = [pairs[0] - pairs[2], pairs[1] - pairs[3]]
    assert differences.rows[0]["mse"].mean == pytest.approx(np.mean(gaps))
    assert differences.rows[0]["mse"].error == pytest.approx(np.std(gaps, ddof=1) / 2**0.5)

    def refuse(*_: object, **__: object) -> None:
        raise AssertionError("a finished cell was made again")

    monkeypatch.setattr(selection, "fit_cell", refuse)
    monkeypatch.setattr(selection, "picture_cell", refuse)
    before = [table.markdown() for table in tables]
    assert [table.markdown() for table in make_tables(STUDY.run(tmp_path))] == before
    with pytest.raises(CellFileError):
        replace(STUDY, steps=2000).run(tmp_path)


def test_a_missing_package_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(problem, "find_spec", lambda package: None)
    quick = tuple(m for m in LINEAR.methods if m.key in ("default", "abess") or m.preset == LINEAR.pictured)
    results = replace(STUDY, problem=replace(SMALL, methods=quick), seeds=1).run(tmp_path)
    methods = make_tables(results)[1]
    row = next(row for row in methods.rows if row["method"] == "abess")
    assert (row["mae"], row["count"]) == (None, 0)
    assert "abess has no numbers because abess is not installed: pip install abess." in methods.notes


def test_a_chain_that_diverges_is_counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def diverge(*_: object, **__: object) -> None:
        raise FloatingPointError("The chain diverged before step 7.")

    monkeypatch.setattr(problem.SpikeSlabRegressor, "fit", diverge)
    monkeypatch.setattr(problem, "_compiled", {(problem.SpikeSlabRegressor, "sgld")})
    monkeypatch.setattr(selection, "picture_cell", lambda problem, cell, steps: {})
    sgld = tuple(method for method in LINEAR.methods if method.key in ("default", "SGLD 0.1 1"))
    results = replace(STUDY, problem=replace(SMALL, methods=sgld), seeds=1).run(tmp_path)
    assert results.cells.records[Cell("SGLD 0.1 1", 0)] == {"failed": "The chain diverged before step 7."}
    note = "SGLD (v0 = 0.1, σ = 1) diverged on 1 data sets, which are left out."
    assert make_tables(results)[1].notes[-1] == note
