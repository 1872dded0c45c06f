from __future__ import annotations

from itertools import islice

import pytest
import torch

from spikeslab.paper.demo.linear import METHODS, linear_table, minibatches, run_linear
from spikeslab.paper.linear import simulate_linear


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


def test_an_epoch_holds_every_row_once() -> None:
    epoch = torch.cat(list(islice(minibatches(100, 50, seed=0), 2)))
    assert epoch.sort().values.tolist() == list(range(100))


def test_partial_batches_are_dropped_and_small_data_are_one_batch() -> None:
    assert {len(batch) for batch in islice(minibatches(10, 4, seed=0), 20)} == {4}
    assert len(next(minibatches(3, 50, seed=0))) == 3


def test_the_seed_decides() -> None:
    first, again, other = (next(minibatches(100, 50, seed)) for seed in (1, 1, 2))
    assert torch.equal(first, again)
    assert not torch.equal(first, other)


def test_bad_size() -> None:
    with pytest.raises(ValueError, match=r"^batch_size must be an integer >= 1, but got 0\.$"):
        next(minibatches(10, 0, seed=0))
