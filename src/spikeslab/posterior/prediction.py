"""A predictive mean with its variance split, accumulated one sample at a time."""

from __future__ import annotations

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
    """Weighted running mean and variance; Welford's update keeps a small epistemic variance from cancelling."""

    def __init__(self) -> None:
        self._total = 0.0
        self._moments: tuple[Tensor, Tensor, Tensor] | None = None

    def add(self, value: Tensor, noise: Tensor, weight: float) -> None:
        """Add what one sample predicts, and the variance of the data around it."""
        if self._moments is None:
            self._moments = torch.zeros_like(value), torch.zeros_like(value), torch.zeros_like(value)
        mean, squares, aleatoric = self._moments
        self._total += weight
        change = value - mean
        mean = mean + change * (weight / self._total)
        self._moments = mean, squares + weight * change * (value - mean), aleatoric + weight * noise

    def result(self) -> Prediction:
        """The prediction of all samples added."""
        if self._moments is None:
            raise RuntimeError("an average needs at least one sample.")
        mean, squares, aleatoric = self._moments
        return Prediction(mean, aleatoric / self._total, squares / self._total)


def probabilities(outputs: Tensor) -> Tensor:
    """Softmax over dimension 1, the classes of ``F.cross_entropy``; right for logits and for log-probabilities."""
    return outputs.softmax(dim=1)
