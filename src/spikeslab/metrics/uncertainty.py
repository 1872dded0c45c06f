r"""Uncertainty of predictions: its split by entropies, and how well it detects foreign inputs and wrong answers.

With :math:`p_k` the class probabilities of sample k and :math:`\bar p` their mean,

.. math::
    \underbrace{H(\bar p)}_{\text{predictive entropy}}
    = \underbrace{\tfrac1K \sum_k H(p_k)}_{\text{of the data}}
    + \underbrace{H(\bar p) - \tfrac1K \sum_k H(p_k)}_{\text{mutual information: of the weights}}.

Reference: N. Houlsby, F. Huszár, Z. Ghahramani and M. Lengyel (2011), Bayesian active learning.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from spikeslab.errors import ArgumentValueError, Phrase, pluralize
from spikeslab.metrics.classification import check_predictions


def entropy(probabilities: Tensor) -> Tensor:
    """Return the entropy in nats over the last dimension, with 0 log 0 = 0.

    >>> entropy(torch.tensor([[0.5, 0.5], [0.9, 0.1]]))
    tensor([0.6931, 0.3251])
    """
    total: Tensor = torch.special.entr(probabilities).sum(dim=-1)
    return total


def mutual_information(probabilities: Tensor, weights: Tensor | None = None) -> Tensor:
    """Return the entropy of the mean prediction minus the mean entropy, in nats: the uncertainty about the weights.

    Args:
        probabilities: Predictions of each sample, of shape (samples, rows, classes).
        weights: Weight of each sample, in any unit; equal by default.
    """
    if probabilities.ndim != 3 or not len(probabilities):
        expectation = "must have the shape (samples, rows, classes) with at least one sample"
        raise ArgumentValueError("probabilities", expectation, tuple(probabilities.shape))
    if weights is None:
        weights = torch.ones(len(probabilities))
    if weights.shape != probabilities.shape[:1] or not bool((weights >= 0).all() and 0 < weights.sum() < torch.inf):
        samples = pluralize(len(probabilities), "sample")
        expectation = f"must be finite numbers >= 0, not all 0, one for each of the {samples}"
        raise ArgumentValueError("weights", expectation, weights.tolist())
    share = (weights / weights.sum()).to(probabilities).view(-1, 1, 1)
    mean = (share * probabilities).sum(dim=0)
    return (entropy(mean) - (share[..., 0] * entropy(probabilities)).sum(dim=0)).clamp_min(0.0)


@dataclass(frozen=True)
class Detection:
    """Quality of a score that detects foreign inputs.

    Attributes:
        auroc: Area under the ROC curve: the probability that a foreign input scores higher than one of our own.
        aupr: Area under the precision-recall curve (average precision), foreign inputs being the positives.
        fpr95: Share of our own inputs called foreign at the threshold that detects 95 % of the foreign ones.
    """

    auroc: float
    aupr: float
    fpr95: float


@dataclass(frozen=True)
class DetectionCurves:
    """ROC and precision-recall curve of a score as its threshold falls; foreign inputs are the positives.

    Attributes:
        false_positive: Share of our own inputs called foreign.
        true_positive: Share of the foreign inputs called foreign; with ``false_positive`` the ROC curve.
        recall: Share of the foreign inputs called foreign, at the thresholds of ``precision``.
        precision: Share of foreign inputs among those called foreign.
    """

    false_positive: Tensor
    true_positive: Tensor
    recall: Tensor
    precision: Tensor


def detection(own: Tensor, foreign: Tensor) -> Detection:
    """Measure how well a score, such as an entropy, separates ``foreign`` inputs (high) from ``own`` ones (low).

    >>> detection(torch.tensor([0.1, 0.2, 0.3]), torch.tensor([0.25, 0.8, 0.9]))
    Detection(auroc=0.888..., aupr=0.916..., fpr95=0.333...)

    Args:
        own: Scores of inputs of the kind that the model was trained on.
        foreign: Scores of other inputs.
    """
    from torchmetrics.functional.classification import binary_auroc, binary_average_precision, binary_roc

    ranks, labels = _rank(own, foreign)
    false_positive, true_positive, _ = binary_roc(ranks, labels)
    return Detection(
        auroc=float(binary_auroc(ranks, labels)),
        aupr=float(binary_average_precision(ranks, labels)),
        fpr95=float(false_positive[true_positive >= 0.95].min()),
    )


def detection_curves(own: Tensor, foreign: Tensor) -> DetectionCurves:
    """Compute the ROC and the precision-recall curve of a score; arguments as in :func:`detection`."""
    from torchmetrics.functional.classification import binary_precision_recall_curve, binary_roc

    ranks, labels = _rank(own, foreign)
    false_positive, true_positive, _ = binary_roc(ranks, labels)
    precision, recall, _ = binary_precision_recall_curve(ranks, labels)
    return DetectionCurves(false_positive, true_positive, recall.flip(0), precision.flip(0))


def _rank(own: Tensor, foreign: Tensor) -> tuple[Tensor, Tensor]:
    """Return ranks in [0, 1] (torchmetrics takes other scores for logits) and labels, 1 for foreign."""
    for name, scores in (("own", own), ("foreign", foreign)):
        if scores.ndim != 1 or not len(scores) or not bool(scores.isfinite().all()):
            got = Phrase(f"got the shape {tuple(scores.shape)}")
            raise ArgumentValueError(name, "must be a vector of finite scores", got)
    ranks = torch.cat([own, foreign]).double().unique(return_inverse=True)[1].double()
    labels = torch.cat([torch.zeros_like(own), torch.ones_like(foreign)]).long()
    return ranks / ranks.max().clamp_min(1.0), labels


def selective_accuracy(probabilities: Tensor, labels: Tensor, coverages: Tensor) -> Tensor:
    """Return the accuracy on the most confident rows, at each share of rows kept.

    Args:
        probabilities: Class probabilities, of shape (rows, classes).
        labels: Labels, of shape (rows,).
        coverages: Shares of rows kept, in (0, 1].
    """
    if not bool(((coverages > 0) & (coverages <= 1)).all()):
        raise ArgumentValueError("coverages", "must be in (0, 1]", coverages.tolist())
    check_predictions(probabilities, labels)
    confidence, predicted = probabilities.max(dim=1)
    right = (predicted == labels)[confidence.argsort(descending=True)].double()
    kept = (coverages.to(right.device) * len(labels)).round().long().clamp_min(1)
    return right.cumsum(0)[kept - 1] / kept
