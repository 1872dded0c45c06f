"""Evaluations of a classifier or of its posterior, callables for :class:`~spikeslab.training.Evaluate`."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

import torch
from torch import Tensor, nn

from spikeslab.errors import check_count
from spikeslab.forward_pass import Forward, ReadOutput, RunForward, find_layout, split_rows, to_device_of
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
        x: Inputs: a tensor, or a tuple or mapping of them.
        y: Labels, one for each row, or for each pixel or token of it.
        batch_size: Number of rows per forward pass.
        forward: Function from (model, inputs) to what the model returns; as for :func:`~spikeslab.compress`.
        output: Function from that to the logits; likewise.
    """

    def __init__(
        self,
        model: nn.Module,
        x: Any,
        y: Tensor,
        batch_size: int = 1000,
        *,
        forward: RunForward | None = None,
        output: ReadOutput | None = None,
    ) -> None:
        self.model = model
        self.x = x
        self.y = y
        self.batch_size = check_count("batch_size", batch_size)
        self.forward = Forward(forward, output)

    @torch.no_grad()
    def __call__(self) -> dict[str, Any]:
        """Return the numbers of :func:`describe_classifier`."""
        with eval_mode(self.model):
            parts = [self.forward(self.model, to_device_of(self.model, x)) for x in split_rows(self.x, self.batch_size)]
        logits = torch.cat(parts).to(self.y.device)
        rows, labels = find_layout(logits, self.y).flatten(logits, self.y)
        return describe_classifier(rows.softmax(dim=1), labels)


class PosteriorEvaluation:
    """Evaluation of the average over samples; of the present model while there are none.

    The result includes R-hat and effective sample sizes of the predictions, which the doctor and the report read from
    ``evaluation.json``. Weights of chains that agree may still differ, since hidden units can be permuted.

    Args:
        posterior: Posterior of one chain or of several.
        x: Inputs: a tensor, or a tuple or mapping of them.
        y: Labels, one for each row, or for each pixel or token of it.
        batch_size: Number of rows per forward pass.
        compared: Number of leading rows whose predictions are compared between chains.
    """

    def __init__(
        self, posterior: Posterior | Chains, x: Any, y: Tensor, batch_size: int = 1000, compared: int = 100
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
            own = vars(chains[0].forward)
            return ClassifierEvaluation(chains[0].model, self.x, self.y, self.batch_size, **own)()
        probabilities = self.posterior.predict(self.x, batch_size=self.batch_size).to(self.y.device)
        result = describe_classifier(*find_layout(probabilities, self.y).flatten(probabilities, self.y))
        some = next(split_rows(self.x, self.compared))
        draws = prediction_draws(chains, (some,), self.batch_size, common_length(chains))
        return {**result, "convergence": [asdict(assess(PREDICTIONS, draws))]}
