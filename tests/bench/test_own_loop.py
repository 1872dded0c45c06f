"""The loop of the README as a suite."""

from __future__ import annotations

import pytest

from spikeslab.bench import own_loop
from spikeslab.bench.own_loop import DENSE, GMP, OURS, LoopResult


def test_the_difference_is_of_the_average_from_the_last_network_of_the_pruner_alone() -> None:
    def results(*accuracies: float) -> list[LoopResult]:
        return [LoopResult({"accuracy": a}, {"accuracy": a + 0.01, "nll": 0.5}) for a in accuracies]

    found = {("lenet", OURS): results(0.8, 0.9), ("lenet", GMP): results(0.7, 0.7), ("lenet", DENSE): results(0.9, 0.9)}
    rows = own_loop.tabulate(found, own_loop.BenchPlan(2)).rows
    assert rows[0]["difference"].mean == pytest.approx(16.0)
    assert rows[0]["difference"].error == pytest.approx(5.0)
    assert [row["difference"] for row in rows[1:]] == [None, None]
