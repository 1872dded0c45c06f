"""Linear regression of section 5.1 on many data sets, with other methods: ``spikeslab reproduce linear``."""

from __future__ import annotations

from functools import lru_cache, partial

import numpy as np
import torch
from numpy.typing import NDArray

from spikeslab.metrics import mean_absolute_error, mean_squared_error
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
from spikeslab.paper.linear.data import SIGNAL_MEANS, LinearData, simulate_linear
from spikeslab.report.tables import Column
from spikeslab.sklearn import SpikeSlabRegressor

SETTINGS = (PaperSetting(0.01, 2.0), PaperSetting(0.1, 2.0), PaperSetting(0.01, 1.0), PaperSetting(0.1, 1.0))
PAPER = {
    "SGLD-SA": ((1.89, 5.56), (1.72, 5.64), (1.48, 3.51), (1.54, 4.42)),
    "SGLD-EM": ((3.49, 19.31), (2.23, 8.22), (2.23, 19.28), (2.07, 6.94)),
    "SGLD": ((15.85, 416.39), (15.85, 416.39), (11.86, 229.38), (7.72, 88.90)),
}
PEERS = {"lasso": fits.lasso_cv, "lasso-refit": fits.lasso_refit, "abess": fits.best_subset}
METHODS = (
    SelectionMethod(DEFAULT, "SpikeSlabRegressor()"),
    SelectionMethod("lasso", "LassoCV"),
    SelectionMethod("lasso-refit", "LassoCV, 1 s.e., OLS refit"),
    SelectionMethod("abess", "abess", package="abess"),
    SelectionMethod("oracle", "oracle: OLS on the true three"),
    *paper_methods(SETTINGS, PAPER),
)

simulate = lru_cache(maxsize=2)(simulate_linear)


def fit_linear(cell: Cell, *, steps: int) -> Record:
    """Fit one method to one data set and score it."""
    data = simulate(cell.seed)
    x, y = data.x_train.numpy(), data.y_train.numpy()
    if cell.method == "oracle" or cell.method in PEERS:
        signals = np.arange(len(SIGNAL_MEANS))
        fit = partial(PEERS[cell.method], x, y) if cell.method in PEERS else partial(fits.least_squares, x, y, signals)
        (coef, intercept), seconds = fits.time_fit(fit)
        selected, sigma = coef != 0.0, _residual_sd(data, coef, intercept)
    else:
        model = fits.make_estimator(SpikeSlabRegressor, LINEAR.method(cell.method), steps, cell.seed)
        try:
            seconds = fits.fit_estimator(model, x, y)
        except FloatingPointError as error:
            return {"failed": str(error)}
        coef, intercept, selected, sigma = model.coef_, model.intercept_, model.pip_ > 0.5, model.sigma_
    prediction = data.x_test.double() @ torch.from_numpy(coef) + intercept
    return {
        "mae": round_digits(mean_absolute_error(prediction, data.y_test)),
        "mse": round_digits(mean_squared_error(prediction, data.y_test)),
        "population_mse": round_digits(data.population_mse(torch.from_numpy(coef), intercept)),
        **fits.selection_scores(selected, data.beta.numpy() != 0.0),
        "sigma": None if sigma is None else round_digits(sigma),
        "seconds": round_digits(seconds),
    }


def picture_linear(cell: Cell, *, steps: int) -> Record:
    """Run one chain of the figures."""
    return fits.run_picture(
        LINEAR, cell, simulate(cell.seed), SpikeSlabRegressor, lambda model, x: model.predict(x), steps
    )


def truth_linear(seed: int) -> FigureTruth:
    """Return the true values that the figures compare with."""
    data = simulate(seed)
    limit = 1.1 * float(torch.cat([data.y_train, data.y_test]).abs().max())
    return FigureTruth(
        beta=data.beta.numpy(),
        signals=len(SIGNAL_MEANS),
        train=data.y_train.numpy(),
        test=data.y_test.numpy(),
        label="observed",
        limits=(-limit, limit),
        sigma=data.noise_variance**0.5,
    )


def _residual_sd(data: LinearData, coef: NDArray[np.float64], intercept: float) -> float | None:
    """Return the standard deviation of the residuals; each selected variable and the intercept take one freedom."""
    residuals = data.y_train.double() - data.x_train.double() @ torch.from_numpy(coef) - intercept
    freedom = len(residuals) - int(np.count_nonzero(coef)) - 1
    return float((residuals.square().sum() / freedom).sqrt()) if freedom > 0 else None


LINEAR = SelectionStudy(
    name="linear",
    tables=("table1", "methods", "differences"),
    figures=("figure1", "latents"),
    title="Linear regression, n = 100, p = 1000",
    methods=METHODS,
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
    pictured=PaperSetting(0.1, 1.0),
    fit=fit_linear,
    picture=picture_linear,
    truth=truth_linear,
    notes=(
        "Means over data sets ± standard error. MAE and MSE are on 50 test rows; the exact MSE is the expectation over "
        "new rows, of which 3 is noise. Selected are variables with an inclusion probability above 0.5, or with a "
        "coefficient that is not zero; where nothing is selected the precision is 1. The true σ is 1.73; that of a "
        "method without one is the standard deviation of its residuals. All times are on one core.",
    ),
)
