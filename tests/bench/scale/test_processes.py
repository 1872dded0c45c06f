"""Functions in processes of their own, and their memory."""

from __future__ import annotations

import time

import pytest
import torch

from spikeslab.bench.scale.processes import PeakMemory, run_alone, run_ranks

MEGABYTE = 1 << 20


def test_the_peak_counts_what_was_let_go():
    peak = PeakMemory()
    torch.ones(64 * MEGABYTE, dtype=torch.uint8)
    found = peak.read()
    assert 60 * MEGABYTE < found < 80 * MEGABYTE
    peak.forget()
    assert peak.read() < 30 * MEGABYTE
    assert peak.whole() > peak.read()


def test_a_function_that_fails_in_a_process_is_one_sentence():
    with pytest.raises(RuntimeError, match=r"^A process of the benchmark failed: AttributeError: .*'nothing'\.$"):
        run_alone("processes:nothing")


@pytest.mark.slow
def test_a_rank_that_fails_does_not_leave_the_others_waiting():
    begin = time.monotonic()
    with pytest.raises(RuntimeError, match=r"^A process of the benchmark failed: "):
        run_ranks("ranks:measure_memory", 2, kind="SGHMC", shape=[1, 0, 4, 8], seed=0)
    assert time.monotonic() - begin < 600  # they would wait for half an hour
