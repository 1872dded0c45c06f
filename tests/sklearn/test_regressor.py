import numpy as np
import pandas as pd
import pytest
from scipy import sparse
from sklearn.utils.estimator_checks import check_estimator

from spikeslab.sklearn import SGLDOptions, SpikeSlabRegressor, regressor


def _data(rng, n=80, p=30, noise=0.5):
    X = rng.standard_normal((n, p)) * rng.uniform(0.5, 20.0, p) + rng.normal(0, 50, p)
    beta = np.zeros(p)
    beta[[2, 5]] = np.array([2.0, -1.0]) / X[:, [2, 5]].std(0)
    return X, X @ beta + 7.0 + noise * rng.standard_normal(n), beta


def _quick(**kwargs):
    return SpikeSlabRegressor(**{"n_chains": 2, "n_iter": 300, "burn_in": 100, "random_state": 0, **kwargs})


def test_check_estimator():
    check_estimator(_quick())


def test_recovers_the_model_on_the_users_scale(rng):
    X, y, beta = _data(rng)
    model = SpikeSlabRegressor(random_state=0).fit(X, y)
    assert model.method_ == "gibbs"
    assert model.get_support(indices=True).tolist() == [2, 5]
    assert np.abs(model.coef_ - beta)[[2, 5]] == pytest.approx(0.0, abs=4 * model.coef_std_[[2, 5]].max())
    assert model.sigma_ == pytest.approx(0.5, rel=0.3)
    assert model.predict(X) == pytest.approx(X @ model.coef_ + model.intercept_)
    assert model.score(X, y) > 0.9
    assert max(model.rhat_.values()) < 1.05
    assert min(model.ess_.values()) > 400
    assert model.n_iter_ == 1000
    lower, upper = model.coef_interval(0.9).T
    assert np.all(lower <= upper)
    assert np.all((lower[[2, 5]] < beta[[2, 5]]) & (beta[[2, 5]] < upper[[2, 5]]))
    assert np.all(lower[model.pip_ < 0.04] == 0.0)


def test_results_do_not_depend_on_the_units_of_the_data(rng):
    X, y, _ = _data(rng)
    factor = np.exp(rng.normal(0, 3, X.shape[1]))
    a, b = _quick().fit(X, y), _quick().fit(X * factor + 5.0, 1000.0 * y - 3.0)
    assert b.pip_ == pytest.approx(a.pip_, abs=1e-6)
    assert b.coef_ * factor == pytest.approx(1000.0 * a.coef_, rel=1e-5, abs=1e-6)
    assert b.sigma_ == pytest.approx(1000.0 * a.sigma_, rel=1e-6)


def test_columns_path_agrees_with_the_gram_path(rng, monkeypatch):
    X, y, _ = _data(rng)
    gram = SpikeSlabRegressor(random_state=0).fit(X, y)
    monkeypatch.setattr(regressor, "GRAM_LIMIT", 10)
    columns = SpikeSlabRegressor(random_state=0).fit(X, y)
    assert columns.pip_ == pytest.approx(gram.pip_, abs=0.03)
    assert columns.coef_ == pytest.approx(gram.coef_, abs=0.1 * gram.coef_std_.max())


def test_inputs_of_every_kind_agree(rng):
    X, y, _ = _data(rng)
    X[:, 7] = 3.0
    names = [f"gene{j}" for j in range(X.shape[1])]
    dense = _quick().fit(X, y)
    frame = _quick().fit(pd.DataFrame(X, columns=names), pd.Series(y))
    csr = _quick().fit(sparse.csr_array(X), y)
    single = _quick().fit(X.astype(np.float32), y)
    assert dense.pip_[7] == dense.coef_[7] == 0.0
    assert frame.coef_ == pytest.approx(dense.coef_)
    assert csr.coef_ == pytest.approx(dense.coef_, abs=1e-8)
    assert single.pip_ == pytest.approx(dense.pip_, abs=0.05)
    assert csr.predict(sparse.csr_array(X), return_std=True)[1] == pytest.approx(dense.predict(X, return_std=True)[1])
    assert frame.feature_names_in_.tolist() == names
    assert frame.summary().index[:2].tolist() == ["gene2", "gene5"]


def test_nothing_that_varies(rng):
    y = rng.standard_normal(20)
    model = _quick().fit(np.ones((20, 3)), y)
    assert model.coef_.tolist() == model.pip_.tolist() == [0.0, 0.0, 0.0]
    assert model.predict(np.ones((2, 3))) == pytest.approx(y.mean())
    assert _quick().fit(rng.standard_normal((20, 3)), np.ones(20)).predict(np.zeros((1, 3))) == pytest.approx(1.0)
    assert _quick().partial_fit(np.ones((1, 3)), y[:1]).intercept_ == pytest.approx(y[0])
    with pytest.raises(ValueError) as error:
        _quick(method="sgld").fit(np.ones((20, 3)), y)
    assert str(error.value) == "X must have a column that varies, but got 3 constant ones."


def test_copies_of_a_column_share_its_probability(rng):
    X = rng.standard_normal((80, 10))
    X = np.column_stack([X, X[:, 3], X[:, 3]])
    y = 2.0 * X[:, 3] + rng.standard_normal(80)
    model = SpikeSlabRegressor(n_chains=2, n_jobs=1, random_state=0).fit(X, y)
    copies = [3, 10, 11]
    assert model.pip_[copies].max() - model.pip_[copies].min() < 0.1
    assert model.coef_[copies].sum() == pytest.approx(2.0, abs=0.4)
    assert np.delete(model.pip_, copies).max() < 0.3


