"""All suites of ``spikeslab bench``."""

from __future__ import annotations

from importlib import import_module

import pytest

from spikeslab.bench import SUITES, BenchPlan


@pytest.mark.slow
@pytest.mark.parametrize("suite", SUITES)
def test_every_suite_runs_and_ticks_as_often_as_it_says(suite, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)  # long suites keep finished work under out/
    ticks: list[int] = []
    plan = BenchPlan(2, quick=True, tick=ticks.append)
    findings = SUITES[suite].run(plan)
    assert sum(ticks) >= SUITES[suite].blocks * plan.repeats
    assert tuple(findings.tables) == SUITES[suite].tables
    assert tuple(findings.figures) == SUITES[suite].figures
    assert all(table.rows for table in findings.tables.values())


def test_the_functions_of_all_suites_exist():
    for suite in SUITES.values():
        module, _, function = suite.function.partition(":")
        assert callable(getattr(import_module(f"spikeslab.bench.{module}"), function))
