"""Costs that users feel: ratios of medians, and costs of processes."""

from __future__ import annotations

import pytest

from spikeslab.bench import BenchPlan, cost
from spikeslab.bench.cost import Cost


def test_a_ratio_is_that_of_the_medians():
    costs = {"ours": [Cost(3.0, 9.0), Cost(1.0, 8.0), Cost(90.0, 1.0)], "base": [Cost(2.0, 4.0)] * 3}
    assert cost._ratios(costs) == (1.5, 2.0)


def test_the_first_turn_is_not_counted_and_the_costs_of_a_process_are_its_own():
    calls: list[str] = []

    def process() -> Cost:
        calls.append("process")
        return Cost(float(len(calls)), 0.0, 7.0)

    found = cost._compare({"process": process, "call": lambda: None}, BenchPlan(2))
    assert [each.cpu for each in found["process"]] == [2.0, 3.0]
    assert len(found["call"]) == 2


def test_the_network_has_the_size_of_the_name():
    assert sum(parameter.numel() for parameter in cost.build_resnet18().parameters()) == 11_173_962


@pytest.mark.parametrize(("module", "torch"), [("json", "False"), ("torch", "True")])
def test_a_process_has_a_cost_and_says_what_it_imported(module: str, torch: str):
    code = f"import sys, {module}; print('torch' in sys.modules, file=sys.stderr)"
    found, errors = cost._run_process(["-c", code])
    assert errors.strip() == torch
    assert found.cpu > 0.0


def test_the_memory_of_a_process_is_not_that_of_its_parent():
    large = "import subprocess, sys; keep = bytearray(10**9); "
    small = "from spikeslab.bench.cost import print_peak_memory; print_peak_memory()"
    _, errors = cost._run_process(["-c", f"{large}subprocess.run([sys.executable, '-c', {small!r}])"])
    assert 2**20 < int(errors) < 10**9
