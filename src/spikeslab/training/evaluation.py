"""How good a classifier is, as a callable for :class:`~spikeslab.training.Evaluate`."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from spikeslab.errors import check_count
from spikeslab.metrics import (
    accuracy,
    brier_score,
    expected_calibration_error,
    negative_log_likelihood,
    reliability_curve,
)
from spikeslab.posterior.eval_mode import eval_mode
from spikeslab.weights import to_device_of


def describe_classifier(probabilities: Tensor, labels: Tensor) -> dict[str, Any]:
    """Accuracy, NLL, Brier score, ECE and the reliability curve, in JSON's types."""
    curve = reliability_curve(probabilities, labels)
    return {
        "accuracy": accuracy(probabilities, labels),
        "nll": negative_log_likelihood(probabilities, labels),
        "brier": brier_score(probabilities, labels),
        "ece": expected_calibration_error(probabilities, labels),
        "rows": len(labels),
        "reliability": {name: getattr(curve, name).tolist() for name in ("confidence", "accuracy", "count")},
    }


class ClassifierEvaluation:
    """Evaluates a model as it is now, in evaluation mode.

    Args:
        model: The model, whose outputs are logits.
        x: Inputs.
        y: Labels.
        batch_size: Rows that are predicted at once.
    """

    def __init__(self, model: nn.Module, x: Tensor, y: Tensor, batch_size: int = 1000) -> None:
        self.model = model
        self.x = x
        self.y = y
        self.batch_size = check_count("batch_size", batch_size)

    @torch.no_grad()
    def __call__(self) -> dict[str, Any]:
        """What :func:`describe_classifier` says."""
        with eval_mode(self.model):
            parts = [self.model(to_device_of(self.model, x)).softmax(dim=1) for x in self.x.split(self.batch_size)]
        return describe_classifier(torch.cat(parts).to(self.y.device), self.y)
