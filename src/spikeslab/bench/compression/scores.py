"""Scores of a predictor on the test rows, and what it scored on each of them."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor, nn

from spikeslab.bench.compression.networks import Batch, StudyData, StudyNetwork, predict
from spikeslab.errors import NonFiniteError
from spikeslab.metrics import expected_calibration_error
from spikeslab.posterior import Posterior

SMALLEST = 1e-30
"""Probability in place of one that was rounded to zero."""
CORRECT, LOG_PROB, SQUARE = "correct", "log_prob", "square"


class Scores(NamedTuple):
    """Numbers by name, and tensors with one number for each test row (each character of a text)."""

    numbers: dict[str, float]
    rows: dict[str, Tensor]


def score_network(network: StudyNetwork, data: StudyData, model: nn.Module) -> Scores:
    """Score a network."""
    link = _identity if network.score == "rmse" else _probabilities
    return _score(network, data, lambda batches: predict(lambda x: link(model(x)), model, batches))


def score_posterior(network: StudyNetwork, data: StudyData, posterior: Posterior) -> Scores:
    """Score the posterior average: the mean of probabilities, or of regression means."""
    return _score(network, data, lambda batches: predict(posterior.predict, posterior.model, batches))


def _identity(outputs: Tensor) -> Tensor:
    return outputs


def _probabilities(outputs: Tensor) -> Tensor:
    return outputs.double().softmax(dim=1)


def _score(network: StudyNetwork, data: StudyData, predict_all: Callable[[list[Batch]], Tensor]) -> Scores:
    score = score_regression if network.score == "rmse" else score_classes
    held_out = score(predict_all(data.held_out), _targets(data.held_out))
    variance = held_out.numbers["rmse"] ** 2 if network.score == "rmse" else None
    found = score(predict_all(data.test), _targets(data.test), variance)
    kept = {f"held_out_{name}": value for name, value in held_out.numbers.items() if name != "ece"}
    return Scores(found.numbers | kept, found.rows)


def _targets(batches: list[Batch]) -> Tensor:
    return torch.cat([y for _, y in batches])


def score_classes(probabilities: Tensor, labels: Tensor, _: float | None = None) -> Scores:
    """Score probabilities with classes in dimension 1: accuracy, NLL and ECE.

    >>> score_classes(torch.tensor([[0.5, 0.5], [0.2, 0.8]]), torch.tensor([0, 1])).numbers["accuracy"]
    1.0
    """
    table = probabilities.movedim(1, -1).reshape(-1, probabilities.shape[1]).double()
    labels = labels.reshape(-1)
    _check_finite(table)
    right = table.argmax(dim=1) == labels
    log_prob = table.gather(1, labels[:, None]).squeeze(1).clamp_min(SMALLEST).log()
    numbers = {
        "accuracy": float(right.double().mean()),
        "nll": -float(log_prob.mean()),
        "ece": expected_calibration_error(table, labels),
    }
    return Scores(numbers, {CORRECT: right.to(torch.uint8), LOG_PROB: log_prob.to(torch.float16)})


def score_regression(means: Tensor, target: Tensor, variance: float | None = None) -> Scores:
    """Score regression means: RMSE, and NLL under a normal law whose variance was estimated on other rows.

    >>> round(score_regression(torch.zeros(2), torch.tensor([1.0, -1.0]), 1.0).numbers["nll"], 4)
    1.4189
    """
    errors = means.double().reshape(target.shape) - target.double()
    _check_finite(errors)
    squares = errors.square()
    variance = variance or float(squares.mean())
    log_prob = -0.5 * (math.log(2.0 * math.pi * variance) + squares / variance)
    numbers = {"rmse": math.sqrt(float(squares.mean())), "nll": -float(log_prob.mean())}
    return Scores(numbers, {SQUARE: squares.float(), LOG_PROB: log_prob.float()})


def _check_finite(values: Tensor) -> None:
    if not bool(values.isfinite().all()):
        raise NonFiniteError("The predictions must be finite, but the training diverged.")
