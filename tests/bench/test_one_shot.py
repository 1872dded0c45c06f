"""Rivals of pruning without training, and their table."""

from __future__ import annotations

import copy
import itertools

import pytest
import torch
from safetensors.torch import save
from torch import Tensor, nn

from spikeslab.bench import one_shot, one_shot_cost
from spikeslab.bench.one_shot import (
    SOLVERS,
    NetworkScores,
    OneShotResult,
    compare,
    keep_wanda,
    score,
    solve_exact_obs,
    solve_sparsegpt,
)
from spikeslab.bench.suites import BenchPlan, StudyOptions
from spikeslab.compression.sparse_file import load_sparse_into, save_sparse
from spikeslab.functional.patterns import Pattern, keep_largest
from spikeslab.functional.reconstruction import damp, reconstruction_error, refit


@pytest.fixture
def gram() -> Tensor:
    x = torch.randn(80, 8, generator=torch.manual_seed(0)) @ torch.randn(8, 8)
    return x.T @ x


@pytest.fixture
def dense() -> Tensor:
    return torch.randn(3, 8, generator=torch.manual_seed(1))


@pytest.mark.parametrize("solver", [solver for solver in SOLVERS.values() if callable(solver)])
@pytest.mark.parametrize("pattern", [Pattern(12), Pattern(2, group=4)])
def test_every_rival_keeps_the_wanted_number(dense, gram, solver, pattern):
    weights = solver(dense, gram, pattern)
    assert int(weights.ne(0.0).sum()) == 12
    if pattern.group is not None:
        assert weights.view(-1, 4).ne(0.0).sum(1).eq(2).all()


def test_wanda_keeps_the_same_number_in_every_row(dense, gram):
    assert keep_wanda(dense, gram, Pattern(12)).ne(0.0).sum(1).eq(4).all()


def test_obs_of_one_weight_is_the_best_of_all(dense, gram):
    """The lowest cost of all removals of one weight, by refits of every one."""
    damped = damp(gram)

    def change(index: int) -> float:
        support = torch.ones_like(dense, dtype=torch.bool)
        support.view(-1)[index] = False
        return reconstruction_error(refit(dense, damped, support), dense, damped)

    best = min(range(dense.numel()), key=change)
    weights = solve_exact_obs(dense, gram, Pattern(dense.numel() - 1))
    assert weights.view(-1).eq(0.0).nonzero().item() == best


@pytest.mark.parametrize("solver", [solve_sparsegpt, solve_exact_obs])
def test_inputs_that_do_not_overlap_leave_nothing_to_make_up_for(dense, solver):
    weights = solver(dense, torch.eye(8), Pattern(12))
    torch.testing.assert_close(weights, dense * keep_largest(dense, Pattern(12)))


def test_sparsegpt_makes_up_for_a_column_by_those_behind_it(dense, gram):
    """With the zeros that it chose: as each column becomes final, those behind it are refitted by least squares."""
    damped = damp(gram, one_shot.DAMPING)
    weights = solve_sparsegpt(dense, gram, Pattern(12))
    for found, target in zip(weights, dense, strict=True):
        row = target.clone()
        for column in range(8):
            row[column] *= found[column] != 0.0
            before, behind = slice(0, column + 1), slice(column + 1, 8)
            pull = damped[behind, before] @ (target - row)[before]
            row[behind] = target[behind] + torch.linalg.solve(damped[behind, behind], pull)
        torch.testing.assert_close(found, row, atol=1e-4, rtol=1e-4)


def test_the_table_has_a_row_for_each_solver_and_the_dense_network():
    result = OneShotResult(NetworkScores(0.2, 0.3, 0.9), NetworkScores(0.4, 0.5, 0.8), 3.0)
    found = {("resnet20", level, solver): [result] * 2 for level, solver in itertools.product(("0.5", "2:4"), SOLVERS)}
    rows = one_shot.tabulate(found, {"resnet20": result}, BenchPlan(2)).rows
    assert [row["level"] for row in rows] == ["0 %", *["50%"] * 7, *["2:4"] * 7]
    assert rows[1]["accuracy"].mean == pytest.approx(90.0)
    assert (rows[1]["int8"].mean, rows[1]["smaller"]) == (0.4, 3.0)
    assert rows[1]["perplexity"] is None


def test_a_network_in_int8_is_scored_as_its_file_gives_it_back(tmp_path):
    torch.manual_seed(0)
    dense = nn.Linear(200, 4, bias=False)
    sparse = copy.deepcopy(dense)
    with torch.no_grad():
        sparse.weight[:, ::2] = 0.0
    x, y = torch.randn(30, 200), torch.randint(4, (30,))
    logs = one_shot.predict_logs(dense, [(x, y)])
    own, rounded, smaller = score(sparse, dense, logs, [(x, y)])
    assert own == compare(one_shot.predict_logs(sparse, [(x, y)]), logs, [(x, y)])
    save_sparse(sparse, tmp_path / "int8", "int8")
    load_sparse_into(sparse, tmp_path / "int8")
    assert rounded == compare(one_shot.predict_logs(sparse, [(x, y)]), logs, [(x, y)]) != own
    assert smaller == len(save({"weight": dense.weight.detach()})) / (tmp_path / "int8").stat().st_size > 2.0


def test_the_suite_runs(tmp_path, monkeypatch):
    monkeypatch.setattr(one_shot, "LEVELS", (0.5, "2:4"))
    monkeypatch.setattr(one_shot, "SOLVERS", {name: SOLVERS[name] for name in ("Wanda", "SparseGPT")})
    monkeypatch.setattr(one_shot, "ONE_SHOT_NETWORKS", ("encoder", "lstm"))
    plan = BenchPlan(1, quick=True, study=StudyOptions(folder=tmp_path))
    (table,) = one_shot.run(plan).tables.values()
    assert [row["solver"] for row in table.rows] == ["dense", *["Wanda", "SparseGPT"] * 2] * 2
    assert one_shot.count_ticks(plan) == 8


def test_only_places_with_a_target_count():
    logs = torch.randn(2, 5, 3).log_softmax(1)
    y = torch.tensor([[1, -100, 2], [-100, -100, 4]])
    result = compare([logs], [logs], [(y, y)])
    assert result.nll == pytest.approx(-float(logs[0, 1, 0] + logs[0, 2, 2] + logs[1, 4, 2]) / 3, rel=1e-6)
    assert result.divergence == 0.0


def test_the_suite_of_times_runs():
    plan = BenchPlan(2, quick=True)
    (table,) = one_shot_cost.run(plan).tables.values()
    assert [row["solver"] for row in table.rows] == ["SparseGPT", "fast", "refit", "exchange"] * 2
    errors = [row["error"] for row in table.rows]
    assert all(errors[k] > errors[k + 1] > errors[k + 2] >= errors[k + 3] for k in (0, 4))
    assert one_shot_cost.count_ticks(plan) == 16


def test_networks_may_be_chosen():
    plan = BenchPlan(1, study=StudyOptions(networks=("transformer", "lenet")))
    assert one_shot.choose_networks(plan) == ["transformer"]
    with pytest.raises(ValueError, match=r"networks must be one of 'resnet20', 'transformer', 'encoder', 'lstm'"):
        one_shot.choose_networks(BenchPlan(1, study=StudyOptions(networks=("mlp",))))
