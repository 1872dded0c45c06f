"""Slopes of the cost of variable selection."""

from __future__ import annotations

import pytest

from spikeslab.bench.selection_scaling import _slope


def test_sizes_where_overhead_counts_are_left_out_where_there_are_others():
    assert _slope({100: 9.0, 1000: 10.0, 10_000: 100.0}) == pytest.approx(1.0)
    assert _slope({100: 1.0, 1000: 100.0}) == pytest.approx(2.0)
