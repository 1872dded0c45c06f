"""Logistic regression of appendix C on many data sets, with other methods: ``spikeslab reproduce logistic``."""

from __future__ import annotations

from functools import lru_cache, partial

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from spikeslab.metrics import mean_absolute_error, mean_squared_error, negative_log_likelihood
from spikeslab.paper import _selection_fits as fits
from spikeslab.paper._grid import Cell, Record, round_digits
from spikeslab.paper._selection import (
    DEFAULT,
    RECOVERY_COLUMNS,
    RECOVERY_DIFFERENCES,
    FigureTruth,
    PaperSetting,
    SelectionMethod,
    SelectionStudy,
    paper_methods,
)
from spikeslab.paper.linear.data import SIGNAL_MEANS
from spikeslab.paper.logistic.data import simulate_logistic
from spikeslab.report.tables import Column
from spikeslab.sklearn import SpikeSlabClassifier

SETTINGS = (PaperSetting(0.01, 1.0), PaperSetting(0.001, 1.0), PaperSetting(0.01, 2.0), PaperSetting(0.001, 2.0))
PAPER = {
    "SGLD-SA": ((0.177, 0.108), (0.188, 0.114), (0.182, 0.116), (0.187, 0.113)),
    "SGLD-EM": ((0.207, 0.131), (0.361, 0.346), (0.204, 0.132), (0.376, 0.360)),
    "SGLD": ((0.295, 0.272), (0.335, 0.301), (0.350, 0.338), (0.337, 0.319)),
}
PEERS = {"l1": fits.l1_logistic_cv, "l1-refit": fits.l1_logistic_refit, "abess": fits.best_subset_logistic}
METHODS = (
    SelectionMethod(DEFAULT, "SpikeSlabClassifier()"),
    SelectionMethod("l1", "L1 logistic, CV"),
    SelectionMethod("l1-refit", "L1 logistic, CV, 1 s.e., refit"),
    SelectionMethod("abess", "abess", package="abess"),
    SelectionMethod("oracle", "oracle: true probabilities"),
    *paper_methods(SETTINGS, PAPER),
)
SURE = 1e-12  # a probability this close to 0 or 1 is as good as certain; the log loss stays finite

simulate = lru_cache(maxsize=2)(simulate_logistic)


def fit_logistic(cell: Cell, *, steps: int) -> Record:
    """Fit one method to one data set and score it."""
    data = simulate(cell.seed)
    x, y = data.x_train.numpy(), data.y_train.numpy()
    truth = data.beta.numpy() != 0.0
    seconds: float | None
    if cell.method == "oracle":
        test, score, selected, seconds = data.probabilities(data.x_test), data.probabilities(data.x_score), truth, None
    elif cell.method in PEERS:
        (coef, intercept), seconds = fits.time_fit(partial(PEERS[cell.method], x, y))
        beta, selected = torch.from_numpy(coef), coef != 0.0
        test, score = (torch.sigmoid(rows.double() @ beta + intercept) for rows in (data.x_test, data.x_score))
    else:
        model = fits.make_estimator(SpikeSlabClassifier, LOGISTIC.method(cell.method), steps, cell.seed)
        try:
            seconds = fits.fit_estimator(model, x, y)
        except FloatingPointError as error:
            return {"failed": str(error)}
        selected = model.pip_ > 0.5
        test, score = (torch.from_numpy(_probability(model, rows.numpy())) for rows in (data.x_test, data.x_score))
    return {
        "mae": round_digits(mean_absolute_error(test, data.y_test)),
        "mse": round_digits(mean_squared_error(test, data.y_test)),
        "brier": round_digits(mean_squared_error(score, data.y_score)),
        "log_loss": round_digits(_log_loss(score, data.y_score)),
        "mae_score": round_digits(mean_absolute_error(score, data.y_score)),
        **fits.selection_scores(selected, truth),
        "seconds": None if seconds is None else round_digits(seconds),
    }


def picture_logistic(cell: Cell, *, steps: int) -> Record:
    """Run one chain of the figures."""
    return fits.run_picture(LOGISTIC, cell, simulate(cell.seed), SpikeSlabClassifier, _probability, steps)


def truth_logistic(seed: int) -> FigureTruth:
    """Return the true values that the figures compare with."""
    data = simulate(seed)
    return FigureTruth(
        beta=data.beta.numpy(),
        signals=len(SIGNAL_MEANS),
        train=data.probabilities(data.x_train).numpy(),
        test=data.probabilities(data.x_test).numpy(),
        label="true probability",
        limits=(-0.02, 1.02),
        sigma=None,
    )


def _probability(model: SpikeSlabClassifier, x: NDArray[np.floating]) -> NDArray[np.float64]:
    return model.predict_proba(x)[:, 1]


def _log_loss(probabilities: Tensor, labels: Tensor) -> float:
    positive = probabilities.clamp(SURE, 1.0 - SURE)
    return negative_log_likelihood(torch.stack([1.0 - positive, positive], dim=1), labels)


LOGISTIC = SelectionStudy(
    name="logistic",
    tables=("table4", "methods", "differences"),
    figures=("posterior", "latents"),
    title="Logistic regression, n = 500, p = 1000",
    methods=METHODS,
    scores=(
        Column("mae", "MAE", ".3f"),
        Column("mse", "MSE", ".3f"),
        Column("brier", "Brier", ".4f"),
        Column("log_loss", "log loss", ".4f"),
        *RECOVERY_COLUMNS,
        Column("seconds", "CPU s", ".2f"),
    ),
    differences=(
        Column("brier", "Brier", "+.5f"),
        Column("log_loss", "log loss", "+.5f"),
        Column("mae", "MAE", "+.4f"),
        Column("mse", "MSE", "+.4f"),
        *RECOVERY_DIFFERENCES,
    ),
    spec=".3f",
    pictured=PaperSetting(0.01, 1.0),
    fit=fit_logistic,
    picture=picture_logistic,
    truth=truth_logistic,
    notes=(
        "Means over data sets ± standard error. MAE and MSE are those of the predicted probability against the label "
        "on 50 test rows, the only reading of the paper's table in which the two differ; the MAE favours overconfident "
        "predictions. The Brier score (mean squared error of the probability) and the log loss are on 5,000 rows. "
        "Selected are variables with an inclusion probability above 0.5, or with a coefficient that is not zero; where "
        "nothing is selected the precision is 1. All times are on one core.",
    ),
)
