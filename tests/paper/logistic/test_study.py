"""``spikeslab reproduce logistic`` on small data."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
import torch

from spikeslab.paper.logistic import simulate_logistic
from spikeslab.paper.logistic.study import LOGISTIC, _log_loss
from spikeslab.paper.selection import PICTURES, SelectionStudy
from spikeslab.paper.selection_figures import write_study


def test_all_of_it_on_small_data(tmp_path: Path) -> None:
    small = partial(simulate_logistic, rows=150, variables=12, score_rows=1000)
    problem = replace(LOGISTIC, simulate=small)
    results = SelectionStudy(problem, seeds=1, sgld_seeds=1, steps=1000).run(tmp_path)
    tables, files = write_study(results, tmp_path)
    assert {path.name for path in files} == {path.name for path in tmp_path.iterdir()} - {PICTURES}
    paper, methods, _ = tables
    assert [row["paper_mse"] for row in paper.rows[:4]] == [0.108, 0.114, 0.116, 0.113]
    rows = dict(zip((method.key for method in LOGISTIC.methods), methods.rows, strict=True))
    assert rows["oracle"]["seconds"] is None
    best = rows["oracle"]["brier"].mean
    assert 0.05 < best < 0.15
    for key in ("default", "l1"):
        assert best - 0.01 < rows[key]["brier"].mean < best + 0.05
    assert rows["SGLD-SA 0.01 1"]["brier"].mean < 0.25


def test_the_log_loss_of_a_certain_error_is_finite() -> None:
    loss = _log_loss(torch.tensor([1.0, 0.0], dtype=torch.float64), torch.tensor([0, 1]))
    assert loss == pytest.approx(27.6, abs=0.1)
