from __future__ import annotations

import math

import pytest
import torch
from sklearn.metrics import log_loss
from torchmetrics.functional.classification import multiclass_calibration_error

from spikeslab.errors import NonFiniteError
from spikeslab.metrics import (
    accuracy,
    brier_score,
    expected_calibration_error,
    negative_log_likelihood,
    reliability_curve,
)

PROBABILITIES = torch.tensor(
    [[0.7, 0.2, 0.1], [0.1, 0.6, 0.3], [0.3, 0.3, 0.4], [0.9, 0.05, 0.05]], dtype=torch.float64
)
LABELS = torch.tensor([0, 2, 2, 0])


def test_by_hand() -> None:
    assert accuracy(PROBABILITIES, LABELS) == 0.75
    expected = -(math.log(0.7) + math.log(0.3) + math.log(0.4) + math.log(0.9)) / 4
    assert negative_log_likelihood(PROBABILITIES, LABELS) == pytest.approx(expected)
    squares = (0.3**2 + 0.2**2 + 0.1**2) + (0.1**2 + 0.6**2 + 0.7**2) + (0.3**2 + 0.3**2 + 0.6**2) + (0.1**2 + 0.005)
    assert brier_score(PROBABILITIES, LABELS) == pytest.approx(squares / 4, rel=1e-6)
    # two bins: (0, 0.5] holds confidence 0.4, right; (0.5, 1] holds 0.7, 0.6, 0.9, of which two are right
    gaps = 1 * abs(0.4 - 1.0) + 3 * abs(2.2 / 3 - 2 / 3)
    assert expected_calibration_error(PROBABILITIES, LABELS, bins=2) == pytest.approx(gaps / 4, rel=1e-6)


def test_against_scikit_learn_and_torchmetrics() -> None:
    probabilities = torch.randn(2000, 5, dtype=torch.float64).mul(2.0).softmax(1)
    labels = torch.randint(5, (2000,))
    reference = log_loss(labels.numpy(), probabilities.numpy())
    assert negative_log_likelihood(probabilities, labels) == pytest.approx(reference, rel=1e-6)
    calibration = multiclass_calibration_error(probabilities, labels, num_classes=5, n_bins=15)
    assert expected_calibration_error(probabilities, labels) == pytest.approx(calibration.item(), abs=1e-6)


def test_a_forecaster_that_is_right_about_itself_has_little_calibration_error() -> None:
    probabilities = torch.randn(200_000, 3).softmax(1)
    labels = probabilities.multinomial(1).squeeze(1)
    assert expected_calibration_error(probabilities, labels) < 0.005


def test_the_reliability_curve_holds_every_row_once_and_nan_where_there_is_none() -> None:
    curve = reliability_curve(PROBABILITIES, LABELS, bins=10)
    assert curve.count.tolist() == [0, 0, 0, 1, 0, 1, 1, 0, 1, 0]
    assert curve.accuracy[3] == 1.0
    assert curve.accuracy[0].isnan()
    sure = reliability_curve(torch.tensor([[1.0, 0.0]]), torch.tensor([0]), bins=10)
    assert sure.count.tolist() == [0] * 9 + [1]


def test_a_certain_error_is_infinitely_bad() -> None:
    assert negative_log_likelihood(torch.tensor([[1.0, 0.0]]), torch.tensor([1])) == math.inf


def test_other_shapes_and_no_bin_are_refused() -> None:
    shapes = r"^probabilities must have shape \(rows, classes\) and labels \(rows,\) .* got \(4, 3\) and \(4, 1\)\.$"
    for labels, bins, message in (
        (LABELS[:, None], 15, shapes),
        (LABELS, 0, r"^bins must be an integer >= 1, but got 0\.$"),
    ):
        with pytest.raises(ValueError, match=message):
            expected_calibration_error(PROBABILITIES, labels, bins=bins)


@pytest.mark.parametrize("value", [math.nan, math.inf])
@pytest.mark.parametrize("metric", [accuracy, brier_score, expected_calibration_error, negative_log_likelihood])
def test_what_is_no_number_is_not_well_calibrated(metric, value: float) -> None:
    broken = PROBABILITIES.clone()
    broken[1] = value
    with pytest.raises(NonFiniteError, match=r"^probabilities must be finite, but got NaN or Inf in 1 of 4 rows\.$"):
        metric(broken, LABELS)


@pytest.mark.parametrize("metric", [accuracy, brier_score, expected_calibration_error, negative_log_likelihood])
def test_labels_are_classes(metric) -> None:
    for labels, error, message in (
        (torch.tensor([0, 2, 2, 3]), ValueError, "classes from 0 to 2, but got 3"),
        (torch.tensor([0, 2, 2, -1]), ValueError, "classes from 0 to 2, but got -1"),
        (LABELS.float(), TypeError, r"integers, but got torch\.float32"),
    ):
        with pytest.raises(error, match=rf"^labels must be {message}\.$"):
            metric(PROBABILITIES, labels)
    assert (
        metric(PROBABILITIES, LABELS.to(torch.uint8))
        == metric(PROBABILITIES, LABELS.int())
        == metric(PROBABILITIES, LABELS)
    )
