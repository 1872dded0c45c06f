"""Evaluations of a classifier or of its posterior, callables for :class:`~spikeslab.training.Evaluate`."""

from __future__ import annotations

from dataclasses import asdict
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
from spikeslab.posterior import Chains, Posterior
from spikeslab.posterior.convergence import PREDICTIONS, assess, common_length, prediction_draws
from spikeslab.posterior.eval_mode import eval_mode
from spikeslab.weights import to_device_of


def describe_classifier(probabilities: Tensor, labels: Tensor) -> dict[str, Any]:
    """Return accuracy, NLL, Brier score, ECE and the reliability curve, in JSON types."""
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
    """Evaluation of the present model, in evaluation mode.

    Args:
        model: Model that returns logits.
        x: Inputs.
        y: Labels.
        batch_size: Number of rows per forward pass.
    """

    def __init__(self, model: nn.Module, x: Tensor, y: Tensor, batch_size: int = 1000) -> None:
        self.model = model
        self.x = x
        self.y = y
        self.batch_size = check_count("batch_size", batch_size)

    @torch.no_grad()
    def __call__(self) -> dict[str, Any]:
        """Return the numbers of :func:`describe_classifier`."""
        with eval_mode(self.model):
            parts = [self.model(to_device_of(self.model, x)).softmax(dim=1) for x in self.x.split(self.batch_size)]
        return describe_classifier(torch.cat(parts).to(self.y.device), self.y)


class PosteriorEvaluation:
    """Evaluation of the average over samples; of the present model while there are none.

    The result includes R-hat and effective sample sizes of the predictions, which the doctor and the report read from
    ``evaluation.json``. Weights of chains that agree may still differ, since hidden units can be permuted.

    Args:
        posterior: Posterior of one chain or of several.
        x: Inputs.
        y: Labels.
        batch_size: Number of rows per forward pass.
        compared: Number of leading rows whose predictions are compared between chains.
    """

    def __init__(
        self, posterior: Posterior | Chains, x: Tensor, y: Tensor, batch_size: int = 1000, compared: int = 100
    ) -> None:
        self.posterior = posterior
        self.x = x
        self.y = y
        self.batch_size = check_count("batch_size", batch_size)
        self.compared = check_count("compared", compared)

    def __call__(self) -> dict[str, Any]:
        """Return the numbers of :func:`describe_classifier`, and ``convergence``."""
        chains = self.posterior.posteriors if isinstance(self.posterior, Chains) else [self.posterior]
        if not all(map(len, chains)):
            return ClassifierEvaluation(chains[0].model, self.x, self.y, self.batch_size)()
        result = describe_classifier(self.posterior.predict(self.x, batch_size=self.batch_size), self.y)
        draws = prediction_draws(chains, (self.x[: self.compared],), self.batch_size, common_length(chains))
        return {**result, "convergence": [asdict(assess(PREDICTIONS, draws))]}
