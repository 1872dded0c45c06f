"""Peers of the estimators in a simulation study: functions from a table to coefficients.

The one-standard-error rule takes the strongest penalty whose cross-validated loss is within one standard error of the
best; the refit then estimates the selected variables without a penalty.
"""

from __future__ import annotations

from importlib import import_module
from inspect import signature
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from sklearn.linear_model import Lasso, LassoCV, LinearRegression, LogisticRegression
from sklearn.model_selection import StratifiedKFold
from sklearn.svm import l1_min_c

Array = NDArray[np.floating]

FOLDS = 5
# From scikit-learn 1.8 on the penalty is a number; before, it is a word.
_NUMBER = signature(LogisticRegression).parameters["penalty"].default == "deprecated"
_L1: dict[str, Any] = {"l1_ratio": 1.0} if _NUMBER else {"penalty": "l1"}


class Coefficients(NamedTuple):
    """Linear predictor ``x @ coef_ + intercept_``."""

    coef_: NDArray[np.float64]
    intercept_: float


def least_squares(x: Array, y: Array, columns: NDArray[np.intp]) -> Coefficients:
    """Fit ordinary least squares on some columns; the mean without any."""
    return _fit_columns(LinearRegression(), x, y, columns, float(y.mean()))


def lasso_cv(x: Array, y: Array) -> Coefficients:
    """Fit scikit-learn's ``LassoCV`` with its defaults: the lasso with the best cross-validated penalty."""
    model = LassoCV(cv=FOLDS).fit(x, y)
    return Coefficients(model.coef_.astype(np.float64), float(model.intercept_))


def lasso_refit(x: Array, y: Array) -> Coefficients:
    """Select by the lasso with the one-standard-error rule, then fit least squares."""
    model = LassoCV(cv=FOLDS).fit(x, y)
    penalty = model.alphas_[_one_standard_error(model.mse_path_)]  # from the strongest on
    return least_squares(x, y, np.flatnonzero(Lasso(alpha=penalty).fit(x, y).coef_))


def best_subset(x: Array, y: Array, kind: str = "LinearRegression") -> Coefficients:
    """Fit abess with its defaults: the best subset by the extended Bayesian information criterion."""
    model = getattr(import_module("abess"), kind)()
    return _fit_columns(model, x, y.astype(np.float64), np.arange(x.shape[1]), 0.0)


def logistic_refit(x: Array, y: Array, columns: NDArray[np.intp]) -> Coefficients:
    """Fit logistic regression on some columns, with a penalty that only keeps separable data finite."""
    level = float(np.log(y.mean() / (1.0 - y.mean())))
    return _fit_columns(LogisticRegression(C=1e6, max_iter=10_000), x, y, columns, level)


def l1_logistic_cv(x: Array, y: Array) -> Coefficients:
    """Fit L1 logistic regression with the penalty of the best cross-validated log loss."""
    strengths, losses = _l1_path(x, y)
    return _l1_logistic(x, y, strengths[int(losses.mean(axis=1).argmin())])


def l1_logistic_refit(x: Array, y: Array) -> Coefficients:
    """Select by L1 logistic regression with the one-standard-error rule, then refit without a penalty."""
    strengths, losses = _l1_path(x, y)
    selected = _l1_logistic(x, y, strengths[_one_standard_error(losses)])
    return logistic_refit(x, y, np.flatnonzero(selected.coef_))


def _one_standard_error(losses: NDArray[np.float64]) -> int:
    """Return the first penalty, strongest first, within a standard error of the best; losses are (penalties, folds)."""
    means = losses.mean(axis=1)
    best = int(means.argmin())
    error = losses[best].std(ddof=1) / np.sqrt(losses.shape[1])
    return int(np.flatnonzero(means <= means[best] + error)[0])


def _l1_path(x: Array, y: Array) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return inverse penalties, from the one that selects nothing on, and the log loss of each in each fold."""
    strengths = l1_min_c(x, y, loss="log") * np.logspace(0.05, 2.0, 15)
    losses = np.empty((len(strengths), FOLDS))
    for fold, (train, test) in enumerate(StratifiedKFold(FOLDS).split(x, y)):
        for index, strength in enumerate(strengths):
            fit = _l1_logistic(x[train], y[train], strength)
            logits = x[test] @ fit.coef_ + fit.intercept_
            losses[index, fold] = np.logaddexp(0.0, np.where(y[test] == 1, -logits, logits)).mean()
    return strengths, losses


def _l1_logistic(x: Array, y: Array, strength: float) -> Coefficients:
    # liblinear penalises the intercept; a constant column of 10 leaves it a hundredth of the penalty's curvature.
    model = LogisticRegression(C=strength, solver="liblinear", intercept_scaling=10.0, random_state=0, **_L1).fit(x, y)
    return Coefficients(model.coef_[0].astype(np.float64), float(model.intercept_[0]))


def _fit_columns(model: Any, x: Array, y: Array, columns: NDArray[np.intp], level: float) -> Coefficients:
    """Fit a model to some columns; without any the intercept is ``level``."""
    coef = np.zeros(x.shape[1])
    if columns.size:
        model.fit(x[:, columns].astype(np.float64), y)
        coef[columns], level = np.ravel(model.coef_), float(np.ravel(model.intercept_)[0])
    return Coefficients(coef, level)
