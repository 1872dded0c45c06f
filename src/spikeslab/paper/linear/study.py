"""Linear regression of section 5.1 on many data sets, with other methods: ``spikeslab reproduce linear``."""

from __future__ import annotations

from functools import partial

import numpy as np
import torch
from torch import Tensor

from spikeslab.metrics import mean_absolute_error, mean_squared_error
from spikeslab.paper import _selection_peers as peers
from spikeslab.paper.grid import Record
from spikeslab.paper.linear.data import LinearData, simulate_linear
from spikeslab.paper.selection_problem import (
    DEFAULT,
    ORACLE,
    RECOVERY_COLUMNS,
    RECOVERY_DIFFERENCES,
    SIGNALS,
    FigureTruth,
    SelectionMethod,
    SelectionPreset,
    SelectionProblem,
    paper_methods,
)
from spikeslab.report.tables import Column
from spikeslab.sklearn import SpikeSlabRegressor

PRESETS = (0.01, 2.0), (0.1, 2.0), (0.01, 1.0), (0.1, 1.0)
PAPER = {
    "SGLD-SA": ((1.89, 5.56), (1.72, 5.64), (1.48, 3.51), (1.54, 4.42)),
    "SGLD-EM": ((3.49, 19.31), (2.23, 8.22), (2.23, 19.28), (2.07, 6.94)),
    "SGLD": ((15.85, 416.39), (15.85, 416.39), (11.86, 229.38), (7.72, 88.90)),
}
OLS_ON_SIGNALS = partial(peers.least_squares, columns=np.arange(SIGNALS))


def score_linear(model: SpikeSlabRegressor | peers.Coefficients, data: LinearData) -> Record:
    """Return the errors of a fitted model and its estimate of sigma."""
    coef, intercept = torch.from_numpy(model.coef_), model.intercept_
    prediction = data.x_test.double() @ coef + intercept
    return {
        "mae": mean_absolute_error(prediction, data.y_test),
        "mse": mean_squared_error(prediction, data.y_test),
        "population_mse": data.population_mse(coef, intercept),
        "sigma": _residual_sd(data, coef, intercept) if isinstance(model, peers.Coefficients) else model.sigma_,
    }


def _residual_sd(data: LinearData, coef: Tensor, intercept: float) -> float | None:
    """Return the standard deviation of the residuals; each selected variable and the intercept take one freedom."""
    residuals = data.y_train.double() - data.x_train.double() @ coef - intercept
    freedom = len(residuals) - int(coef.count_nonzero()) - 1
    return float((residuals.square().sum() / freedom).sqrt()) if freedom > 0 else None


def linear_truth(data: LinearData) -> FigureTruth:
    """Return the true values that the figures compare with."""
    limit = 1.1 * float(torch.cat([data.y_train, data.y_test]).abs().max())
    rows = data.y_train.numpy(), data.y_test.numpy()
    return FigureTruth(data.beta.numpy(), *rows, "observed", (-limit, limit), data.noise_variance**0.5)


LINEAR = SelectionProblem(
    name="linear",
    tables=("table1", "methods", "differences"),
    figures=("figure1", "latents"),
    title="Linear regression, n = 100, p = 1000",
    methods=(
        SelectionMethod(DEFAULT, "SpikeSlabRegressor()"),
        SelectionMethod("lasso", "LassoCV", peer=peers.lasso_cv),
        SelectionMethod("lasso-refit", "LassoCV, 1 s.e., OLS refit", peer=peers.lasso_refit),
        SelectionMethod("abess", "abess", peer=peers.best_subset, package="abess"),
        SelectionMethod(ORACLE, "oracle: OLS on the true three", peer=OLS_ON_SIGNALS),
        *paper_methods(PRESETS, PAPER),
    ),
    scores=(
        Column("mae", "MAE", ".3f"),
        Column("mse", "MSE", ".2f"),
        Column("population_mse", "exact MSE", ".3f"),
        *RECOVERY_COLUMNS,
        Column("sigma", "σ", ".2f"),
        Column("seconds", "CPU s", ".2f"),
    ),
    differences=(
        Column("population_mse", "exact MSE", "+.3f"),
        Column("mse", "MSE", "+.3f"),
        Column("mae", "MAE", "+.3f"),
        *RECOVERY_DIFFERENCES,
    ),
    spec=".2f",
    pictured=SelectionPreset(0.1, 1.0),
    estimator=SpikeSlabRegressor,
    simulate=simulate_linear,
    score=score_linear,
    predict=SpikeSlabRegressor.predict,
    truth=linear_truth,
    note=(
        "Means over data sets ± standard error. MAE and MSE are on 50 test rows; the exact MSE is the expectation over "
        "new rows, of which 3 is noise. Selected are variables with an inclusion probability above 0.5, or with a "
        "coefficient that is not zero; where nothing is selected the precision is 1. The true σ is 1.73; that of a "
        "method without one is the standard deviation of its residuals. All times are on one core."
    ),
)
