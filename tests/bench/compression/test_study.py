"""The whole study on tiny networks: cells, resume, refusals, missing data."""

from __future__ import annotations

import json
import pickle
from dataclasses import replace

import pytest

from spikeslab.bench import BenchPlan
from spikeslab.bench.compression import study
from spikeslab.bench.compression.grid import CellKey, count_cells
from spikeslab.bench.compression.networks import STUDY_NETWORKS
from spikeslab.bench.compression.results import rows_file
from spikeslab.bench.compression.rivals import RUNNERS
from spikeslab.bench.suites import StudyOptions
from spikeslab.errors import ArgumentValueError, SpikeSlabWarning
from spikeslab.paper.data_files import DataError
from spikeslab.paper.grid import CellFileError
from spikeslab.states import read_tensors_file

METHODS = ("spikeslab", "l2", "torch-prune", "torch-prune-tuned")


def plan_of(folder, **options) -> BenchPlan:
    given = {"networks": ("lenet", "mlp"), "methods": METHODS, "sparsities": (0.5,), **options}
    return BenchPlan(2, study=StudyOptions(folder=folder, command="spikeslab bench ...", **given))


def rows_of(findings) -> dict:
    return {name: table.rows for name, table in findings.tables.items()}


def test_every_cell_is_run_once_and_a_resumed_study_has_the_same_tables(tmp_path, monkeypatch):
    ticks: list[int] = []
    plan = replace(plan_of(tmp_path), tick=ticks.append)
    first = study.run(plan)
    assert sum(ticks) == count_cells(plan)
    lines = (tmp_path / "cells.jsonl").read_text().splitlines()
    assert len(lines) == len({(json.loads(line).get("method"), json.loads(line).get("seed")) for line in lines})
    monkeypatch.setattr(study, "run_method", None)  # nothing is run again
    again = study.run(plan)
    assert rows_of(again) == rows_of(first)
    assert (tmp_path / "cells.jsonl").read_text().splitlines() == lines
    assert first.commands == "spikeslab bench ..."
    methods = {row["method"] for row in first.tables["compression"].rows}
    assert methods == {"dense", "spikeslab", "spikeslab, average", "l2", "torch-prune", "torch-prune-tuned"}
    assert len(first.figures["compression"].axes) == 2


def test_a_study_that_was_stopped_ends_as_one_that_was_not(tmp_path, monkeypatch):
    whole = study.run(plan_of(tmp_path / "whole"))
    run_method, calls = study.run_method, []

    def stop(method, task):
        calls.append(method)
        if len(calls) == 4:
            raise KeyboardInterrupt
        return run_method(method, task)

    monkeypatch.setattr(study, "run_method", stop)
    with pytest.raises(KeyboardInterrupt):
        study.run(plan_of(tmp_path / "stopped"))
    resumed = study.run(plan_of(tmp_path / "stopped"))
    for name, rows in rows_of(whole).items():
        timeless = [[{**row, "seconds": None} for row in each] for each in (rows, rows_of(resumed)[name])]
        assert timeless[0] == timeless[1]


def test_a_cell_records_zeros_settings_and_the_score_of_every_row(tmp_path):
    study.run(plan_of(tmp_path, networks=("lenet",), methods=("spikeslab", "l2")))
    file = study.load_cells(tmp_path, quick=False)
    key = CellKey("lenet", 0.5, "spikeslab")
    record = file.records[key.cell(1)]
    assert record["zeros"] == record["target"] == 193
    assert record["settings"]["method"] == "a-sghmc-sa"
    assert record["samples"] > 1
    rows = read_tensors_file(rows_file(tmp_path, key, 1), DataError)
    assert set(rows) == {f"{kind}.{name}" for kind in ("single", "average") for name in ("correct", "log_prob")}
    for kind in ("single", "average"):
        assert float(rows[f"{kind}.correct"].double().mean()) == pytest.approx(record[kind]["accuracy"])
        assert -float(rows[f"{kind}.log_prob"].double().mean()) == pytest.approx(record[kind]["nll"], abs=1e-3)
        assert 0.0 <= record[kind]["ece"] <= 1.0
    assert "average" not in file.records[CellKey("lenet", 0.5, "l2").cell(1)]


def test_two_commands_fill_one_folder(tmp_path):
    study.run(plan_of(tmp_path, networks=("lenet",), methods=("spikeslab",)))
    plan = plan_of(tmp_path, networks=("lenet",), methods=("l2",))
    found = study.run(replace(plan, repeats=1, study=replace(plan.study, command="spikeslab bench --methods l2")))
    (difference,) = found.tables["compression-differences"].rows
    assert (difference["alternative"], difference["seeds"]) == ("l2", 1)
    assert found.commands == "spikeslab bench ...\nspikeslab bench --methods l2"


def test_what_is_refused_is_said_counts_as_behind_and_is_tried_again(tmp_path, monkeypatch):
    def refuse(task):
        raise ArgumentValueError("sparsity", "must be at most 0.4", task.sparsity)

    plan = plan_of(tmp_path, networks=("lenet",), methods=("spikeslab", "torch-prune"))
    with monkeypatch.context() as patch:
        patch.setitem(RUNNERS, "spikeslab", refuse)
        found = study.run(plan)
    reason = "sparsity must be at most 0.4, but got 0.5."
    expected = f"Not run: lenet 0.5 spikeslab (seed 0), lenet 0.5 spikeslab (seed 1): {reason}"
    assert expected in found.tables["compression"].notes
    every = found.tables["compression-wins"].rows[0]
    assert (every["cells"], every["ahead"], every["behind"]) == (1, 0, 1)
    again = study.run(plan)
    assert not any("Not run" in note for note in again.tables["compression"].notes)
    rows = {row["method"]: row for row in again.tables["compression"].rows}
    assert rows["spikeslab"]["seeds"] == 2


def test_networks_without_data_are_left_out_with_a_sentence(tmp_path, monkeypatch):
    def missing(data_dir, seed):
        raise DataError("data_dir must hold the table, but it does not.")

    monkeypatch.setitem(STUDY_NETWORKS, "mlp", replace(STUDY_NETWORKS["mlp"], load=missing))
    sentence = "tiny regression is left out: data_dir must hold the table, but it does not."
    with pytest.warns(SpikeSlabWarning, match=sentence):
        found = study.run(plan_of(tmp_path, methods=("l2",)))
    assert sentence in found.tables["compression"].notes
    assert {row["network"] for row in found.tables["compression"].rows} == {"tiny classifier"}
    with pytest.raises(DataError, match="must hold the table"):
        study.run(plan_of(tmp_path, networks=("mlp",)))


def test_a_quick_study_and_a_real_one_do_not_mix(tmp_path):
    study.run(plan_of(tmp_path, networks=("lenet",), methods=("l2",)))
    with pytest.raises(CellFileError, match="was made with quick 0 instead of quick 1"):
        study.load_cells(tmp_path, quick=True)


def test_the_work_of_a_cell_can_be_sent_to_a_worker(tmp_path):
    work = study.CellWork(tmp_path, None, True, "spikeslab bench ...")
    assert pickle.loads(pickle.dumps(work)) == work
