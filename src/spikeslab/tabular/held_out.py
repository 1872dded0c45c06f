"""Scores on rows that were not fitted to: the selection's model beside a lasso, a ridge and the mean."""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING, Any

import numpy as np
from sklearn.base import clone
from sklearn.dummy import DummyClassifier, DummyRegressor
from sklearn.linear_model import LassoCV, LogisticRegressionCV, RidgeCV
from sklearn.model_selection import KFold, StratifiedKFold
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from spikeslab.errors import pluralize
from spikeslab.report.tables import Column, Table
from spikeslab.sklearn import SpikeSlabClassifier

if TYPE_CHECKING:
    import pandas as pd
    from numpy.typing import NDArray

    from spikeslab.sklearn import Estimator

    Floats = NDArray[np.float64]

OWN = "spike and slab"
PARTS = 5  # each is held out once
LARGE = 1_000_000  # cells of a table of which one part alone is held out
FEWEST = 10  # rows of a regression
FIT_SECONDS = 5.0  # for a fit that has not converged


def compare_held_out(estimator: Estimator, X: pd.DataFrame, y: NDArray[Any], seed: int = 0) -> Table | None:
    """Fit the estimator, a lasso, a ridge and the mean to four fifths of the rows, and score them on the others.

    Every fifth is held out in turn, or only the first one if the table is large. The penalties are chosen by
    cross-validation among the rows fitted to.

    Args:
        estimator: Estimator whose parameters are used; it is not changed.
        X: Design matrix.
        y: Responses.
        seed: Seed of the parts.

    Returns:
        A table with a row for each model, the best one first. None if there are too few rows, or of a class, and for
        the paper's methods, whose fits take too long to repeat.
    """
    if estimator.method_.startswith("sgld"):
        return None
    is_classifier = isinstance(estimator, SpikeSlabClassifier)
    least = int(np.unique(y, return_counts=True)[1].min()) if is_classifier else len(y) // 2
    parts = min(PARTS, least)
    if parts < 2 or (not is_classifier and len(y) < FEWEST):
        return None
    own = clone(estimator).set_params(max_time=min(estimator.max_time, FIT_SECONDS), n_jobs=-1, verbose=0)
    folds = (StratifiedKFold if is_classifier else KFold)(parts, shuffle=True, random_state=seed)
    models = {OWN: own, **(_classifiers(min(3, least - 1)) if is_classifier else _regressors())}
    losses: dict[str, list[Floats]] = {name: [] for name in models}
    hits: dict[str, list[Floats]] = {name: [] for name in models}
    for count, (train, test) in enumerate(folds.split(X, y)):
        if count > 0 and X.size > LARGE:
            break
        for name, model in models.items():
            with warnings.catch_warnings():
                warnings.simplefilter(
                    "ignore"
                )  # of penalties at the end of the grid, and of classes that are separable
                fitted = clone(model).fit(X.iloc[train], y[train])
            score = _score_classes if is_classifier else _score_numbers
            loss, hit = score(fitted, X.iloc[test], y[test])
            losses[name].append(loss)
            hits[name].append(hit)
    return _tabulate(
        {name: np.concatenate(found) for name, found in losses.items()},
        {name: np.concatenate(found) for name, found in hits.items()},
        is_classifier,
        y,
    )


def _regressors() -> dict[str, Any]:
    return {
        "lasso": make_pipeline(StandardScaler(), LassoCV()),
        "ridge": make_pipeline(StandardScaler(), RidgeCV(alphas=np.logspace(-2, 5, 29))),
        "mean": DummyRegressor(),
    }


def _classifiers(parts: int) -> dict[str, Any]:
    if parts < 2:  # too few rows of a class to choose a penalty
        return {"class shares": DummyClassifier()}
    options = {"Cs": np.logspace(-2, 1, 7), "cv": parts, "scoring": "neg_log_loss"}
    lasso = LogisticRegressionCV(**options, solver="saga", tol=1e-3, max_iter=300, l1_ratios=(1.0,))
    if getattr(lasso, "penalty", None) == "l2":  # scikit-learn before 1.8
        lasso.set_params(penalty="elasticnet")
    options["Cs"] = np.logspace(-5, 2, 8)
    return {
        "lasso": make_pipeline(StandardScaler(), lasso),
        "ridge": make_pipeline(StandardScaler(), LogisticRegressionCV(**options, max_iter=300)),
        "class shares": DummyClassifier(),
    }


def _score_numbers(model: Any, X: pd.DataFrame, y: NDArray[Any]) -> tuple[Floats, Floats]:
    """Return squared and absolute errors."""
    error = y - np.asarray(model.predict(X), dtype=np.float64)
    return error**2, np.abs(error)


def _score_classes(model: Any, X: pd.DataFrame, y: NDArray[Any]) -> tuple[Floats, Floats]:
    """Return log losses and whether the most probable class is the true one."""
    proba = model.predict_proba(X)
    labels = np.searchsorted(model.classes_, y)
    given = np.maximum(proba[np.arange(len(y)), labels], 1e-15)
    return -np.log(given), (proba.argmax(axis=1) == labels).astype(np.float64)


def _tabulate(losses: dict[str, Floats], hits: dict[str, Floats], is_classifier: bool, y: NDArray[Any]) -> Table:
    best = min(losses, key=lambda name: float(losses[name].mean()))
    rows: list[dict[str, str | float]] = []
    for name in sorted(losses, key=lambda name: float(losses[name].mean())):
        difference = losses[name] - losses[OWN]
        main = float(losses[name].mean()) if is_classifier else float(np.sqrt(losses[name].mean()))
        rows.append({"model": name, "main": main, "other": float(hits[name].mean()), "more": _ratio(difference)})
    columns = [
        Column("model", "Model"),
        Column("main", "Log loss" if is_classifier else "RMSE", ".4g"),
        Column("other", "Accuracy" if is_classifier else "MAE", ".3f" if is_classifier else ".4g"),
        Column("more", "Worse by", "+.1f"),
    ]
    number = losses[OWN].size
    loss = "log loss" if is_classifier else "squared error"
    notes = [
        f"On {pluralize(number, 'row')} of {len(y):,}, each by models fitted to others. Worse by: mean {loss} beyond "
        f"that of {OWN}, in standard errors."
    ]
    if best not in (OWN, "mean", "class shares") and -_ratio(losses[best] - losses[OWN]) > 2.0:
        notes.append(
            f"The {best} predicts these rows better: many variables may matter a little, or correlated ones together. "
            "Then a sparse model is the wrong one for predictions, and the variables above are only a part of them."
        )
    elif best in ("mean", "class shares"):
        notes.append(f"No model predicts better than the {best}: these variables say little about the target.")
    return Table("Held-out rows", columns, rows, notes)


def _ratio(difference: Floats) -> float:
    """Return the mean in units of its standard error; 0 if nothing differs."""
    spread = float(difference.std(ddof=1)) if difference.size > 1 else 0.0
    return float(difference.mean()) / (spread / np.sqrt(difference.size)) if spread > 0.0 else 0.0
