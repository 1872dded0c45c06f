from __future__ import annotations

import math

import pytest
import torch
from scipy.stats import norm

from spikeslab.metrics import (
    gaussian_log_score,
    interval_coverage,
    mean_absolute_error,
    mean_squared_error,
    root_mean_squared_error,
)


def test_errors_by_hand() -> None:
    prediction, target = torch.tensor([1.0, 2.0, 3.0]), torch.tensor([1.0, 4.0, 2.0])
    assert mean_absolute_error(prediction, target) == pytest.approx(1.0)
    assert mean_squared_error(prediction, target) == pytest.approx(5.0 / 3.0)
    assert root_mean_squared_error(prediction, target) == pytest.approx(math.sqrt(5.0 / 3.0))


def test_log_score_against_scipy() -> None:
    mean, variance, target = torch.randn(50), torch.rand(50) + 0.1, torch.randn(50)
    expected = norm.logpdf(target.numpy(), mean.numpy(), variance.sqrt().numpy()).mean()
    assert gaussian_log_score(mean, variance, target) == pytest.approx(float(expected), rel=1e-5)


def test_coverage() -> None:
    mean, variance = torch.zeros(4), torch.tensor([1.0, 1.0, 4.0, 4.0])
    target = torch.tensor([1.6, -1.7, 3.2, 3.3])  # the 90 % interval is 1.645 standard deviations
    assert interval_coverage(mean, variance, target) == 0.5
    honest = interval_coverage(torch.zeros(100_000), torch.ones(100_000), torch.randn(100_000), level=0.8)
    assert honest == pytest.approx(0.8, abs=0.006)


def test_bad_input() -> None:
    for call, message in (
        (
            lambda: mean_squared_error(torch.zeros(3, 1), torch.zeros(3)),
            r"^prediction must have the shape of a target with at least one number, \(3,\), but got \(3, 1\)\.$",
        ),
        (
            lambda: interval_coverage(torch.zeros(3), torch.ones(3), torch.zeros(3), level=90),
            r"^level must be a number in \(0, 1\), but got 90\.$",
        ),
    ):
        with pytest.raises(ValueError, match=message):
            call()
