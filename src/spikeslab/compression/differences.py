r"""Differences of two networks on the same rows, with their standard errors.

Both networks answer the same questions, so their scores are compared row by row: what the rows have in common cancels,
and the standard error of the difference is a fraction of that of either score.

=================  =======================  ===============================================
task               score of a row           difference, positive where the second is worse
=================  =======================  ===============================================
classification     1 if it is wrong         points of accuracy, :math:`100\,(e_2 - e_1)`
classification     negative log-likelihood  nats, :math:`e_2 - e_1`
regression         squared error            per cent of the RMSE, :math:`100\,(\sqrt{e_2/e_1} - 1)`
loss of one's own  mean of a batch          per cent of the loss, :math:`100\,(e_2 - e_1)/|e_1|`
=================  =======================  ===============================================

with :math:`e_1, e_2` the means over rows. The standard errors of the ratios are those of their linearisation (the delta
method). The mean of a batch, of a loss or a metric of one's own, counts as one observation, weighted by its
rows.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from spikeslab.compression.tasks import CLASSIFICATION, Evaluation, first_batch
from spikeslab.errors import ArgumentValueError, Phrase
from spikeslab.forward_pass import split_batch
from spikeslab.posterior import Posterior
from spikeslab.training.randomness import preserve_randomness

UNITS = ACCURACY, NATS, RMSE, LOSS, METRIC = (
    "points of accuracy", "nats", "per cent of the RMSE", "per cent of the loss", "per cent of the metric"
)  # fmt: skip
"""Units of a difference."""
QUANTILE = 1.959963984540054
"""Quantile of the normal distribution for a two-sided interval of 95 %."""


@dataclass(frozen=True)
class RowScores:
    """Scores of a network row by row, the higher the worse.

    Attributes:
        unit: Unit of the differences of such scores, one of ``UNITS``.
        values: Scores, of shape (rows,), in double precision.
        sizes: Number of rows that each score stands for.
        targets: Targets of the rows, by which other rows are recognised; ``None`` where only losses are known.
    """

    unit: str
    values: Tensor
    sizes: Tensor
    targets: Tensor | None = None

    @property
    def mean(self) -> float:
        """Mean over the rows."""
        return float((self.sizes * self.values).sum() / self.sizes.sum())


@dataclass(frozen=True)
class Difference:
    """Difference of two networks on the same rows, positive where the second is worse.

    Attributes:
        value: The difference, in ``unit``.
        error: Its paired standard error; NaN with fewer than two rows.
        unit: One of ``UNITS``.
        rows: Number of rows, or of batches where only their losses are known.
    """

    value: float
    error: float
    unit: str
    rows: int

    @property
    def interval(self) -> tuple[float, float]:
        """Interval of 95 %."""
        return self.value - QUANTILE * self.error, self.value + QUANTILE * self.error

    def record(self) -> dict[str, Any]:
        """Return the numbers in JSON's types."""
        return {
            "difference": self.value,
            "standard_error": self.error,
            "interval": list(self.interval),
            "unit": self.unit,
            "rows": self.rows,
        }


@torch.no_grad()
def score_rows(evaluation: Evaluation, network: nn.Module | Posterior) -> RowScores:
    """Return the scores of a network, or of the average of a posterior, on every row of the data.

    A posterior of a task with a loss or a metric of the user's is scored by its mean over the samples.
    """
    if evaluation.task.has_own_score:
        return _score_batches(evaluation, network)
    return score_predictions(evaluation.task.kind, *evaluation.predict(network))


def score_predictions(kind: str, predictions: Tensor, targets: Tensor) -> RowScores:
    """Return the errors of a classification, or the squared errors of a regression, row by row."""
    if kind == CLASSIFICATION:
        unit, values = ACCURACY, (predictions.argmax(dim=1) != targets).double()
    else:
        unit, values = RMSE, (predictions - targets).double().square().flatten(1).mean(dim=1)
    return RowScores(unit, values, torch.ones_like(values), targets)


