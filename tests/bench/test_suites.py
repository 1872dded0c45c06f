"""The suites of ``spikeslab bench``: who takes turns, what a ratio is, and what is said of what is missing."""

from __future__ import annotations

from importlib import import_module

import pytest
import torch
from torch import nn

from spikeslab.bench import SUITES, BenchPlan, ensembles, optimizers, scaling, selection, timing
from spikeslab.bench.timing import Times


def test_candidates_take_turns_and_each_begins_a_round():
    order: list[str] = []
    ticks: list[int] = []
    plan = BenchPlan(3, tick=ticks.append)
    timing.measure({name: lambda name=name: order.append(name) for name in "abc"}, plan, seconds=0.0)
    assert order[:3] == ["a", "b", "c"]  # what may compile
    assert "".join(order[3:]) == "abcbcacab"
    assert sum(ticks) == 3


def test_ratios_are_those_of_least_times_and_of_rounds():
    times = Times({"sgd": [1.0, 4.0, 2.0], "ours": [3.0, 4.0, 5.0]})
    assert times.ratio("ours", "sgd") == 3.0
    assert times.median_ratio("ours", "sgd") == 2.5


@pytest.mark.parametrize("power", [1.0, 0.5])
def test_the_slope_is_that_of_the_sizes_without_overhead(power):
    by_size = {size: Times({"ours": [7.0 * size**power]}) for size in scaling.SIZES}
    by_size[10**4] = Times({"ours": [1e9]})
    assert scaling.slope(by_size, "ours") == pytest.approx(power)
    assert scaling.slope({10**4: by_size[10**4], 10**5: by_size[10**5]}, "ours") is None


def test_at_most_four_tensors_for_a_sparse_weight():
    floats = {row["what"]: row["floats"] for row in scaling.memory_table(0).rows}
    assert floats["SGHMC-SA"] == 3.0  # momentum, rho and its smoothed copy
    assert (floats["SGLD"], floats[optimizers.SGD_NAME], floats["torch Adam"]) == (0.0, 1.0, 2.0)


def test_sizes_that_do_not_fit_into_memory_are_left_out_and_named(monkeypatch):
    monkeypatch.setattr(scaling, "available_memory", lambda: scaling.BYTES * 10**5)
    assert scaling._sizes(quick=False) == [10**4, 10**5]
    times = {size: Times({optimizers.SGD_NAME: [1.0]}) for size in (10**4, 10**5)}
    notes = scaling._cost_table(times, [optimizers.SGD_NAME], BenchPlan(1)).notes
    assert notes[1] == "Left out, since memory was short: 1,000,000 and 10,000,000 and 100,000,000 parameters."


def test_the_plain_sgld_has_the_law_of_sgld():
    torch.manual_seed(0)
    weight = nn.Parameter(torch.zeros(100_000))
    weight.grad = torch.ones(100_000)
    optimizers.PlainSGLD([weight], lr=0.5, num_data=100).step()
    assert float(weight.detach().mean()) == pytest.approx(-0.5, abs=0.002)
    assert float(weight.detach().std()) == pytest.approx(0.1, rel=0.02)


def test_a_peer_that_is_missing_is_named(monkeypatch):
    monkeypatch.setattr(optimizers, "is_installed", lambda package: package == "numba")
    monkeypatch.setattr(selection, "is_installed", lambda package: False)
    monkeypatch.setattr(timing, "_time_calls", lambda run, calls: 1.0)
    table = optimizers.run_update(BenchPlan(1)).tables["update"]
    absent = [row for row in table.rows if row["MNIST CNN"] is None]
    assert [row["what"] for row in absent] == ["posteriors sgld", "posteriors sghmc"]
    assert table.notes[-1] == "Not installed where this ran: posteriors sgld, posteriors sghmc."
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


def test_a_turn_of_many_calls_begins_with_one_that_does_not_count(monkeypatch):
    calls: list[str] = []
    clocked: list[int] = []
    monkeypatch.setattr(timing, "_count_calls", lambda run, seconds: 4)
    monkeypatch.setattr(timing, "_time_calls", lambda run, count: clocked.append(count) or 1.0)
    timing.measure({"a": lambda: calls.append("a")}, BenchPlan(3), seconds=0.1)
    assert (len(calls), clocked) == (3, [4, 4, 4])


def test_without_numba_a_table_says_so(monkeypatch):
    monkeypatch.setattr(optimizers, "is_installed", lambda package: False)
    monkeypatch.setattr(timing, "_time_calls", lambda run, calls: 1.0)
    monkeypatch.setattr(scaling, "is_installed", lambda package: package != "numba")
    assert optimizers.run_update(BenchPlan(1)).tables["update"].notes[-1] == timing.UNFUSED
    assert scaling.run(BenchPlan(1, quick=True)).tables["scaling"].notes[-1] == timing.UNFUSED


def test_without_matplotlib_a_table_says_so_and_nothing_measured_is_lost(monkeypatch):
    monkeypatch.setattr(scaling, "is_installed", lambda package: package != "matplotlib")
    monkeypatch.setattr(timing, "_time_calls", lambda run, calls: 1.0)
    findings = scaling.run(BenchPlan(1, quick=True))
    assert not findings.figures
    assert findings.tables["scaling"].notes[-1] == "matplotlib was not installed where this ran: there is no figure."


def test_the_second_core_is_measured_with_the_paper_s_network():
    assert scaling._threaded_sizes(quick=False) == [681_500, 10**7]
    assert scaling._threaded_sizes(quick=True) == [681_500]


def test_predictions_are_measured_at_several_sizes():
    table = ensembles.run_predict(BenchPlan(1, quick=True)).tables["predict"]
    assert [row["rows"] for row in table.rows] == [1, 50, 100, 1000]
    assert all(row[key] > 0.0 for row in table.rows for key in ("loop", "one", "many", "median", "predictive"))


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
