"""The plain SGLD of the comparisons, and notes on packages that are missing."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from spikeslab.bench import BenchPlan, optimizers, timing


def test_the_plain_sgld_has_the_law_of_sgld():
    torch.manual_seed(0)
    weight = nn.Parameter(torch.zeros(100_000))
    weight.grad = torch.ones(100_000)
    optimizers.PlainSGLD([weight], lr=0.5, num_data=100).step()
    assert float(weight.detach().mean()) == pytest.approx(-0.5, abs=0.002)
    assert float(weight.detach().std()) == pytest.approx(0.1, rel=0.02)


def test_a_peer_that_is_missing_is_named(monkeypatch):
    monkeypatch.setattr(optimizers, "is_installed", lambda package: package == "numba")
    monkeypatch.setattr(timing, "_time_calls", lambda run, calls: 1.0)
    table = optimizers.run_update(BenchPlan(1)).tables["update"]
    absent = [row for row in table.rows if row["MNIST CNN"] is None]
    assert [row["what"] for row in absent] == ["posteriors sgld", "posteriors sghmc"]
    assert table.notes[-1] == "Not installed where this ran: posteriors sgld, posteriors sghmc."


def test_without_numba_a_table_says_so(monkeypatch):
    monkeypatch.setattr(optimizers, "is_installed", lambda package: False)
    monkeypatch.setattr(timing, "_time_calls", lambda run, calls: 1.0)
    assert optimizers.run_update(BenchPlan(1)).tables["update"].notes[-1] == timing.UNFUSED
