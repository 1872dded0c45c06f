"""Counted operations of an update."""

from __future__ import annotations

import torch

from spikeslab.bench.optimizers import SGD_NAME
from spikeslab.bench.scale.operations import SIZE, Operations, count_operations


def test_what_is_read_and_written_counts_and_views_do_not():
    a, b = torch.ones(100), torch.ones(100)
    with Operations() as operations:
        a.view(10, 10).add_(b.view(10, 10))  # 400 bytes read twice, and written
        torch._foreach_mul_([a, b], 2.0)  # each read and written
        torch.empty(100)
    assert (operations.calls, operations.moved) == (2, 1200 + 1600)


def test_torch_s_sgd_reads_and_writes_eight_numbers_for_a_weight():
    # The momentum is scaled, the gradient added to it, and it to the weight.
    counted = count_operations(SGD_NAME, seed=0)
    assert (counted.calls, counted.moved / SIZE) == (3, 4.0 * (2 + 3 + 3))


def test_the_prior_costs_what_its_equations_say_beyond_the_noise():
    plain, adaptive = (count_operations(kind, seed=0).moved / SIZE for kind in ("SGHMC", "SGHMC-SA"))
    assert 1000 < plain < 1300
    assert 100 < adaptive - plain < 200
