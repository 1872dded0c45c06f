import numpy as np
import pytest

from spikeslab.sklearn._class_patterns import class_patterns, derivatives, log_likelihood, restrict


def test_class_patterns():
    assert class_patterns(3).tolist() == [1, 2, 3, 4, 5, 6, 7]
    assert class_patterns(8).size == 8 + 28


def test_derivatives_are_those_of_the_log_likelihood(rng):
    x, labels, offsets = rng.standard_normal(30), rng.integers(0, 3, 30), rng.standard_normal((3, 30))
    b, gradient, hessian = rng.standard_normal(3), np.empty(3), np.empty((3, 3))

    def value(b):
        return log_likelihood(labels, offsets + b[:, None] * x, 1.0, np.zeros(3))

    derivatives(x, labels, offsets, b, gradient, hessian)
    step = 1e-4 * np.eye(3)
    assert gradient == pytest.approx([(value(b + e) - value(b - e)) / 2e-4 for e in step], rel=1e-5)
    for e, row in zip(step, hessian, strict=True):
        ends = np.empty((2, 3))
        for end, sign in zip(ends, (1.0, -1.0), strict=True):
            derivatives(x, labels, offsets, b + sign * e, end, np.empty((3, 3)))
        assert row == pytest.approx((ends[1] - ends[0]) / 2e-4, rel=1e-5)


def test_a_pattern_restricts_the_expansion_to_its_classes():
    slope, hessian = np.array([1.0, 2.0, 3.0]), np.arange(9.0).reshape(3, 3)
    chosen, precision, shift = restrict(0b101, slope, hessian, 0.5)
    assert chosen.tolist() == [0, 2]
    assert precision.tolist() == [[2.0, 2.0], [6.0, 10.0]]
    assert shift.tolist() == [1.0, 3.0]
