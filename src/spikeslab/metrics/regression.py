"""Errors, log score and coverage of regression predictions; all tensors have the shape of ``target``."""

from __future__ import annotations

import math
from statistics import NormalDist

from torch import Tensor

from spikeslab.errors import ArgumentValueError, check_number


def mean_absolute_error(prediction: Tensor, target: Tensor) -> float:
    """Return the mean of the absolute errors."""
    return float(_errors(prediction, target).abs().mean())


def mean_squared_error(prediction: Tensor, target: Tensor) -> float:
    """Return the mean of the squared errors."""
    return float(_errors(prediction, target).square().mean())


def root_mean_squared_error(prediction: Tensor, target: Tensor) -> float:
    """Return the square root of the mean squared error, in units of the target."""
    return math.sqrt(mean_squared_error(prediction, target))


def gaussian_log_score(mean: Tensor, variance: Tensor, target: Tensor) -> float:
    """Return the mean log density of the target under independent normal predictions; larger is better."""
    errors, variance = _errors(mean, target), variance.double()
    return float((-0.5 * (2.0 * math.pi * variance).log() - errors.square() / (2.0 * variance)).mean())


def interval_coverage(mean: Tensor, variance: Tensor, target: Tensor, level: float = 0.9) -> float:
    """Return the share of targets inside the central normal interval of probability ``level``; ideally ``level``."""
    level = check_number("level", level, "(0, 1)")
    half_width = NormalDist().inv_cdf(0.5 + level / 2.0) * variance.double().sqrt()
    return float((_errors(mean, target).abs() <= half_width).double().mean())


def _errors(prediction: Tensor, target: Tensor) -> Tensor:
    if prediction.shape != target.shape or not target.numel():
        expectation = f"must have the shape of a target with at least one number, {tuple(target.shape)}"
        raise ArgumentValueError("prediction", expectation, tuple(prediction.shape))
    return prediction.double() - target.double()