def score_probabilities(probabilities: Tensor, labels: Tensor) -> RowScores:
    """Return the negative log-likelihoods of a classification, row by row."""
    chosen = probabilities.gather(1, labels.unsqueeze(1)).squeeze(1).double()
    values = -chosen.clamp_min(torch.finfo(probabilities.dtype).tiny).log()
    return RowScores(NATS, values, torch.ones_like(values), labels)


def _score_batches(evaluation: Evaluation, network: nn.Module | Posterior) -> RowScores:
    if isinstance(network, Posterior):
        found = [_score_batches(evaluation, network.sample(index)) for index in range(len(network))]
        values = torch.stack([scores.values for scores in found])
        return RowScores(found[0].unit, network.sample_weights.double().cpu() @ values, found[0].sizes)
    means, sizes = zip(*evaluation.batch_scores(network), strict=True)
    unit = LOSS if evaluation.task.metric is None else METRIC
    return RowScores(unit, torch.tensor(means).double(), torch.tensor(sizes).double())


def compare(first: RowScores, second: RowScores) -> Difference:
    r"""Return the paired difference of two networks, as the table above defines it.

    With :math:`\psi_i` the influence of row i on the difference, of mean zero, and :math:`n_i` its size, the squared
    standard error is :math:`\frac{m}{m-1} \sum (n_i \psi_i)^2 / (\sum n_i)^2` over m rows.

    >>> ones = torch.ones(4).double()
    >>> before = RowScores(ACCURACY, torch.tensor([0.0, 0.0, 1.0, 0.0]).double(), ones)
    >>> after = RowScores(ACCURACY, torch.tensor([0.0, 1.0, 1.0, 0.0]).double(), ones)
    >>> found = compare(before, after)
    >>> found.value, round(found.error, 6)
    (25.0, 25.0)

    Raises:
        ArgumentValueError: If the rows are not the same, or a ratio has no meaning since the first mean is zero.
    """
    _check_same_rows(first, second)
    sizes, before, after = first.sizes, first.mean, second.mean
    if first.unit in (ACCURACY, NATS):
        factor = 100.0 if first.unit == ACCURACY else 1.0
        value = factor * (after - before)
        influence = factor * (second.values - first.values) - value
    else:
        if before == 0.0 or not math.isfinite(before):
            expectation = "must give the dense network a loss that is finite and not zero, of which per cents are taken"
            raise ArgumentValueError("val_loader", expectation, before)
        ratio = after / before
        influence = 100.0 * (second.values - ratio * first.values) / abs(before)
        value = 100.0 * (after - before) / abs(before)
        if first.unit == RMSE:
            value = 100.0 * (math.sqrt(ratio) - 1.0)
            influence = influence / (2.0 * math.sqrt(ratio)) if ratio > 0.0 else torch.zeros_like(influence)
    count = len(first.values)
    spread = float((sizes * influence).square().sum().sqrt() / sizes.sum())
    error = spread * math.sqrt(count / (count - 1)) if count > 1 else math.nan
    return Difference(value, error, first.unit, count)


def check_order(data: Iterable[Any]) -> None:
    """Raise if the first batch of the validation data has other targets when it is read again."""
    with preserve_randomness():
        first, again = (first_batch("val_loader", data) for _ in range(2))
    targets = [split_batch(batch)[1] for batch in (first, again)]
    if all(isinstance(target, Tensor) for target in targets) and any(
        not torch.equal(target, targets[0]) for target in targets
    ):
        raise _other_rows()


def _check_same_rows(first: RowScores, second: RowScores) -> None:
    same = len(first.values) == len(second.values) and torch.equal(first.sizes, second.sizes)
    if same and first.targets is not None and second.targets is not None:
        same = torch.equal(first.targets, second.targets)
    if not same:
        raise _other_rows()


def _other_rows() -> ArgumentValueError:
    expectation = (
        "must yield the same rows in the same order whenever it is run through, since networks are compared row by row"
    )
    return ArgumentValueError("val_loader", expectation, Phrase("got others the second time"), "do not shuffle it")
