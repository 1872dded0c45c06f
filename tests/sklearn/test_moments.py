import numpy as np
import pytest
from scipy import sparse

from spikeslab.sklearn import _moments
from spikeslab.sklearn._moments import Moments, standardise

FIELDS = ("n", "x_mean", "y_mean", "xx", "xy", "yy")


def _same(a, b):
    for field in FIELDS:
        assert getattr(a, field) == pytest.approx(getattr(b, field), rel=1e-9, abs=1e-9)


def test_batches_merge_to_the_whole(rng):
    X, y = rng.standard_normal((50, 4)) + 100.0, rng.standard_normal(50) - 30.0
    parts = [Moments.of(X[i : i + 17], y[i : i + 17]) for i in range(0, 50, 17)]
    _same(parts[0].merge(parts[1]).merge(parts[2]), Moments.of(X, y))


def test_blocks_do_not_matter(rng, monkeypatch):
    X, y = rng.standard_normal((50, 4)), rng.standard_normal(50)
    whole = Moments.of(X, y)
    monkeypatch.setattr(_moments, "BLOCK", 28)
    _same(Moments.of(X, y), whole)


def test_sparse_equals_dense(rng):
    X = sparse.csr_array(rng.random((40, 6)) * (rng.random((40, 6)) < 0.3))
    y = rng.standard_normal(40)
    _same(Moments.of(X, y), Moments.of(X.toarray(), y))


def test_standardised_sums_are_those_of_standardised_columns(rng):
    X, y = rng.standard_normal((30, 5)) * [1, 10, 0, 2, 3] + 5, rng.standard_normal(30) * 7 + 2
    data, scaling = Moments.of(X, y).standardise()
    columns, other = standardise(X)
    assert scaling.kept.tolist() == other.kept.tolist() == [0, 1, 3, 4]
    z = (y - y.mean()) / y.std()
    assert data.gram == pytest.approx(columns @ columns.T, abs=1e-9)
    assert data.xty == pytest.approx(columns @ z, abs=1e-9)
    assert data.yty == pytest.approx(30.0)
    assert np.diag(data.gram) == pytest.approx(30.0)


def test_rescaling_keeps_the_means_and_multiplies_the_sums(rng):
    moments = Moments.of(rng.standard_normal((10, 2)), rng.standard_normal(10))
    larger = moments.rescale(40)
    assert larger.n == 40
    assert larger.xx == pytest.approx(4 * moments.xx)
    assert larger.x_mean == pytest.approx(moments.x_mean)
