"""Accuracy, log score, Brier score and calibration of class probabilities.

Everywhere ``probabilities`` has shape (rows, classes), rows summing to 1, and ``labels`` has shape (rows,).
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import nll_loss, one_hot

from spikeslab.errors import ArgumentTypeError, ArgumentValueError, NonFiniteError, Phrase, check_count, mark

BINS = 15


def accuracy(probabilities: Tensor, labels: Tensor) -> float:
    """Return the share of rows whose most probable class is right.

    >>> accuracy(torch.tensor([[0.9, 0.1], [0.6, 0.4]]), torch.tensor([0, 1]))
    0.5
    """
    check_predictions(probabilities, labels)
    return float((probabilities.argmax(dim=1) == labels).double().mean())


def negative_log_likelihood(probabilities: Tensor, labels: Tensor) -> float:
    """Return the mean of -log P(right class) in nats; infinite if one of these probabilities is 0."""
    check_predictions(probabilities, labels)
    return float(nll_loss(probabilities.double().log(), labels.long()))


def brier_score(probabilities: Tensor, labels: Tensor) -> float:
    """Return the mean squared distance of the probabilities from the one-hot label, summed over classes: 0 to 2."""
    check_predictions(probabilities, labels)
    errors = probabilities.double() - one_hot(labels.long(), probabilities.shape[1])
    return float(errors.square().sum(dim=1).mean())


@dataclass(frozen=True)
class Reliability:
    """Confidence against accuracy in bins of equal width over (0, 1]; empty bins hold NaN.

    Attributes:
        confidence: Mean probability of the most probable class in each bin.
        accuracy: Share of right rows in each bin.
        count: Rows in each bin.
    """

    confidence: Tensor
    accuracy: Tensor
    count: Tensor


def reliability_curve(probabilities: Tensor, labels: Tensor, bins: int = BINS) -> Reliability:
    """Compute the reliability curve; bin i holds the rows with a largest probability in (i/bins, (i+1)/bins]."""
    check_predictions(probabilities, labels)
    bins = check_count("bins", bins)
    confidence, predicted = probabilities.double().max(dim=1)
    right = (predicted == labels).double()
    position = (confidence * bins).ceil().long().clamp(1, bins) - 1
    count = torch.bincount(position, minlength=bins)
    return Reliability(
        confidence=torch.bincount(position, confidence, minlength=bins) / count,
        accuracy=torch.bincount(position, right, minlength=bins) / count,
        count=count,
    )


def expected_calibration_error(probabilities: Tensor, labels: Tensor, bins: int = BINS) -> float:
    """Return the mean gap of confidence and accuracy over the bins, weighted by their rows (Naeini et al., 2015)."""
    curve = reliability_curve(probabilities, labels, bins)
    gaps = (curve.confidence - curve.accuracy).abs()
    return float((torch.where(curve.count > 0, gaps, 0.0) * curve.count).sum() / curve.count.sum())


def check_predictions(probabilities: Tensor, labels: Tensor) -> None:
    """Raise unless there is a label among the classes for each row of finite probabilities."""
    if probabilities.ndim != 2 or labels.shape != probabilities.shape[:1] or not len(labels):
        expectation = f"must have shape (rows, classes) and {mark('labels')} (rows,) with at least one row"
        got = Phrase(f"got {tuple(probabilities.shape)} and {tuple(labels.shape)}")
        raise ArgumentValueError("probabilities", expectation, got)
    broken = int((~probabilities.isfinite()).any(dim=1).sum())
    if broken:
        raise NonFiniteError(f"probabilities must be finite, but got NaN or Inf in {broken:,} of {len(labels):,} rows.")
    if labels.is_floating_point() or labels.is_complex():
        raise ArgumentTypeError("labels", "must be integers", labels.dtype)
    low, high, last = int(labels.min()), int(labels.max()), probabilities.shape[1] - 1
    if low < 0 or high > last:
        raise ArgumentValueError("labels", f"must be classes from 0 to {last}", low if low < 0 else high)
