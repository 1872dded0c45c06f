from __future__ import annotations

import pytest
import torch

from spikeslab.paper.linear import simulate_linear
from spikeslab.paper.linear.sampling import METHODS, linear_table, run_linear


@pytest.mark.parametrize("method", METHODS)
def test_a_short_run_reports_every_step_and_is_reproducible(method: str) -> None:
    data = simulate_linear(0, rows=60, variables=20)
    reports: list[int] = []
    result = run_linear(data, method, steps=250, seed=1, progress=reports.append)
    again = run_linear(data, method, steps=250, seed=1)
    assert reports == [100, 100, 50]
    assert result.draws.shape == (200, 20)
    assert torch.equal(result.draws, again.draws)
    assert (result.inclusion is None) == (method == "SGLD")


def test_sa_finds_the_signals_and_sgld_does_not_shrink() -> None:
    data = simulate_linear(1, rows=100, variables=100)
    adaptive, plain = (run_linear(data, method, steps=3000, seed=0) for method in ("SGLD-SA", "SGLD"))
    table = linear_table(data, [adaptive, plain], steps=3000)
    errors = [row["population_mse"] for row in table.rows]
    assert errors[0] < 4.5 < errors[1]
    assert adaptive.inclusion is not None
    assert adaptive.inclusion.topk(2).indices.sort().values.tolist() == [0, 1]
    assert plain.selected is None
