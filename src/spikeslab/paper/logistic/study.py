"""Logistic regression of appendix C on many data sets, with other methods: ``spikeslab reproduce logistic``."""

from __future__ import annotations

from functools import partial

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from spikeslab.metrics import mean_absolute_error, mean_squared_error, negative_log_likelihood
from spikeslab.paper import _selection_peers as peers
from spikeslab.paper.grid import Record
from spikeslab.paper.logistic.data import LogisticData, simulate_logistic
from spikeslab.paper.selection_problem import (
    DEFAULT,
    ORACLE,
    RECOVERY_COLUMNS,
    RECOVERY_DIFFERENCES,
    FigureTruth,
    SelectionMethod,
    SelectionPreset,
    SelectionProblem,
    paper_methods,
)
from spikeslab.report.tables import Column
from spikeslab.sklearn import SpikeSlabClassifier

PRESETS = (0.01, 1.0), (0.001, 1.0), (0.01, 2.0), (0.001, 2.0)
PAPER = {
    "SGLD-SA": ((0.177, 0.108), (0.188, 0.114), (0.182, 0.116), (0.187, 0.113)),
    "SGLD-EM": ((0.207, 0.131), (0.361, 0.346), (0.204, 0.132), (0.376, 0.360)),
    "SGLD": ((0.295, 0.272), (0.335, 0.301), (0.350, 0.338), (0.337, 0.319)),
}
SURE = 1e-12  # a probability this close to 0 or 1 is as good as certain; the log loss stays finite


def score_logistic(model: SpikeSlabClassifier | peers.Coefficients | None, data: LogisticData) -> Record:
    """Return the errors of the probabilities of a fitted model, or of the true ones."""

    def predict(x: Tensor) -> Tensor:
        if model is None:
            return data.probabilities(x)
        if isinstance(model, peers.Coefficients):
            return torch.sigmoid(x.double() @ torch.from_numpy(model.coef_) + model.intercept_)
        return torch.from_numpy(predict_probability(model, x.numpy()))

    test, score = predict(data.x_test), predict(data.x_score)
    return {
        "mae": mean_absolute_error(test, data.y_test),
        "mse": mean_squared_error(test, data.y_test),
        "brier": mean_squared_error(score, data.y_score),
        "log_loss": _log_loss(score, data.y_score),
        "mae_score": mean_absolute_error(score, data.y_score),
    }


def predict_probability(model: SpikeSlabClassifier, x: NDArray[np.floating]) -> NDArray[np.float64]:
    """Return the predictive probability of a 1."""
    return model.predict_proba(x)[:, 1]


def logistic_truth(data: LogisticData) -> FigureTruth:
    """Return the true values that the figures compare with."""
    rows = data.probabilities(data.x_train).numpy(), data.probabilities(data.x_test).numpy()
    return FigureTruth(data.beta.numpy(), *rows, "true probability", (-0.02, 1.02))


def _log_loss(probabilities: Tensor, labels: Tensor) -> float:
    positive = probabilities.clamp(SURE, 1.0 - SURE)
    return negative_log_likelihood(torch.stack([1.0 - positive, positive], dim=1), labels)


LOGISTIC = SelectionProblem(
    name="logistic",
    tables=("table4", "methods", "differences"),
    figures=("posterior", "latents"),
    title="Logistic regression, n = 500, p = 1000",
    methods=(
        SelectionMethod(DEFAULT, "SpikeSlabClassifier()"),
        SelectionMethod("l1", "L1 logistic, CV", peer=peers.l1_logistic_cv),
        SelectionMethod("l1-refit", "L1 logistic, CV, 1 s.e., refit", peer=peers.l1_logistic_refit),
        SelectionMethod("abess", "abess", peer=partial(peers.best_subset, kind="LogisticRegression"), package="abess"),
        SelectionMethod(ORACLE, "oracle: true probabilities"),
        *paper_methods(PRESETS, PAPER),
    ),
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
    pictured=SelectionPreset(0.01, 1.0),
    estimator=SpikeSlabClassifier,
    simulate=simulate_logistic,
    score=score_logistic,
    predict=predict_probability,
    truth=logistic_truth,
    note=(
        "Means over data sets ± standard error. MAE and MSE are those of the predicted probability against the label "
        "on 50 test rows, the only reading of the paper's table in which the two differ; the MAE favours overconfident "
        "predictions. The Brier score (mean squared error of the probability) and the log loss are on 5,000 rows. "
        "Selected are variables with an inclusion probability above 0.5, or with a coefficient that is not zero; where "
        "nothing is selected the precision is 1. All times are on one core."
    ),
)
