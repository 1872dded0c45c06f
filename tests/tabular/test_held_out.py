"""Scores on held-out rows: sparse truths, dense truths, and tables that are too small."""

import numpy as np
import pandas as pd
import pytest

from spikeslab.sklearn import SpikeSlabClassifier, SpikeSlabRegressor
from spikeslab.tabular import held_out
from spikeslab.tabular.held_out import OWN, compare_held_out


def _fit(X, y, cls=SpikeSlabRegressor, **kwargs):
    return cls(n_chains=1, n_iter=150, burn_in=100, random_state=0, **kwargs).fit(X, y)


def _by_model(table):
    return {row["model"]: row for row in table.rows}


def test_a_sparse_truth_is_predicted_best_by_the_sparse_model(rng):
    X = pd.DataFrame(rng.standard_normal((100, 60)))
    X.columns = X.columns.astype(str)
    y = 2.0 * X["3"].to_numpy() + rng.standard_normal(100)
    table = compare_held_out(_fit(X, y), X, y)
    rows = _by_model(table)
    assert table.rows[0]["model"] == OWN
    assert set(rows) == {OWN, "lasso", "ridge", "mean"}
    assert rows[OWN]["main"] == pytest.approx(1.0, abs=0.2)
    assert rows["mean"]["main"] == pytest.approx(y.std(), rel=0.05)
    assert rows["mean"]["more"] > 3.0
    assert rows[OWN]["more"] == 0.0
    assert table.notes == (
        "On 100 rows of 100, each by models fitted to others. Worse by: mean squared error beyond that of spike and "
        "slab, in standard errors.",
    )


def test_a_dense_truth_is_said_to_be_dense(rng):
    X = pd.DataFrame(rng.standard_normal((200, 60)))
    X.columns = X.columns.astype(str)
    y = 0.15 * X.to_numpy().sum(axis=1) + rng.standard_normal(200)
    table = compare_held_out(_fit(X, y), X, y)
    assert table.rows[0]["model"] == "ridge"
    assert "The ridge predicts these rows better: many variables may matter a little" in table.notes[1]


def test_noise_is_predicted_best_by_its_mean(rng):
    X = pd.DataFrame(rng.standard_normal((60, 5)), columns=list("abcde"))
    y = rng.standard_normal(60)
    model = _fit(X, y)
    before = model.get_params()
    table = compare_held_out(model, X, y)
    assert float(np.ptp([row["main"] for row in table.rows])) < 0.2
    assert model.get_params() == before


@pytest.mark.parametrize("classes", [2, 3])
def test_classes_have_log_losses(classes, rng):
    X = pd.DataFrame(rng.standard_normal((90, 3)), columns=list("abc"))
    y = np.array(list("xyz"))[np.digitize(X["a"] + 0.3 * rng.standard_normal(90), [0.0, 0.8][: classes - 1])]
    rows = _by_model(compare_held_out(_fit(X, y, SpikeSlabClassifier), X, y))
    shares = np.unique(y, return_counts=True)[1] / 90
    assert rows["class shares"]["main"] == pytest.approx(-(shares * np.log(shares)).sum(), rel=0.02)
    assert rows[OWN]["main"] < 0.6 * rows["class shares"]["main"]
    assert rows["lasso"]["main"] < rows["class shares"]["main"]
    assert rows[OWN]["other"] > rows["class shares"]["other"]


def test_a_large_table_holds_out_one_part(rng, monkeypatch):
    monkeypatch.setattr(held_out, "LARGE", 100)
    X = pd.DataFrame(rng.standard_normal((50, 3)), columns=list("abc"))
    table = compare_held_out(_fit(X, X["a"]), X, X["a"].to_numpy())
    assert table.notes[0].startswith("On 10 rows of 50, each by models fitted to others.")


def test_tables_that_are_too_small_and_the_papers_methods_have_none(rng):
    X = pd.DataFrame(rng.standard_normal((9, 2)), columns=list("ab"))
    assert compare_held_out(_fit(X, X["a"]), X, X["a"].to_numpy()) is None
    y = np.array(["u"] * 8 + ["v"])
    assert compare_held_out(_fit(X, y, SpikeSlabClassifier), X, y) is None
    X = pd.DataFrame(rng.standard_normal((40, 2)), columns=list("ab"))
    model = _fit(X, X["a"], method="sgld-sa")
    assert compare_held_out(model, X, X["a"].to_numpy()) is None
