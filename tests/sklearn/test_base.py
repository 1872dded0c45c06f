"""Shared part of the estimators: parameters, selection, tables, figures and fits that fail."""

import pickle

import numpy as np
import pandas as pd
import pytest
from sklearn.base import clone
from sklearn.exceptions import ConvergenceWarning, NotFittedError
from sklearn.feature_selection import SelectFromModel
from sklearn.linear_model import LinearRegression
from sklearn.model_selection import GridSearchCV
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from spikeslab.sklearn import SGLDOptions, SpikeSlabRegressor, _chains, select_variables


def _data(rng, n=80, p=30, noise=0.5):
    X = rng.standard_normal((n, p)) * rng.uniform(0.5, 20.0, p) + rng.normal(0, 50, p)
    beta = np.zeros(p)
    beta[[2, 5]] = np.array([2.0, -1.0]) / X[:, [2, 5]].std(0)
    return X, X @ beta + 7.0 + noise * rng.standard_normal(n), beta


def _quick(**kwargs):
    return SpikeSlabRegressor(**{"n_chains": 2, "n_iter": 300, "burn_in": 100, "random_state": 0, **kwargs})


def test_summary_support_and_false_discovery_rate(rng):
    X, y, _ = _data(rng, noise=3.0)
    model = _quick().fit(X, y)
    table = model.summary(level=0.9)
    assert list(table.columns) == ["pip", "pip_error", "mean", "std", "lower", "upper", "rhat", "ess"]
    assert len(table) == X.shape[1]
    assert table["pip"].is_monotonic_decreasing
    assert len(model.summary(threshold=0.5)) == model.get_support(threshold=0.5).sum()
    chosen = model.get_support(fdr=0.2, indices=True)
    assert np.mean(1 - model.pip_[chosen]) <= 0.2
    order = np.argsort(-model.pip_)[: chosen.size + 1]
    assert np.mean(1 - model.pip_[order]) > 0.2 or model.pip_[order[-1]] < 0.5


def test_works_inside_scikit_learn(rng):
    X, y, _ = _data(rng)
    model = _quick()
    selector = SelectFromModel(model, importance_getter="pip_", threshold=0.5).fit(X, y)
    assert selector.get_support(indices=True).tolist() == [2, 5]
    pipe = make_pipeline(SelectFromModel(model, importance_getter="pip_", threshold=0.5), LinearRegression())
    assert pipe.fit(X, y).score(X, y) > 0.9
    pipe = make_pipeline(model, LinearRegression()).fit(X, y)
    assert pipe[:-1].get_feature_names_out().tolist() == ["x2", "x5"]
    assert pipe[-1].n_features_in_ == 2
    search = GridSearchCV(model, {"slab_scale": [0.2, 0.5]}, cv=2).fit(X, y)
    assert search.best_score_ > 0.8
    assert clone(model).get_params() == model.get_params()
    fitted = model.fit(X, y)
    assert pickle.loads(pickle.dumps(fitted)).predict(X) == pytest.approx(fitted.predict(X))


def test_transform_keeps_the_selected_columns_under_their_names(rng):
    X, y, _ = _data(rng)
    table = pd.DataFrame(X, columns=[f"gene {j}" for j in range(X.shape[1])])
    model = _quick().set_output(transform="pandas").fit(table, y)
    assert model.transform(table).equals(table[["gene 2", "gene 5"]])
    nothing = _quick().fit(X, rng.standard_normal(X.shape[0]))
    assert not nothing.get_support().any()
    with pytest.warns(UserWarning, match="No features were selected"):
        assert nothing.transform(X).shape == (X.shape[0], 0)


def test_settings_are_parameters_like_those_of_a_nested_estimator(rng):
    model = _quick(method="sgld-sa", sgld=SGLDOptions(v0=0.02))
    copy = clone(model)
    assert copy.sgld == model.sgld
    assert copy.sgld is not model.sgld
    assert copy.set_params(sgld__v1=3.0).get_params()["sgld__v1"] == 3.0
    assert (copy.sgld.v0, model.sgld.v1) == (0.02, 10.0)
    assert SpikeSlabRegressor().set_params(sgld__v0=0.3).sgld == SGLDOptions(v0=0.3)
    with pytest.raises(ValueError, match="v0 must be a number > 0, but got 0"):
        model.set_params(sgld__v0=0)
    X, y, _ = _data(rng, n=40, p=6)
    search = GridSearchCV(clone(model).set_params(sgld__v0=0.1), {"sgld__temperature": [0.5, 1.0]}, cv=2)
    assert set(search.fit(X, y).best_params_) == {"sgld__temperature"}


