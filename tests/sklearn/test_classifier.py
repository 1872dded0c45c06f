import numpy as np
import pandas as pd
import pytest
from scipy import sparse
from sklearn.feature_selection import SelectFromModel
from sklearn.model_selection import cross_val_score
from sklearn.utils.estimator_checks import check_estimator

from spikeslab.sklearn import SGLDOptions, SpikeSlabClassifier


def _quick(**kwargs):
    return SpikeSlabClassifier(**{"n_chains": 2, "n_iter": 150, "burn_in": 80, "random_state": 0, **kwargs})


def _binary(rng, n=300, p=40):
    X = rng.standard_normal((n, p)) * 4.0 + 10.0
    odds = (X[:, 1] - 10.0) / 2.0 - (X[:, 3] - 10.0) / 2.0
    return X, np.where(rng.random(n) < 1 / (1 + np.exp(-odds)), "yes", "no")


def _four(rng, n=400, p=15):
    X = rng.standard_normal((n, p))
    psi = np.zeros((4, n))
    psi[0], psi[1], psi[2] = 2.5 * X[:, 0], -2.5 * X[:, 1], 2.0 * X[:, 2]
    return X, np.array(list("abcd"))[(psi + rng.gumbel(size=psi.shape)).argmax(0)]


@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
def test_check_estimator():
    check_estimator(_quick())


def test_two_classes(rng):
    X, y = _binary(rng)
    model = SpikeSlabClassifier(random_state=0).fit(X, y)
    assert model.method_ == "gibbs"
    assert model.classes_.tolist() == ["no", "yes"]
    assert model.get_support(indices=True).tolist() == [1, 3]
    assert model.coef_.shape == (1, 40)
    assert model.coef_[0, [1, 3]] == pytest.approx([0.5, -0.5], abs=0.2)
    assert model.intercept_.shape == (1,)
    assert model.coef_interval().shape == (40, 2)
    proba = model.predict_proba(X)
    assert proba.sum(1) == pytest.approx(1.0)
    assert model.predict(X).tolist() == model.classes_[proba.argmax(1)].tolist()
    assert max(model.rhat_.values()) < 1.05


def test_probabilities_are_averaged_not_the_linear_predictors(rng):
    X, y = _binary(rng, n=60)
    model = _quick().fit(X, y)
    far = X + 40.0 * (X - X.mean(0))
    psi = next(iter(model._posterior.linear_predictor(far)))[1][:, :, 0]
    assert model.predict_proba(far)[:, 1] == pytest.approx((1 / (1 + np.exp(-psi))).mean(1))


def test_four_classes(rng):
    X, y = _four(rng)
    model = _quick(n_iter=300, burn_in=200).fit(pd.DataFrame(X, columns=[f"f{j}" for j in range(15)]), y)
    assert model.coef_.shape == (4, 15)
    assert model.pip_.shape == (15,)
    assert model.get_support(indices=True).tolist() == [0, 1, 2]
    assert model.score(X, y) > 0.6
    assert model.coef_interval(0.5).shape == (4, 15, 2)
    table = model.summary(threshold=0.5)
    assert table.index.names == ["feature", "class"]
    assert len(table) == 12
    pytest.importorskip("arviz")
    assert model.to_arviz(threshold=0.5).posterior["coef"].shape == (2, 300, 4, 3)


def test_rare_class_sparse_input_and_selection(rng):
    X = sparse.csr_array(rng.random((400, 60)) * (rng.random((400, 60)) < 0.2))
    odds = 8.0 * X[:, [4]].toarray()[:, 0] - 4.0
    y = rng.random(400) < 1 / (1 + np.exp(-odds))
    assert y.mean() < 0.15
    model = _quick().fit(X, y)
    assert model.get_support(indices=True).tolist() == [4]
    assert model.coef_ == pytest.approx(_quick().fit(X.toarray(), y).coef_, abs=1e-6)
    selector = SelectFromModel(model, importance_getter="pip_", threshold=0.5, prefit=True)
    assert selector.get_support(indices=True).tolist() == [4]
    assert cross_val_score(_quick(), X, y, cv=2, scoring="neg_log_loss").mean() > -0.5


@pytest.mark.parametrize("method", ["sgld-sa", "sgld-em", "sgld"])
def test_the_papers_methods_run(method, rng):
    options = SGLDOptions(v0=0.01, step=(0.0005, 0.0, 1 / 3))
    for X, y in (_binary(rng), _four(rng)):
        model = SpikeSlabClassifier(method, n_chains=1, n_iter=3000, burn_in=1000, random_state=0, sgld=options).fit(
            X, y
        )
        assert model.method_ == method
        assert model.score(X, y) > 0.5


@pytest.mark.parametrize(
    ("shape", "n_classes", "method"),
    [
        ((500, 1000), 2, "gibbs"),
        ((70, 4000), 2, "gibbs"),
        ((50_000, 50), 2, "minibatch"),
        ((50_000, 20_000), 2, "gibbs"),
        ((5000, 10), 4, "minibatch"),
        ((4000, 5000), 2, "gibbs"),
    ],
)
def test_auto_method(shape, n_classes, method):
    assert SpikeSlabClassifier()._choose_method(shape, n_classes) == method


def test_errors(rng):
    X, y = _binary(rng)
    with pytest.raises(ValueError) as error:
        SpikeSlabClassifier().fit(X, np.zeros(300, dtype=int))
    assert str(error.value) == "y must hold at least 2 classes, but got 1 class: 0."
    with pytest.raises(ValueError) as error:
        _quick().partial_fit(X, y)
    assert str(error.value) == "classes must be given at the first call of partial_fit, but got None."
    with pytest.raises(ValueError) as error:
        _quick().partial_fit(X, y, classes=["no", "maybe"])
    assert str(error.value) == "y must hold only the given classes ['maybe', 'no'], but got ['yes']."
    model = _quick().partial_fit(X, y, classes=["no", "yes"])
    with pytest.raises(ValueError) as error:
        model.partial_fit(X, y, classes=["a", "b"])
    assert str(error.value) == "classes must be the same at every call, ['no', 'yes'], but got ['a', 'b']."
