"""Other people's methods of variable selection, each as a function from a table to coefficients.

The one-standard-error rule takes the strongest penalty whose cross-validated loss is within one standard error of the
best, and the refit then estimates what was selected without a penalty.
"""

from __future__ import annotations

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
_L1: dict[str, Any] = (
    {"l1_ratio": 1.0}
    if signature(LogisticRegression).parameters["penalty"].default == "deprecated"
    else {"penalty": "l1"}
)


class Coefficients(NamedTuple):
    """A linear predictor: ``x @ coef + intercept``."""

    coef: NDArray[np.float64]
    intercept: float


def least_squares(x: Array, y: Array, columns: NDArray[np.intp]) -> Coefficients:
    """Ordinary least squares on some columns; the mean where there are none."""
    coef = np.zeros(x.shape[1])
    if not columns.size:
        return Coefficients(coef, float(y.mean()))
    model = LinearRegression().fit(x[:, columns].astype(np.float64), y)
    coef[columns] = model.coef_
    return Coefficients(coef, float(model.intercept_))


def lasso_cv(x: Array, y: Array) -> Coefficients:
    """The lasso with the penalty that cross-validation likes best: scikit-learn's ``LassoCV`` as it comes."""
    model = LassoCV(cv=FOLDS).fit(x, y)
    return Coefficients(model.coef_.astype(np.float64), float(model.intercept_))


def lasso_refit(x: Array, y: Array) -> Coefficients:
    """The lasso by the one-standard-error rule, then least squares on what it selects."""
    model = LassoCV(cv=FOLDS).fit(x, y)
    penalty = model.alphas_[_one_standard_error(model.mse_path_)]  # from the strongest on
    return least_squares(x, y, np.flatnonzero(Lasso(alpha=penalty).fit(x, y).coef_))


def best_subset(x: Array, y: Array) -> Coefficients:
    """The best subset of columns by the extended Bayesian information criterion: abess as it comes."""
    from abess import LinearRegression as BestSubset

    return _of_abess(BestSubset(), x, y)


def logistic_refit(x: Array, y: Array, columns: NDArray[np.intp]) -> Coefficients:
    """Logistic regression on some columns, with a penalty that only keeps separable data finite."""
    coef = np.zeros(x.shape[1])
    if not columns.size:
        return Coefficients(coef, float(np.log(y.mean() / (1.0 - y.mean()))))
    model = LogisticRegression(C=1e6, max_iter=10_000).fit(x[:, columns].astype(np.float64), y)
    coef[columns] = model.coef_[0]
    return Coefficients(coef, float(model.intercept_[0]))


def l1_logistic_cv(x: Array, y: Array) -> Coefficients:
    """L1 logistic regression with the penalty of the best cross-validated log loss."""
    strengths, losses = _l1_path(x, y)
    return _l1_logistic(x, y, strengths[int(losses.mean(axis=1).argmin())])


def l1_logistic_refit(x: Array, y: Array) -> Coefficients:
    """L1 logistic regression by the one-standard-error rule, then a fit of what it selects."""
    strengths, losses = _l1_path(x, y)
    selected = _l1_logistic(x, y, strengths[_one_standard_error(losses)])
    return logistic_refit(x, y, np.flatnonzero(selected.coef))


def best_subset_logistic(x: Array, y: Array) -> Coefficients:
    """The best subset of columns for logistic regression: abess as it comes."""
    from abess import LogisticRegression as BestSubset

    return _of_abess(BestSubset(), x, y)


def _one_standard_error(losses: NDArray[np.float64]) -> int:
    """First of the penalties, strongest first, within a standard error of the best; losses are (penalties, folds)."""
    means = losses.mean(axis=1)
    best = int(means.argmin())
    error = losses[best].std(ddof=1) / np.sqrt(losses.shape[1])
    return int(np.flatnonzero(means <= means[best] + error)[0])


def _l1_path(x: Array, y: Array) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Inverse penalties from the one that selects nothing on, and the log loss of each in each fold."""
    strengths = l1_min_c(x, y, loss="log") * np.logspace(0.05, 2.0, 15)
    losses = np.empty((len(strengths), FOLDS))
    for fold, (train, test) in enumerate(StratifiedKFold(FOLDS).split(x, y)):
        for index, strength in enumerate(strengths):
            fit = _l1_logistic(x[train], y[train], strength)
            logits = x[test] @ fit.coef + fit.intercept
            losses[index, fold] = np.logaddexp(0.0, np.where(y[test] == 1, -logits, logits)).mean()
    return strengths, losses


def _l1_logistic(x: Array, y: Array, strength: float) -> Coefficients:
    # liblinear penalises the intercept; a constant column of 10 leaves it a hundredth of the penalty's curvature.
    model = LogisticRegression(C=strength, solver="liblinear", intercept_scaling=10.0, random_state=0, **_L1).fit(x, y)
    return Coefficients(model.coef_[0].astype(np.float64), float(model.intercept_[0]))


def _of_abess(model: Any, x: Array, y: Array) -> Coefficients:
    model.fit(x.astype(np.float64), y.astype(np.float64))
    return Coefficients(np.asarray(model.coef_, dtype=np.float64).ravel(), float(np.ravel(model.intercept_)[0]))
