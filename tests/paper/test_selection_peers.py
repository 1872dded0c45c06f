"""The other methods find strong signals, and the refit has no shrinkage."""

from __future__ import annotations

import numpy as np
import pytest

from spikeslab.paper import _selection_peers as peers

RNG = np.random.default_rng(0)
X = RNG.standard_normal((200, 40)).astype(np.float32)
Y = (3.0 * X[:, 3] - 2.0 * X[:, 7] + 1.0 + 0.5 * RNG.standard_normal(200)).astype(np.float32)
LABELS = (RNG.random(200) < 1.0 / (1.0 + np.exp(-3.0 * X[:, 3] - 1.0))).astype(np.int64)


def skip_without_abess(name: str) -> None:
    if name == "best_subset":
        pytest.importorskip("abess")


@pytest.mark.parametrize("name", ["lasso_cv", "lasso_refit", "best_subset"])
def test_linear_methods(name: str) -> None:
    skip_without_abess(name)
    coef, intercept = getattr(peers, name)(X, Y)
    assert coef[[3, 7]] == pytest.approx([3.0, -2.0], abs=0.15)
    assert intercept == pytest.approx(1.0, abs=0.15)


def test_the_refit_is_least_squares_on_the_selected_columns() -> None:
    coef, intercept = peers.lasso_refit(X, Y)
    columns = np.flatnonzero(coef)
    design = np.column_stack([np.ones(200), X[:, columns]]).astype(np.float64)
    assert [intercept, *coef[columns]] == pytest.approx(np.linalg.lstsq(design, Y.astype(np.float64))[0], abs=1e-5)
    assert len(columns) < np.count_nonzero(peers.lasso_cv(X, Y).coef_)


@pytest.mark.parametrize("name", ["l1_logistic_cv", "l1_logistic_refit", "best_subset"])
def test_logistic_methods(name: str) -> None:
    skip_without_abess(name)
    options = {"kind": "LogisticRegression"} if name == "best_subset" else {}
    coef, intercept = getattr(peers, name)(X, LABELS, **options)
    assert np.abs(coef).argmax() == 3
    assert 1.0 < coef[3] < 5.0
    assert 0.2 < intercept < 2.0


def test_no_columns() -> None:
    nothing = np.array([], dtype=np.intp)
    assert peers.least_squares(X, Y, nothing).intercept_ == pytest.approx(Y.mean())
    probability = 1.0 / (1.0 + np.exp(-peers.logistic_refit(X, LABELS, nothing).intercept_))
    assert probability == pytest.approx(LABELS.mean())


def test_one_standard_error_takes_the_strongest_penalty_near_the_best() -> None:
    losses = np.array([[9.0, 9.0, 9.0], [1.1, 1.2, 1.3], [1.0, 1.1, 1.6], [2.0, 2.0, 2.0]])
    assert peers._one_standard_error(losses) == 1
