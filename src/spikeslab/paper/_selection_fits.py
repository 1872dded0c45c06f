"""Fits of a simulation study: the estimators with the paper's settings, and the methods of peers.

A peer is a function from a table to coefficients. The one-standard-error rule takes the strongest penalty whose
cross-validated loss is within one standard error of the best; the refit then estimates the selected variables without
a penalty.
"""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable
from importlib import import_module
from inspect import signature
from typing import Any, NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray
from sklearn.exceptions import ConvergenceWarning
from sklearn.linear_model import Lasso, LassoCV, LinearRegression, LogisticRegression
from sklearn.model_selection import StratifiedKFold
from sklearn.svm import l1_min_c

from spikeslab.paper._grid import Cell, Record, round_digits
from spikeslab.paper._selection import LATENTS, PaperSetting, SelectionMethod, SelectionStudy
from spikeslab.paper.linear.data import SIGNAL_MEANS, LinearData
from spikeslab.paper.logistic.data import LogisticData
from spikeslab.sklearn import SGLDOptions, SpikeSlabClassifier, SpikeSlabRegressor
from spikeslab.sklearn._moments import standardise
from spikeslab.sklearn._sgld import SGLDChain
from spikeslab.sklearn._sgld_kernel import sgld_steps

E = TypeVar("E", SpikeSlabRegressor, SpikeSlabClassifier)
Array = NDArray[np.floating]
Predict = Callable[[Any, Array], NDArray[np.float64]]

DRAWS = 400  # kept of a chain: more say nothing new, and predictions take as long as the chain
POINTS = 300  # of a curve
SIGNALS = len(SIGNAL_MEANS)  # real variables, which come first
FOLDS = 5
# From scikit-learn 1.8 on the penalty is a number; before, it is a word.
_L1: dict[str, Any] = (
    {"l1_ratio": 1.0}
    if signature(LogisticRegression).parameters["penalty"].default == "deprecated"
    else {"penalty": "l1"}
)
_compiled: set[tuple[type, str]] = set()


def make_estimator(kind: type[E], method: SelectionMethod, steps: int, seed: int) -> E:
    """Return the estimator with its defaults, or with the settings of one of the paper's methods.

    The paper's methods have one chain, a fifth of it burn-in.
    """
    setting = method.setting
    if setting is None:
        return kind(n_jobs=1, random_state=seed)
    burn_in = steps // 5
    return kind(
        method.label.lower(),
        n_chains=1,
        n_iter=steps - burn_in,
        burn_in=burn_in,
        sgld=SGLDOptions(v0=setting.v0, sigma=setting.sigma, thin=max(100, (steps - burn_in) // DRAWS)),
        n_jobs=1,
        random_state=seed,
    )


def fit_estimator(estimator: E, x: Array, y: Array) -> float:
    """Fit an estimator and return the processor time in seconds, without that of compiling its kernels."""
    kind = type(estimator)
    method = "sgld" if estimator.method.startswith("sgld") else estimator.method
    if (kind, method) not in _compiled:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            kind(method, n_chains=1, n_iter=20, burn_in=10, n_jobs=1, random_state=0).fit(x, y)
        _compiled.add((kind, method))
    return time_fit(lambda: estimator.fit(x, y))[1]


def time_fit(fit: Callable[[], Any]) -> tuple[Any, float]:
    """Return the result of ``fit`` and its processor time in seconds, which a busy machine does not change."""
    with warnings.catch_warnings():
        # One chain of the paper's methods often fails R-hat, and the lasso its tolerance; the scores tell.
        warnings.simplefilter("ignore", ConvergenceWarning)
        begin = time.process_time()
        result = fit()
        return result, time.process_time() - begin


def selection_scores(selected: NDArray[np.bool_], truth: NDArray[np.bool_]) -> Record:
    """Compute precision (1 if nothing is selected), recall, exact recovery and size of a selection."""
    right = int((selected & truth).sum())
    size = int(selected.sum())
    return {
        "precision": right / size if size else 1.0,
        "recall": right / int(truth.sum()),
        "exact": int((selected == truth).all()),
        "selected": size,
    }


def run_picture(
    study: SelectionStudy, cell: Cell, data: LinearData | LogisticData, kind: type[E], predict: Predict, steps: int
) -> Record:
    """Run one chain of the figures.

    Returns:
        Latent variables along the chain if the cell is named after them; otherwise draws of the first coefficients, all
        posterior means, and predictions, which ``predict`` computes from a fitted model and rows.
    """
    x, y, x_test = (tensor.numpy() for tensor in (data.x_train, data.y_train, data.x_test))
    if cell.method.startswith(LATENTS):
        setting = next(setting for setting in study.settings if setting.latents_key == cell.method)
        return record_latents(x, y, 2 if kind is SpikeSlabClassifier else 0, setting, steps, cell.seed)
    model = make_estimator(kind, study.method(cell.method), steps, cell.seed)
    fitted, _ = time_fit(lambda: model.fit(x, y))
    return {
        "draws": round_digits(fitted._posterior.coef[:, :SIGNALS].toarray().T),
        "coef": round_digits(np.ravel(fitted.coef_)),
        "fitted": round_digits(predict(fitted, x)),
        "predicted": round_digits(predict(fitted, x_test)),
    }


def record_latents(x: Array, y: Array, n_classes: int, setting: PaperSetting, steps: int, seed: int) -> Record:
    """Run SGLD-SA and return its steps, with sigma, delta, the rho of each signal and the largest other rho at each.

    ``n_classes`` is 0 for regression.
    """
    columns, _ = standardise(x)
    rows = np.ascontiguousarray(columns.T).astype(x.dtype)
    target = (y if n_classes else y - y.mean()).astype(x.dtype)
    settings = SGLDOptions(v0=setting.v0, sigma=setting.sigma)
    (rng,) = np.random.default_rng(seed).spawn(1)
    chain = SGLDChain(rows, target, n_classes, "sgld-sa", settings, 0, steps, rng)
    record: Record = {"step": [], "sigma": [], "delta": [], "rho": [], "largest_other_rho": []}
    done = 0
    # The latent variables move fast at first and slowly later.
    for step in np.unique(np.geomspace(1, steps, POINTS).round().astype(int)).tolist():
        sgld_steps(chain.rows, chain.y, chain.state, chain.rule, done + 1, step - done, rng)
        done = step
        sigma, delta = chain.state.latent
        rho = chain.state.rho[0]
        record["step"].append(step)
        record["sigma"].append(round_digits(sigma))
        record["delta"].append(round_digits(delta))
        record["rho"].append(round_digits(rho[:SIGNALS]))
        record["largest_other_rho"].append(round_digits(rho[SIGNALS:].max()))
    return record


class Coefficients(NamedTuple):
    """Linear predictor ``x @ coef + intercept``."""

    coef: NDArray[np.float64]
    intercept: float


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


def best_subset_logistic(x: Array, y: Array) -> Coefficients:
    """Fit abess for logistic regression with its defaults."""
    return best_subset(x, y, "LogisticRegression")


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
    return logistic_refit(x, y, np.flatnonzero(selected.coef))


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
            logits = x[test] @ fit.coef + fit.intercept
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
