"""The suite ``scale``: its tables."""

from __future__ import annotations

from spikeslab.bench.scale import disk, operations, parameters, ranks, tensors
from spikeslab.bench.suites import BenchPlan, Findings

MAKERS = {
    "parameters": parameters.parameter_table,
    "operations": operations.operation_table,
    "tensors": tensors.tensor_table,
    "ranks": ranks.rank_table,
    "samples": disk.sample_table,
    "log": disk.log_table,
}


def run(plan: BenchPlan) -> Findings:
    """Measure the cost of a chain against everything that may grow."""
    return Findings({name: make(plan) for name, make in MAKERS.items()})


def count_ticks(plan: BenchPlan) -> int:
    """Return the number of rounds: every size has one measurement, but steps and updates are timed apart."""
    full = parameters.SIZES, parameters.SIZES, tensors.TENSORS, ranks.WORLDS, disk.SAMPLES, disk.LINES
    quick = (
        *(parameters.QUICK_SIZES, parameters.QUICK_SIZES, tensors.QUICK_TENSORS),
        *(ranks.QUICK_WORLDS, disk.QUICK_SAMPLES, disk.QUICK_LINES),
    )
    return plan.repeats * (1 + sum(map(len, quick if plan.quick else full)))
