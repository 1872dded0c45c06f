"""Selections: groups of columns, sentences about the chains, and scores."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
from sklearn.metrics import brier_score_loss

from spikeslab.errors import spell
from spikeslab.sklearn import SpikeSlabClassifier, SpikeSlabRegressor
from spikeslab.sklearn._convergence import FitConvergence
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
    ("rhat", "error", "sentence", "reliable"),
    [
        (1.009, 0.01, "The chains agree, and the numbers are reliable (largest R-hat 1.009, of a; largest Monte", True),
        (1.02, 0.01, "agree only roughly", True),
        (1.005, 0.03, "agree only roughly", True),
        (1.108, 0.01, "do not agree yet, and the numbers are not reliable (largest R-hat 1.108, of a", False),
        (1.005, 0.06, "PIP 0.060, of a): n_iter=240 gives better ones", False),
        (float("inf"), 0.25, "do not agree yet, and the numbers are not reliable (largest R-hat inf", False),
        (float("nan"), 0.25, "too few draws to tell", False),
    ],
)
def test_convergence_is_a_sentence(selection, rhat, error, sentence, reliable):
    """One variable that the chains disagree on is enough, however well the monitored scalars agree."""
    scalar = 1.0 if rhat == rhat else rhat
    selection.estimator._convergence = FitConvergence({"sigma": scalar}, np.array([rhat]), np.array([error]))
    selection.estimator._names = lambda: ["a"]
    found, reliability = selection.convergence
    assert sentence in spell(found)
    assert reliability == reliable


def test_the_remedy_of_a_fit_that_ran_out_of_time_is_more_time(selection):
    selection.estimator._convergence = FitConvergence({"sigma": 1.2}, np.array([np.nan]), np.array([np.nan]))
    selection.estimator.set_params(n_iter=None, max_time=10.0)
    assert spell(selection.convergence[0]).endswith("(largest R-hat 1.200, of sigma): max_time=40 gives better ones.")


def test_the_table_names_variables_that_the_chains_disagree_on(selection):
    assert selection.table(5).notes == ()
    selection.coefficients.loc[0, "rhat"] = 1.3
    assert selection.table(5).notes == ("The chains disagree on a: do not rely on these rows.",)


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
