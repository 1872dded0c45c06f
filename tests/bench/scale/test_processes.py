"""Functions in processes of their own, and their memory."""

from __future__ import annotations

import subprocess
import sys
import time

import pytest

from spikeslab.bench.scale.processes import run_alone, run_ranks

MEGABYTE = 1 << 20


PEAK = """import torch
from spikeslab.bench.scale.processes import PeakMemory
peak = PeakMemory()
torch.ones(64 << 20, dtype=torch.uint8)
found = peak.read()
peak.forget()
print(found, peak.read(), peak.whole())
"""


def test_the_peak_counts_what_was_let_go():
    """In a fresh process: one that has freed memory before takes no more of the system for a tensor."""
    printed = subprocess.run([sys.executable, "-c", PEAK], check=True, capture_output=True, text=True).stdout
    found, after, whole = map(int, printed.split())
    assert 60 * MEGABYTE < found < 80 * MEGABYTE
    assert after < 30 * MEGABYTE
    assert whole > after


def test_a_function_that_fails_in_a_process_is_one_sentence():
    with pytest.raises(RuntimeError, match=r"^A process of the benchmark failed: AttributeError: .*'nothing'\.$"):
        run_alone("processes:nothing")


@pytest.mark.slow
def test_a_rank_that_fails_does_not_leave_the_others_waiting():
    begin = time.monotonic()
    with pytest.raises(RuntimeError, match=r"^A process of the benchmark failed: "):
        run_ranks("ranks:measure_memory", 2, kind="SGHMC", shape=[1, 0, 4, 8], seed=0)
    assert time.monotonic() - begin < 600  # they would wait for half an hour
