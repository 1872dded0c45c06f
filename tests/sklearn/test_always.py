"""Columns that are always in: against the exact posterior, least squares and the model without selection."""

import numpy as np
import pandas as pd
import pytest
from exact_posteriors import linear_posterior

from spikeslab.sklearn import SpikeSlabRegressor, load_model, regressor, save_model


def _data(rng, n=60, p=5):
    X = rng.standard_normal((n, p)) + 3.0
    X[:, 1] += X[:, 0]
    return X, 2.0 * X[:, 0] + 0.4 * X[:, 1] - 0.3 * X[:, 3] + 10.0 + rng.standard_normal(n)


def _quick(**kwargs):
    return SpikeSlabRegressor(**{"n_chains": 2, "n_iter": 8000, "burn_in": 300, "random_state": 0, **kwargs})


@pytest.mark.parametrize("wide", [False, True])
def test_probabilities_are_those_of_the_residuals(wide, rng, monkeypatch):
    """The flat prior leaves a model for the residuals, with a degree of freedom less for each column."""
    if wide:
        monkeypatch.setattr(regressor, "WIDE", 0)
    X, y = _data(rng)
    model = _quick(always=[0, 2]).fit(X, y)
    z = np.column_stack([np.ones(60), X[:, [0, 2]]])
    left, rest = (v - z @ np.linalg.lstsq(z, v, rcond=None)[0] for v in (X[:, [1, 3, 4]], y))
    divisor = 60 if wide else 58
    scale, spread = np.sqrt((left**2).sum(axis=0) / divisor), np.sqrt((rest**2).sum() / divisor)
    basis = np.linalg.svd(z)[0][:, 3:]  # rotates the residuals to 57 rows, of which one is lost to a mean of zero
    rows = np.vstack([basis.T @ left, np.zeros(3)]) / scale
    pip, mean, sigma, _ = linear_posterior(rows, np.append(basis.T @ rest, 0.0) / spread, model._prior(3, 0.5))
    assert model.pip_[[1, 3, 4]] == pytest.approx(pip, abs=0.02)
    assert model.coef_[[1, 3, 4]] == pytest.approx(mean * spread / scale, abs=0.01)
    assert model.sigma_ == pytest.approx(sigma * spread, abs=0.01)
    assert model.pip_[[0, 2]].tolist() == [1.0, 1.0]


@pytest.mark.parametrize("wide", [False, True])
def test_their_coefficients_are_those_of_least_squares_given_the_others(wide, rng, monkeypatch):
    if wide:
        monkeypatch.setattr(regressor, "WIDE", 0)
    X, y = _data(rng)
    model = _quick(always=[2, 0], inclusion_prior=(1e-9, 1.0)).fit(X, y)
    z = np.column_stack([np.ones(60), X[:, [0, 2]]])
    exact = np.linalg.lstsq(z, y, rcond=None)[0]
    assert model.intercept_ == pytest.approx(exact[0], abs=1e-6)
    assert model.coef_[[0, 2]] == pytest.approx(exact[1:], abs=1e-6)
    assert model.coef_[[1, 3, 4]] == pytest.approx(0.0, abs=1e-7)
    rest = y - z @ exact
    covariance = np.linalg.inv(z.T @ z) * (rest @ rest) / 57
    assert model.coef_std_[[0, 2]] == pytest.approx(np.sqrt(np.diag(covariance)[1:]), rel=0.05)
    mean, std = model.predict(X, return_std=True)
    assert mean == pytest.approx(z @ exact, abs=1e-6)
    leverage = np.einsum("ij,jk,ik->i", z, covariance, z)
    assert std**2 - model.sigma_**2 == pytest.approx(leverage, rel=0.25, abs=0.02)


def test_columns_that_they_explain_are_never_included(rng):
    X, y = _data(rng)
    X[:, 4] = 2.0 * X[:, 0] - X[:, 2]
    model = _quick(always=[0, 2], n_iter=300).fit(X, y)
    assert model.pip_[4] == 0.0


def test_names_and_saved_models(rng, tmp_path):
    X, y = _data(rng)
    table = pd.DataFrame(X, columns=["age", "b", "sex", "d", "e"])
    model = _quick(always=["sex", "age"], n_iter=200).fit(table, y)
    assert model.pip_[[0, 2]].tolist() == [1.0, 1.0]
    assert _quick(always=[0, 2], n_iter=200).fit(X, y).coef_ == pytest.approx(model.coef_, abs=1e-6)
    save_model(model.set_params(always=np.array(["sex", "age"]), prior_weights={"b": 3.0}), tmp_path)
    again = load_model(tmp_path)
    assert again.always == ["sex", "age"]
    assert again.prior_weights == pytest.approx([1.0, 3.0, 1.0, 1.0, 1.0])
    assert (again.predict(table) == model.predict(table)).all()


def test_batches_give_the_same_as_all_rows(rng):
    X, y = _data(rng)
    model = _quick(always=[0], n_iter=200)
    model.partial_fit(X[:25], y[:25]).partial_fit(X[25:], y[25:])
    assert model.coef_ == pytest.approx(_quick(always=[0], n_iter=200).fit(X, y).coef_, abs=1e-8)


@pytest.mark.parametrize(
    ("always", "message"),
    [
        ("x0", "always must be a list of names or indices of columns, but got 'x0'."),
        (["x9"], "always must hold names of columns, or indices below 5, but got 'x9'."),
        ([5], "always must hold names of columns, or indices below 5, but got 5."),
        ([1, "x1"], "always must name each column once, but got [1, 'x1']."),
        ([0, 3], "always must hold columns that vary and are not collinear, but got [0, 3]."),
    ],
)
def test_errors_name_the_argument(always, message, rng):
    X, y = _data(rng)
    X[:, 3] = 2.0 * X[:, 0]
    with pytest.raises((ValueError, TypeError)) as error:
        _quick(always=always, n_iter=10).fit(X, y)
    assert str(error.value) == message


def test_the_papers_methods_and_few_rows_refuse(rng):
    X, y = _data(rng)
    with pytest.raises(ValueError, match="always must be None with the paper's methods, but got"):
        _quick(method="sgld-sa", always=[0]).fit(X, y)
    with pytest.raises(ValueError, match="always must hold at most 2 columns for 4 rows, but got 3"):
        _quick(always=[0, 1, 2]).fit(X[:4], y[:4])
