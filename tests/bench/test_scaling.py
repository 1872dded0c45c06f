"""Cost against size and threads: slopes, memory, and notes on what was left out."""

from __future__ import annotations

import pytest

from spikeslab.bench import BenchPlan, optimizers, scaling, timing
from spikeslab.bench.timing import Times


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


def test_without_numba_a_table_says_so(monkeypatch):
    monkeypatch.setattr(timing, "_time_calls", lambda run, calls: 1.0)
    monkeypatch.setattr(scaling, "is_installed", lambda package: package != "numba")
    assert scaling.run(BenchPlan(1, quick=True)).tables["scaling"].notes[-1] == timing.UNFUSED


def test_without_matplotlib_a_table_says_so_and_nothing_measured_is_lost(monkeypatch):
    monkeypatch.setattr(scaling, "is_installed", lambda package: package != "matplotlib")
    monkeypatch.setattr(timing, "_time_calls", lambda run, calls: 1.0)
    findings = scaling.run(BenchPlan(1, quick=True))
    assert not findings.figures
    assert findings.tables["scaling"].notes[-1] == "matplotlib was not installed where this ran: there is no figure."


def test_the_second_core_is_measured_with_the_paper_s_network():
    assert scaling._thread_sizes(quick=False) == [681_500, 10**7]
    assert scaling._thread_sizes(quick=True) == [681_500]
