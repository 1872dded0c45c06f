"""A predictive mean with its variance split, accumulated some samples at a time."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class Prediction:
    """A predictive mean and its variance, split by the law of total variance.

    Attributes:
        mean: Mean over the samples, of probabilities or of regression means.
        aleatoric: Mean over the samples of the variance that each predicts: the noise of the data.
        epistemic: Variance over the samples of what they predict: what more data would remove.
    """

    mean: Tensor
    aleatoric: Tensor
    epistemic: Tensor

    @property
    def variance(self) -> Tensor:
        """Total predictive variance."""
        return self.aleatoric + self.epistemic


class Average:
    """Weighted running mean and variance; deviations from means keep a small epistemic variance from cancelling."""

    def __init__(self) -> None:
        self._total = 0.0
        self._moments: tuple[Tensor, Tensor, Tensor] | None = None

    def add(self, values: Tensor, noises: Tensor, weights: Sequence[float]) -> None:
        """Add what some samples predict, and the variance of the data around it.

        Args:
            values: Predictions, (samples, ...).
            noises: Variances, likewise.
            weights: One for each sample.
        """
        total = math.fsum(weights)
        shares = torch.tensor([weight / total for weight in weights], dtype=values.dtype, device=values.device)
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
        """The prediction of all samples added."""
        if self._moments is None:
            raise RuntimeError("an average needs at least one sample.")
        mean, squares, aleatoric = self._moments
        return Prediction(mean, aleatoric / self._total, squares / self._total)


def weighted_mean(shares: Tensor, values: Tensor) -> Tensor:
    """Mean of values (samples, ...) over the samples, whose shares sum to 1."""
    return (shares @ values.flatten(1)).view(values.shape[1:])


def to_float(values: Tensor) -> Tensor:
    """The values, as floats where they are integers or truth values: those of a link such as ``argmax``."""
    return values if values.is_floating_point() else values.to(torch.get_default_dtype())


def identity(outputs: Tensor) -> Tensor:
    """Outputs that are averaged as they are."""
    return outputs


def probabilities(outputs: Tensor) -> Tensor:
    """Softmax over dimension 1, the classes of ``F.cross_entropy``; right for logits and for log-probabilities.

    Raises:
        ValueError: If there is one output for each row, of which a softmax would be 1 whatever it is.
    """
    check_classes(outputs.shape)
    return outputs.softmax(dim=1)


def check_classes(shape: torch.Size) -> None:
    """Raise unless outputs of this shape have classes in dimension 1."""
    if len(shape) < 2 or shape[1] < 2:
        raise ValueError(
            "link must be given where the model has one output, such as torch.sigmoid for a logit, or likelihood for a "
            f"regression, but got neither, and outputs of shape {tuple(shape)}."
        )
