"""``spikeslab reproduce logistic``: appendix C of the paper over many data sets, beside other methods."""

from __future__ import annotations

from functools import lru_cache, partial

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from spikeslab.metrics import mean_absolute_error, mean_squared_error, negative_log_likelihood
from spikeslab.paper.cells import Cell, Record
from spikeslab.paper.linear.data import SIGNAL_MEANS
from spikeslab.paper.logistic.data import simulate_logistic
from spikeslab.paper.selection import peers
from spikeslab.paper.selection.fits import (
    brief,
    compiled,
    estimator,
    latents_along,
    picture,
    selection_scores,
    timed,
)
from spikeslab.paper.selection.study import DEFAULT, LATENTS, Method, Setting, Study, Truth, latents_key, paper_methods
from spikeslab.report.tables import Column
from spikeslab.sklearn import SpikeSlabClassifier

SETTINGS = (Setting(0.01, 1.0), Setting(0.001, 1.0), Setting(0.01, 2.0), Setting(0.001, 2.0))
PAPER = {
    "SGLD-SA": ((0.177, 0.108), (0.188, 0.114), (0.182, 0.116), (0.187, 0.113)),
    "SGLD-EM": ((0.207, 0.131), (0.361, 0.346), (0.204, 0.132), (0.376, 0.360)),
    "SGLD": ((0.295, 0.272), (0.335, 0.301), (0.350, 0.338), (0.337, 0.319)),
}
PEERS = {"l1": peers.l1_logistic_cv, "l1-refit": peers.l1_logistic_refit, "abess": peers.best_subset_logistic}
METHODS = (
    Method(DEFAULT, "SpikeSlabClassifier()"),
    Method("l1", "L1 logistic, CV"),
    Method("l1-refit", "L1 logistic, CV, 1 s.e., refit"),
    Method("abess", "abess", package="abess"),
    Method("oracle", "oracle: true probabilities"),
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
        (coef, intercept), seconds = timed(partial(PEERS[cell.method], x, y))
        beta, selected = torch.from_numpy(coef), coef != 0.0
        test, score = (torch.sigmoid(rows.double() @ beta + intercept) for rows in (data.x_test, data.x_score))
    else:
        model = compiled(estimator(SpikeSlabClassifier, LOGISTIC.method(cell.method), steps, cell.seed), x, y)
        try:
            _, seconds = timed(lambda: model.fit(x, y))
        except FloatingPointError as error:
            return {"failed": str(error)}
        selected = model.pip_ > 0.5
        test, score = (torch.from_numpy(_probability(model, rows.numpy())) for rows in (data.x_test, data.x_score))
    return {
        "mae": brief(mean_absolute_error(test, data.y_test)),
        "mse": brief(mean_squared_error(test, data.y_test)),
        "brier": brief(mean_squared_error(score, data.y_score)),
        "log_loss": brief(_log_loss(score, data.y_score)),
        "mae_score": brief(mean_absolute_error(score, data.y_score)),
        **selection_scores(selected, truth),
        "seconds": None if seconds is None else brief(seconds),
    }


def picture_logistic(cell: Cell, *, steps: int) -> Record:
    """What the figures show of one chain."""
    data = simulate(cell.seed)
    x, y = data.x_train.numpy(), data.y_train.numpy()
    if cell.method.startswith(LATENTS):
        setting = next(setting for setting in SETTINGS if latents_key(setting) == cell.method)
        return latents_along(x, y, 2, setting, steps, cell.seed, len(SIGNAL_MEANS))
    model = estimator(SpikeSlabClassifier, LOGISTIC.method(cell.method), steps, cell.seed)
    return picture(model, x, y, data.x_test.numpy(), len(SIGNAL_MEANS), _probability)


def truth_logistic(seed: int) -> Truth:
    """What the figures compare with."""
    data = simulate(seed)
    return Truth(
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


LOGISTIC = Study(
    name="logistic",
    paper=("table4", "posterior"),
    title="Logistic regression, n = 500, p = 1000",
    methods=METHODS,
    scores=(
        Column("mae", "MAE", ".3f"),
        Column("mse", "MSE", ".3f"),
        Column("brier", "Brier", ".4f"),
        Column("log_loss", "log loss", ".4f"),
        Column("precision", "precision", ".2f"),
        Column("recall", "recall", ".2f"),
        Column("exact", "exact recovery", ".2f"),
        Column("seconds", "CPU s", ".2f"),
    ),
    differences=(
        Column("brier", "Brier", "+.5f"),
        Column("log_loss", "log loss", "+.5f"),
        Column("mae", "MAE", "+.4f"),
        Column("mse", "MSE", "+.4f"),
        Column("precision", "precision", "+.3f"),
        Column("recall", "recall", "+.3f"),
        Column("exact", "exact recovery", "+.3f"),
    ),
    spec=".3f",
    pictured=Setting(0.01, 1.0),
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