def test_chains_run_one_after_the_other_unless_asked(monkeypatch):
    assert SpikeSlabRegressor()._threads() == 1
    assert SpikeSlabRegressor(n_jobs=3)._threads() == 3
    monkeypatch.setattr("os.sched_getaffinity", lambda _: range(4), raising=False)
    assert [SpikeSlabRegressor(n_jobs=n)._threads() for n in (-1, -2, -9)] == [4, 3, 1]


@pytest.mark.parametrize(
    "fit",
    [
        lambda model, X, y: model.fit(X, y),
        lambda model, X, y: model.partial_fit(X, y),
        lambda model, X, y: model.fit_transform(X, y),
        lambda model, X, y: make_pipeline(StandardScaler(), model).fit(X, y).predict(X),
    ],
    ids=["fit", "partial_fit", "fit_transform", "pipeline"],
)
def test_a_warning_of_chains_that_disagree_points_at_the_users_line(fit, rng, monkeypatch):
    X, y, _ = _data(rng)
    monkeypatch.setattr("spikeslab.sklearn._base.RHAT_LIMIT", 0.5)
    with pytest.warns(
        ConvergenceWarning, match=r"\(largest R-hat 1\.\d{3}, of \w+[^)]*\): raise n_iter or burn_in"
    ) as caught:
        fit(_quick(), X, y)
    assert [(warning.filename, warning.lineno) for warning in caught] == [(__file__, fit.__code__.co_firstlineno)]


def test_chains_run_until_they_converge(rng, monkeypatch):
    monkeypatch.setattr("spikeslab.sklearn._convergence.ERROR_TARGET", 0.008)
    x = rng.standard_normal((50, 1))
    X = x + 0.3 * rng.standard_normal((50, 40))
    y = x[:, 0] + rng.standard_normal(50)
    short = SpikeSlabRegressor(n_chains=2, max_time=0.0, random_state=0)
    with pytest.warns(
        ConvergenceWarning, match=r"largest Monte Carlo error of a PIP 0\.0\d\d, of x\d+\): raise max_time\."
    ):
        short.fit(X, y)
    assert short.n_iter_ == 1000
    assert not short.converged_
    model = SpikeSlabRegressor(n_chains=2, random_state=0).fit(X, y)
    assert model.converged_
    assert model.n_iter_ > 1000
    judged = model.pip_ >= 0.05
    assert np.array_equal(np.isfinite(model.pip_error_), judged)
    assert model.pip_error_[judged].max() <= 0.008
    assert model._posterior.coef.shape[0] <= 2 * 4000
    again = SpikeSlabRegressor(n_chains=2, random_state=1).fit(X, y)
    assert model.pip_[judged] == pytest.approx(again.pip_[judged], abs=0.03)


@pytest.mark.parametrize(("size", "mean"), [(None, 2.5 * 30 / 37.5), (0.1, 0.1), (4.0, 4.0), (29.0, 29.0)])
def test_the_prior_expects_the_given_number_of_variables(size, mean):
    prior = SpikeSlabRegressor(expected_size=size)._prior(30)
    assert 30 * prior.a / (prior.a + prior.b) == pytest.approx(mean)
    assert SpikeSlabRegressor(inclusion_prior=(2.0, None))._prior(30)[:2] == (2.0, 30.0)


def test_more_expected_variables_are_more_probable(rng):
    X = rng.standard_normal((40, 20))
    y = 0.3 * X[:, 0] + rng.standard_normal(40)
    few, many = (_quick(expected_size=size).fit(X, y).pip_ for size in (0.5, 10.0))
    assert (few < many).all()


def test_a_given_number_of_steps_is_kept(rng):
    X, y, _ = _data(rng, n=20)
    model = SpikeSlabRegressor(n_chains=2, n_iter=50, random_state=0).fit(X, y)
    assert model.n_iter_ == 50
    assert not model.converged_


def test_an_interrupted_fit_leaves_nothing(rng, monkeypatch):
    X, y, _ = _data(rng)
    model = _quick()

    def interrupted(*args):
        raise KeyboardInterrupt

    monkeypatch.setattr(_chains, "_run_one", interrupted)
    with pytest.raises(KeyboardInterrupt):
        model.fit(X, y)
    with pytest.raises(NotFittedError):
        model.predict(X)
    with pytest.raises(NotFittedError):
        model.get_support()
    assert vars(model) == vars(_quick())