def test_prediction_intervals_cover(rng):
    X, y, beta = _data(rng, n=200)
    model = _quick(n_iter=1000).fit(X[:80], y[:80])
    new_X = X[rng.integers(0, 200, 3000)]
    new_y = new_X @ beta + 7.0 + 0.5 * rng.standard_normal(3000)
    lower, upper = model.predict_interval(new_X, 0.9).T
    assert np.mean((lower < new_y) & (new_y < upper)) == pytest.approx(0.9, abs=0.06)
    mean, std = model.predict(new_X, return_std=True)
    assert (upper - lower) / (2 * 1.645) == pytest.approx(std, rel=0.15)
    assert (upper + lower) / 2 == pytest.approx(mean, abs=0.15)


def test_partial_fit_is_exact(rng):
    X, y, _ = _data(rng)
    whole = _quick().fit(X, y)
    stream = _quick()
    for i in range(0, 80, 20):
        stream.partial_fit(X[i : i + 20], y[i : i + 20])
    assert stream.coef_ == pytest.approx(whole.coef_, rel=1e-5, abs=1e-8)
    more = _quick().partial_fit(X, y, num_data=8000)
    assert more.coef_std_[2] == pytest.approx(whole.coef_std_[2] / 10, rel=0.2)
    stream.fit(X[:40], y[:40]).partial_fit(X, y)
    assert stream.coef_ == pytest.approx(whole.coef_, rel=1e-5, abs=1e-8)


@pytest.mark.parametrize("method", ["sgld-sa", "sgld-em", "sgld"])
def test_the_papers_methods_run(method, rng):
    X, y, _ = _data(rng, n=60, p=20)
    options = SGLDOptions(step=(0.0003, 0.0, 1 / 3))
    model = SpikeSlabRegressor(method, n_chains=1, n_iter=8000, burn_in=2000, random_state=0, sgld=options).fit(X, y)
    assert model.method_ == method
    assert model.score(X, y) > 0.8
    if method != "sgld":
        assert model.get_support(indices=True).tolist() == [2, 5]


def test_other_errors(rng):
    X, y, _ = _data(rng)
    with pytest.raises(TypeError) as error:
        SpikeSlabRegressor("sgld", sgld={"v0": 1}).fit(X, y)
    assert str(error.value) == "sgld must be an SGLDOptions or None, but got {'v0': 1}."
    options = SGLDOptions()
    options.v0 = -1.0
    with pytest.raises(ValueError, match=r"v0 must be a number > 0"):
        SpikeSlabRegressor("sgld", sgld=options).fit(X, y)
    model = _quick().fit(X, y)
    for call, message in (
        (lambda: model.coef_interval(1.5), "level must be a number in (0, 1), but got 1.5."),
        (lambda: model.get_support(fdr=0), "fdr must be a number in (0, 1), but got 0."),
        (lambda: model.partial_fit(X, y, num_data=0), "num_data must be an integer >= 1, but got 0."),
    ):
        with pytest.raises(ValueError) as error:
            call()
        assert str(error.value) == message


def test_predictions_do_not_depend_on_the_order_in_memory(rng):
    X, y, _ = _data(rng)
    model = _quick().fit(X, y)
    columns = np.asfortranarray(X)
    assert model.predict(columns).tolist() == model.predict(X).tolist()
    assert model.predict_interval(columns).tolist() == model.predict_interval(X).tolist()


@pytest.mark.parametrize("always", [None, [1]])
def test_prior_weights_belong_to_their_columns(always, rng):
    X = rng.standard_normal((40, 6))
    X[:, 0] = 1.0  # left out: the weights of the others must not shift
    y = 0.25 * X[:, 2] + 0.25 * X[:, 4] + rng.standard_normal(40)
    model = SpikeSlabRegressor(n_chains=2, n_iter=4000, random_state=0, always=always)
    plain = model.fit(X, y).pip_
    weighted = model.set_params(prior_weights={"x4": 5.0}).fit(X, y).pip_
    assert weighted[4] / (1 - weighted[4]) == pytest.approx(5.0 * plain[4] / (1 - plain[4]), rel=0.15)
    assert weighted[2] == pytest.approx(plain[2], abs=0.08)
    by_index = model.set_params(prior_weights={4: 5.0}).fit(X, y).pip_
    by_array = model.set_params(prior_weights=[1, 1, 1, 1, 5, 1]).fit(X, y).pip_
    assert (by_index == weighted).all()
    assert (by_array == weighted).all()


@pytest.mark.parametrize(
    ("weights", "message"),
    [
        ({"x9": 2.0}, "prior_weights must hold names of columns, or indices below 3, but got 'x9'."),
        ({"x1": 0.0}, "prior_weights['x1'] must be a number > 0, but got 0.0."),
        (
            [1.0, 2.0],
            "prior_weights must be a mapping, or hold a number for each of 3 columns, but got the shape (2,).",
        ),
        ([1.0, -2.0, 1.0], "prior_weights must hold numbers > 0, but got -2.0."),
        ([1.0, np.inf, 1.0], "prior_weights must hold numbers > 0, but got inf."),
        (["a", 1, 1], "prior_weights must hold numbers > 0, but got ['a', 1, 1]."),
    ],
)
def test_errors_of_prior_weights(weights, message, rng):
    X = rng.standard_normal((20, 3))
    with pytest.raises((TypeError, ValueError)) as error:
        SpikeSlabRegressor(prior_weights=weights, n_iter=5).fit(X, X[:, 0])
    assert str(error.value) == message
