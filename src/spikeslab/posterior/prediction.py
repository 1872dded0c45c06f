"""Predictive mean and variance, accumulated some samples at a time."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import cast

import torch
from torch import Tensor

from spikeslab.errors import ArgumentValueError, Phrase, mark

FEW_CLASSES = 16


@dataclass(frozen=True)
class Prediction:
    """Predictive mean and variance, split by the law of total variance.

    Attributes:
        mean: Mean over the samples, of probabilities or of regression means.
        aleatoric: Mean over the samples of their predicted variance: the noise of the data.
        epistemic: Variance over the samples of their predictions: it shrinks with more data.
    """

    mean: Tensor
    aleatoric: Tensor
    epistemic: Tensor

    @property
    def variance(self) -> Tensor:
        """Total predictive variance."""
        return self.aleatoric + self.epistemic


class Average:
    """Weighted running mean and variance, updated by deviations from the mean so that small variances do not cancel."""

    def __init__(self) -> None:
        self._total = 0.0
        self._moments: tuple[Tensor, Tensor, Tensor] | None = None

    def add(self, values: Tensor, noises: Tensor, sample_weights: Sequence[float]) -> None:
        """Add predictions (samples, ...), variances of the data around them, and the weights of the samples."""
        total = math.fsum(sample_weights)
        shares = torch.tensor([weight / total for weight in sample_weights], dtype=values.dtype, device=values.device)
        mean = weighted_mean(shares, values)
        squares = total * weighted_mean(shares, (values - mean).square())
        aleatoric = total * weighted_mean(shares, noises)
        if self._moments is not None:
            # Chan, Golub and LeVeque's update, which is Welford's where there is one sample.
            old_mean, old_squares, old_aleatoric = self._moments
            change, share = mean - old_mean, total / (self._total + total)
            mean = old_mean + share * change
            squares = old_squares + squares + (self._total * share) * change.square()
            aleatoric = old_aleatoric + aleatoric
        self._moments = mean, squares, aleatoric
        self._total += total

    def result(self) -> Prediction:
        """Return the prediction of all samples added so far, at least one."""
        mean, squares, aleatoric = cast(tuple[Tensor, Tensor, Tensor], self._moments)
        return Prediction(mean, aleatoric / self._total, squares / self._total)


def average_terms(terms: Iterable[tuple[Tensor, Tensor, Sequence[float]]]) -> Prediction:
    """Return the prediction of all samples, given arguments of :meth:`Average.add`."""
    average = Average()
    for term in terms:
        average.add(*term)
    return average.result()


def weighted_mean(shares: Tensor, values: Tensor) -> Tensor:
    """Return the mean of values (samples, ...) over the samples, whose shares sum to 1."""
    return (shares @ values.flatten(1)).view(values.shape[1:])


def to_float(values: Tensor) -> Tensor:
    """Return the values as floating-point numbers, also for a link such as ``argmax`` that gives integers."""
    return values if values.is_floating_point() else values.to(torch.get_default_dtype())


def identity(outputs: Tensor) -> Tensor:
    """Return the outputs as they are."""
    return outputs


def probabilities(outputs: Tensor) -> Tensor:
    """Return the softmax over dimension 1, as in ``F.cross_entropy``, of logits or log-probabilities.

    Raises:
        ValueError: If there is one output for each row: its softmax would always be 1.
    """
    check_classes(outputs.shape)
    return softmax(outputs, dim=1)


def token_probabilities(outputs: Tensor) -> Tensor:
    """Return the softmax over the last dimension, for outputs of shape (batch, tokens, classes)."""
    return softmax(outputs, dim=outputs.ndim - 1)


def softmax(outputs: Tensor, dim: int) -> Tensor:
    """Return the softmax over a dimension.

    Over a last dimension of fewer than ``FEW_CLASSES``, torch's loop has no vectors to work with on a CPU: with the
    classes in front it takes a tenth of the time.
    """
    if dim != outputs.ndim - 1 or outputs.shape[dim] >= FEW_CLASSES or not outputs.is_cpu:
        return outputs.softmax(dim)
    return outputs.transpose(dim - 1, dim).contiguous().softmax(dim - 1).transpose(dim - 1, dim)


def check_classes(shape: torch.Size) -> None:
    """Raise unless outputs of this shape have classes in dimension 1."""
    if len(shape) < 2 or shape[1] < 2:
        raise ArgumentValueError(
            "model",
            "must return one output per class",
            Phrase(f"its outputs have the shape {tuple(shape)}"),
            f"give {mark('link', Phrase('torch.sigmoid'))} for a logit, or a {mark('likelihood')} for a regression",
        )