def test_an_interrupted_second_fit_keeps_the_first(rng, monkeypatch):
    X, y, _ = _data(rng)
    model = _quick().fit(X, y)
    before = model.predict(X)
    monkeypatch.setattr(_chains, "_run_one", lambda *args: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        model.fit(X[:, :3], y)
    assert model.n_features_in_ == 30
    assert model.predict(X) == pytest.approx(before)


def test_figure_and_arviz(rng):
    X, y, _ = _data(rng)
    model = _quick().fit(X, y)
    matplotlib = pytest.importorskip("matplotlib")
    matplotlib.use("Agg")
    ax = model.plot_inclusion()
    assert {t.get_text() for t in ax.texts} == {"x2", "x5"}
    pytest.importorskip("arviz")
    data = model.to_arviz(threshold=0.5)
    assert data.posterior["coef"].shape == (2, 300, 2)
    assert data.posterior["coef"].coords["feature"].values.tolist() == ["x2", "x5"]


@pytest.mark.parametrize(
    ("kwargs", "message"),
    [
        (
            {"method": "hmc"},
            "method must be one of 'auto', 'gibbs', 'sgld-sa', 'sgld-em', 'sgld', but got 'hmc'.",
        ),
        ({"n_chains": 0}, "n_chains must be an integer >= 1, but got 0."),
        ({"n_iter": 2.5}, "n_iter must be an integer >= 1, but got 2.5."),
        ({"max_time": -1}, "max_time must be a number >= 0, but got -1."),
        ({"burn_in": -1}, "burn_in must be an integer >= 0, but got -1."),
        ({"slab_scale": 0.0}, "slab_scale must be a number > 0, but got 0.0."),
        ({"inclusion_prior": 3}, "inclusion_prior must be a pair (a, b) of a Beta law, but got 3."),
        ({"random_state": -1}, "random_state must be an integer >= 0, but got -1."),
        ({"n_jobs": 0}, "n_jobs must be None or an integer other than 0, but got 0."),
        ({"expected_size": 0}, "expected_size must be a number > 0, but got 0."),
        (
            {"expected_size": 30},
            "expected_size must be less than 30, the number of coefficients that vary, but got 30.",
        ),
        (
            {"expected_size": 3, "inclusion_prior": (1, 9)},
            "inclusion_prior replaces expected_size, but got (1, 9) and expected_size=3.",
        ),
        ({"inclusion_prior": (0, 1)}, "inclusion_prior[0] must be a number > 0, but got 0."),
    ],
)
def test_parameter_errors_name_the_argument(kwargs, message, rng):
    X, y, _ = _data(rng)
    with pytest.raises((ValueError, TypeError)) as error:
        SpikeSlabRegressor(**kwargs).fit(X, y)
    assert str(error.value) == message


def test_selection_at_a_false_discovery_rate():
    pip = np.array([0.3, 0.99, 0.9, 0.0])
    assert select_variables(pip, fdr=0.1).tolist() == [False, True, True, False]
    assert select_variables(pip, fdr=0.3).tolist() == [False, True, True, False]
    assert select_variables(pip + 0.2, fdr=0.3).tolist() == [True, True, True, False]
    assert select_variables(pip, fdr=0.001).tolist() == [False] * 4


def test_a_clear_set_is_not_padded_with_variables_that_are_surely_false():
    pip = np.repeat([1.0, 0.51, 0.49, 0.01], [20, 1, 1, 50])
    assert select_variables(pip, fdr=0.1).tolist() == [True] * 21 + [False] * 51


@pytest.mark.parametrize("place", ["X", "y", "prediction"])
def test_integers_beyond_the_largest_float_are_one_sentence(place, rng):
    X, y, _ = _data(rng, n=20, p=6)
    model = _quick(n_iter=5).fit(X, y)
    large = (y if place == "y" else X).astype(object)
    large.flat[0] = 10**400
    with pytest.raises(ValueError, match=r"^X must hold numbers up to 1\.8e\+308, and so must y, but got a larger"):
        {
            "X": lambda: model.fit(large, y),
            "y": lambda: model.fit(X, large),
            "prediction": lambda: model.predict(large),
        }[place]()
