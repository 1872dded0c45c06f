"""Candidates take turns, and a time is a ratio."""

from __future__ import annotations

from spikeslab.bench import BenchPlan, timing
from spikeslab.bench.timing import Times


def test_candidates_take_turns_and_each_begins_a_round():
    order: list[str] = []
    ticks: list[int] = []
    plan = BenchPlan(3, tick=ticks.append)
    timing.measure({name: lambda name=name: order.append(name) for name in "abc"}, plan, seconds=0.0)
    assert order[:3] == ["a", "b", "c"]  # what may compile
    assert "".join(order[3:]) == "abcbcacab"
    assert sum(ticks) == 3


def test_a_turn_of_many_calls_begins_with_one_that_does_not_count(monkeypatch):
    calls: list[str] = []
    clocked: list[int] = []
    monkeypatch.setattr(timing, "_count_calls", lambda run, seconds: 4)
    monkeypatch.setattr(timing, "_time_calls", lambda run, count: clocked.append(count) or 1.0)
    timing.measure({"a": lambda: calls.append("a")}, BenchPlan(3), seconds=0.1)
    assert (len(calls), clocked) == (3, [4, 4, 4])


def test_ratios_are_those_of_least_times_and_of_rounds():
    times = Times({"sgd": [1.0, 4.0, 2.0], "ours": [3.0, 4.0, 5.0]})
    assert times.ratio("ours", "sgd") == 3.0
    assert times.median_ratio("ours", "sgd") == 2.5
