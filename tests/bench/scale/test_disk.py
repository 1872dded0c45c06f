"""Runs whose samples and logs are measured."""

from __future__ import annotations

import pytest

from spikeslab.bench import BenchPlan
from spikeslab.bench.scale import disk
from spikeslab.diagnostics.doctor import examine
from spikeslab.diagnostics.run_reader import read_run
from spikeslab.training.run_folder import METRICS_FILE, POSTERIOR


def test_a_lengthened_log_is_one_that_the_doctor_takes(tmp_path):
    folder = tmp_path / "run"
    disk.write_run(folder, seed=0)
    numbers = disk.lengthen_log(folder / METRICS_FILE, 50)
    facts = read_run(folder)
    assert facts.metrics.steps.tolist() == [*range(1, 51)]
    assert facts.metrics.series("loss").values[1] == 1.5
    assert numbers == 15
    assert {finding.about for finding in examine(facts)} >= {"end", "loss", "temperature"}


def test_the_samples_differ_and_are_those_of_the_run(tmp_path):
    folder = tmp_path / "run"
    disk.write_run(folder, seed=0)
    disk.write_samples(folder / POSTERIOR, 3, seed=0)
    facts = read_run(folder)
    assert facts.samples is not None
    assert facts.samples.chains == [3]
    assert disk.predict(str(folder))["seconds"] > 0.0


@pytest.mark.slow
def test_the_memory_of_predictions_and_of_the_doctor_does_not_grow_with_the_samples(tmp_path):
    peaks = {}
    for count in (5, 200):
        folder = tmp_path / f"run-{count}"
        disk.write_run(folder, seed=0)
        disk.write_samples(folder / POSTERIOR, count, seed=0)
        plan = BenchPlan(1)
        peaks[count] = [
            disk._cells(disk._measure(name, folder, plan), "x")["x memory"] for name in ("predict", "diagnose")
        ]
    of_sample = 1.1  # MB: 195 more of them would be 200 MB
    assert peaks[200][0] < peaks[5][0] + 10 * of_sample
    assert peaks[200][1] < peaks[5][1] + 20 * of_sample
