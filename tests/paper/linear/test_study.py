"""``spikeslab reproduce linear`` on small data."""

from __future__ import annotations

from dataclasses import asdict, replace
from functools import partial
from pathlib import Path

import numpy as np
import pytest

from spikeslab.paper import _selection as selection
from spikeslab.paper._grid import Cell, SettingsError
from spikeslab.paper._selection import SelectionPlan, make_tables, run_study
from spikeslab.paper._selection_figures import write_study
from spikeslab.paper._selection_fits import record_latents, selection_scores
from spikeslab.paper.linear import simulate_linear
from spikeslab.paper.linear import study as linear_study
from spikeslab.paper.linear.study import LINEAR, fit_linear
from spikeslab.presets import paper_linear
from spikeslab.sklearn import SGLDOptions

PLAN = SelectionPlan(seeds=2, sgld_seeds=1, steps=1000)


@pytest.fixture(autouse=True)
def _small_data(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(linear_study, "simulate", partial(simulate_linear, rows=60, variables=20))


def test_the_settings_of_the_estimators_are_those_of_the_preset() -> None:
    preset, settings = paper_linear(0.1, 1.0, num_data=100), SGLDOptions(v0=0.1, sigma=1.0)
    shared = asdict(settings)
    assert {name: preset.prior[name] for name in ("v0", "v1", "sigma", "delta", "a", "b", "nu", "lam")} == {
        name: shared[name] for name in ("v0", "v1", "sigma", "delta", "a", "b", "nu", "lam")
    }
    assert preset.prior["kappa"] == (settings.kappa, settings.kappa)
    assert preset.prior["sigma_maximum"] == settings.sigma_maximum == "printed"
    assert (preset.batch_size, preset.posterior["thin"]) == (settings.batch_size, settings.thin)
    scale, offset, power = settings.omega
    size, start, decay = settings.step
    for k in (1, 1000, 60_000):
        assert preset.prior["adapt"].schedule(k) == pytest.approx(min(1.0, scale * (k + offset) ** -power))
        assert preset.sampler["lr"](k) == pytest.approx(100 * size * (k + start) ** -decay)


def test_all_of_it_once_and_nothing_twice(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    steps: dict[str, int] = {}

    def progress(stage: str, count: int) -> None:
        steps[stage] = steps.get(stage, 0) + count

    results = run_study(LINEAR, tmp_path, PLAN, progress)
    assert steps == PLAN.stages(LINEAR)
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
    pairs = [results.cells[Cell(key, s)]["mse"] for key in ("default", "lasso") for s in seeds]
    gaps = [pairs[0] - pairs[2], pairs[1] - pairs[3]]
    assert differences.rows[0]["mse"].mean == pytest.approx(np.mean(gaps))
    assert differences.rows[0]["mse"].error == pytest.approx(np.std(gaps, ddof=1) / 2**0.5)

    def refuse(*_: object, **__: object) -> None:
        raise AssertionError("a finished cell was made again")

    again = replace(LINEAR, fit=refuse, picture=refuse)
    before = [table.markdown() for table in tables]
    assert [table.markdown() for table in make_tables(run_study(again, tmp_path, PLAN))] == before
    with pytest.raises(SettingsError):
        run_study(again, tmp_path, replace(PLAN, steps=2000))


def test_a_missing_package_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(selection, "find_spec", lambda package: None)
    quick = tuple(m for m in LINEAR.methods if m.key in ("default", "abess") or m.setting == LINEAR.pictured)
    results = run_study(replace(LINEAR, methods=quick), tmp_path, replace(PLAN, seeds=1))
    methods = make_tables(results)[1]
    row = next(row for row in methods.rows if row["method"] == "abess")
    assert (row["mae"], row["count"]) == (None, 0)
    assert "abess has no numbers because abess is not installed: pip install abess." in methods.notes


def test_a_chain_that_diverges_is_counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def diverge(*_: object, **__: object) -> None:
        raise FloatingPointError("The chain diverged before step 7.")

    monkeypatch.setattr(linear_study.SpikeSlabRegressor, "fit", diverge)
    monkeypatch.setattr(linear_study.fits, "_compiled", {(linear_study.SpikeSlabRegressor, "sgld")})
    record = fit_linear(Cell("SGLD 0.1 1", 0), steps=1000)
    assert record == {"failed": "The chain diverged before step 7."}
    sgld = tuple(method for method in LINEAR.methods if method.key in ("default", "SGLD 0.1 1"))
    results = run_study(replace(LINEAR, methods=sgld, picture=lambda cell, steps: {}), tmp_path, replace(PLAN, seeds=1))
    note = "SGLD (v0 = 0.1, σ = 1) diverged on 1 data sets, which are left out."
    assert make_tables(results)[1].notes[-1] == note


def test_precision_and_recall() -> None:
    truth = np.array([True, True, False, False])
    assert selection_scores(np.array([True, False, True, False]), truth) == {
        "precision": 0.5,
        "recall": 0.5,
        "exact": 0,
        "selected": 2,
    }
    assert selection_scores(truth, truth)["exact"] == 1
    assert selection_scores(np.zeros(4, dtype=bool), truth)["precision"] == 1.0


def test_latents_start_near_the_start_and_find_the_signals() -> None:
    data = simulate_linear(0, rows=100, variables=20)
    setting = LINEAR.pictured
    x, y = data.x_train.numpy(), data.y_train.numpy()
    record = record_latents(x, y, 0, setting, 3000, 0)
    assert (record["step"][0], record["step"][-1]) == (1, 3000)
    assert record["sigma"][0] == pytest.approx(setting.sigma, abs=0.5)
    assert record["delta"][0] == pytest.approx(0.5, abs=0.1)
    assert min(record["rho"][-1][:2]) > 0.9
    assert all(len(curve) == len(record["step"]) for curve in record.values())
