"""Columns of the numbers of a log."""

from __future__ import annotations

import math
import random
import tracemalloc

import numpy as np
import pytest

from spikeslab.diagnostics.traces import Traces


def test_a_number_that_some_records_lack_keeps_its_steps():
    traces = Traces.of([{"step": 1, "loss": 4}, {"step": 2}, {"step": 3, "loss": None}, {"step": 4, "loss": 2.5}])
    loss = traces.series("loss")
    assert (loss.steps.tolist(), loss.values.tolist()) == ([1, 4], [4.0, 2.5])
    assert len(traces.series("nll")) == len(traces.series("loss", "nll")) == 0


def test_truth_and_text_are_no_numbers():
    assert not len(Traces.of([{"step": 1, "loss": True}, {"step": 2, "loss": "3"}]).series("loss"))


def test_a_name_may_hold_a_number_and_then_a_mapping():
    traces = Traces.of([{"step": 1, "delta": 0.5}, {"step": 2, "delta": {"fc1": 0.25}}, {"step": 3, "delta": [7, 8]}])
    assert traces.series("delta").values.tolist() == [0.5]
    assert {name: each.values.tolist() for name, each in traces.layers("delta").items()} == {
        "fc1": [0.25], "0": [7.0], "1": [8.0],
    }  # fmt: skip


def test_records_that_are_taken_again_replace_those_from_their_step_on():
    rng = random.Random(0)
    records = [{"step": rng.randrange(50), "loss": float(place)} for place in range(200)]
    kept: list[dict] = []
    for record in records:
        while kept and kept[-1]["step"] >= record["step"]:
            kept.pop()
        kept.append(record)
    traces = Traces.of(records)
    assert traces.steps.tolist() == [record["step"] for record in kept]
    assert traces.series("loss").values.tolist() == [record["loss"] for record in kept]


def test_changes_are_the_records_with_another_number():
    values = [None, 1, 1, 2, 2, None, 2, 3, 3]
    records = [{"step": s, "evaluation": {"nll": v, "ece": 0.5} if v else {}} for s, v in enumerate(values)]
    assert Traces.of(records).changes("evaluation").steps.tolist() == [1, 3, 6, 7]
    resumed = Traces.of([*records[:4], {"step": 2, "evaluation": {"nll": 1, "ece": 0.5}}, *records[3:]])
    assert resumed.changes("evaluation").steps.tolist() == [1, 3, 6, 7]


def test_numbers_that_no_float_holds_are_infinite():
    values = Traces.of([{"step": 1, "loss": 10**400}, {"step": 2, "loss": -(10**400)}]).series("loss").values
    np.testing.assert_array_equal(values, [math.inf, -math.inf])


def test_names_without_end_are_refused():
    with pytest.raises(MemoryError):
        Traces.of(({"step": step, f"loss {step}": 1.0} for step in range(10_000)), most_bytes=1e6)


def test_a_number_takes_nine_bytes():
    names = [f"layer {index}" for index in range(20)]
    records = ({"step": step, "delta": dict.fromkeys(names, 0.5)} for step in range(20_000))
    tracemalloc.start()
    traces = Traces.of(records)
    taken, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert len(traces) == 20_000
    assert taken < 9.0 * 20_000 * (len(names) + 2)  # 8 and what an array has to grow; all steps are there twice
