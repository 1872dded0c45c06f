import numpy as np
import pytest

from spikeslab.sklearn import SpikeSlabClassifier
from spikeslab.sklearn._quadratic import column_scaling, expand


def _binary(rng, n=3000, p=10):
    X = 2.0 * rng.standard_normal((n, p)) + 1.0
    y = rng.random(n) < 1 / (1 + np.exp(-0.4 * X[:, 0] + 0.3 * X[:, 1] + 0.5))
    return X, y.astype(int)


@pytest.mark.parametrize("vectors", [1, 3])
def test_slope_and_curvature_are_derivatives_of_the_log_likelihood(vectors, rng):
    X, labels = rng.standard_normal((40, 2)), rng.integers(0, 2 if vectors == 1 else 3, 40)
    scaling, theta, h = column_scaling(X), 0.3 * rng.standard_normal((vectors, 3)), 1e-5

    def gradient(at):
        e = expand(X, labels, at, scaling)
        return (e.slope.ravel() - e.curvature.reshape(at.size, -1) @ at.ravel()), e.log_likelihood

    shifts = [h * np.eye(theta.size)[i].reshape(theta.shape) for i in range(theta.size)]
    numeric = [(gradient(theta + s)[1] - gradient(theta - s)[1]) / (2 * h) for s in shifts]
    assert gradient(theta)[0] == pytest.approx(numeric, abs=1e-5)
    second = [(gradient(theta - s)[0] - gradient(theta + s)[0]) / (2 * h) for s in shifts]
    curvature = expand(X, labels, theta, scaling).curvature.reshape(theta.size, -1)
    assert curvature == pytest.approx(np.array(second), abs=1e-4)


def test_agrees_with_the_exact_sampler(rng):
    X, y = _binary(rng)
    exact = SpikeSlabClassifier("gibbs", n_chains=2, random_state=0).fit(X, y)
    quick = SpikeSlabClassifier("minibatch", n_chains=2, random_state=0).fit(X, y)
    assert quick.coef_ == pytest.approx(exact.coef_, abs=0.3 * exact.coef_std_.max())
    assert quick.coef_std_[0, :2] == pytest.approx(exact.coef_std_[0, :2], rel=0.15)
    assert quick.pip_ == pytest.approx(exact.pip_, abs=0.06)
    assert quick.predict_proba(X) == pytest.approx(exact.predict_proba(X), abs=0.01)


def test_batches_agree_with_the_whole(rng):
    X, y = _binary(rng)
    whole = SpikeSlabClassifier("minibatch", n_chains=2, random_state=0).fit(X, y)
    stream = SpikeSlabClassifier(n_chains=2, random_state=0)
    for i in range(0, 3000, 1000):
        stream.partial_fit(X[i : i + 1000], y[i : i + 1000], classes=[0, 1])
    assert stream.coef_ == pytest.approx(whole.coef_, abs=0.4 * whole.coef_std_.max())
    assert stream.get_support(indices=True).tolist() == [0, 1]


@pytest.mark.parametrize("classes", [2, 3])
def test_a_constant_column_is_never_included(classes, rng):
    X = rng.standard_normal((300, 4))
    X[:, 2] = 5.0
    y = (X[:, 0] > 0).astype(int) + (classes == 3) * (X[:, 1] > 0)
    for method in ("minibatch", "gibbs"):
        model = SpikeSlabClassifier(method, n_chains=1, n_iter=100, burn_in=50, random_state=0).fit(X, y)
        assert model.pip_[2] == 0.0
        assert np.all(model.coef_[:, 2] == 0.0)


def test_num_data_sharpens_the_posterior(rng):
    X, y = _binary(rng, n=1000)
    few = SpikeSlabClassifier(n_chains=2, random_state=0).partial_fit(X, y, classes=[0, 1])
    many = SpikeSlabClassifier(n_chains=2, random_state=0).partial_fit(X, y, classes=[0, 1], num_data=100_000)
    assert many.coef_std_[0, 0] == pytest.approx(few.coef_std_[0, 0] / 10, rel=0.15)
