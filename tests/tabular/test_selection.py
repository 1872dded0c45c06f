"""Selections: groups of columns, sentences about the chains, and scores."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
from sklearn.metrics import brier_score_loss

from spikeslab.sklearn import SpikeSlabClassifier, SpikeSlabRegressor
from spikeslab.tabular.design import make_design
from spikeslab.tabular.selection import Selection, SelectionRule, compute_scores
from spikeslab.tabular.table import DataTable
from spikeslab.tabular.target import read_target


@pytest.fixture
def selection(rng):
    frame = pd.DataFrame(rng.standard_normal((60, 2)), columns=["a", "b"])
    frame["colour"] = rng.choice(["red", "green", "blue"], 60)
    frame["y"] = 3.0 * frame["a"] + 0.1 * rng.standard_normal(60)
    table = DataTable("t.csv", frame)
    design, target = make_design(table, "y", one_hot=True), read_target(table, "y")
    model = SpikeSlabRegressor(n_chains=2, n_iter=60, burn_in=60, random_state=0).fit(design.X, target.y)
    return Selection(model, design, target, SelectionRule(fdr=0.1), 0.9)


def test_variables_are_columns_of_the_file(selection):
    assert selection.names.tolist() == ["a", "b", "colour"]
    assert selection.names[selection.selected].tolist() == ["a"]
    assert str(selection.rule) == "expected share of false discoveries at most 0.1"
    levels = selection.coefficients.query("variable == 'colour'")
    assert levels["level"].tolist() == ["blue", "green", "red"]
    assert levels["pip"].nunique() == 1
    assert [row["variable"] for row in selection.table(5).rows] == ["a"]


@pytest.mark.parametrize(
    ("rhat", "ess", "sentence", "reliable"),
    [
        (1.0, 1000.0, "agree, and there are enough draws: the numbers are reliable", True),
        (1.0, 200.0, "enough draws for about two digits", True),
        (1.07, 50.0, "agree only roughly", True),
        (1.5, 50.0, "do not agree yet, and the numbers are not reliable", False),
        (float("nan"), 50.0, "too few draws to tell", False),
    ],
)
def test_convergence_is_a_sentence(selection, rhat, ess, sentence, reliable):
    selection.estimator.rhat_, selection.estimator.ess_ = {"sigma": rhat}, {"sigma": ess}
    selection.coefficients[["rhat", "ess"]] = rhat, ess
    found, reliability = selection.convergence
    assert sentence in found
    assert reliability == reliable


def test_scores(selection):
    X = selection.design.X
    scores = compute_scores(selection.estimator, X, selection.target.y, 0.9)
    assert float(scores["R²"]) > 0.99
    assert float(scores["Share inside the 90 % prediction interval"]) > 0.8
    labels = np.where(X["a"] > 0, "yes", "no")
    model = SpikeSlabClassifier(n_chains=2, n_iter=200, burn_in=200, random_state=0).fit(X, labels)
    scores = compute_scores(model, X, labels, 0.9)
    assert float(scores["Accuracy"]) == pytest.approx((model.predict(X) == labels).mean(), abs=1e-3)
    assert float(scores["Brier score"]) == pytest.approx(
        brier_score_loss(labels, model.predict_proba(X)[:, 1], pos_label="yes"), abs=1e-4
    )
    thirds = np.array(["low", "mid", "top"])[np.digitize(X["a"], [-0.5, 0.5])]
    model = SpikeSlabClassifier(n_chains=2, n_iter=100, burn_in=100, random_state=0).fit(X, thirds)
    scores = compute_scores(model, X, thirds, 0.9)
    truth = np.column_stack([thirds == label for label in model.classes_])
    assert float(scores["Brier score"]) == pytest.approx(
        ((model.predict_proba(X) - truth) ** 2).sum(1).mean(), abs=1e-4
    )
