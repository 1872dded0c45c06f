"""How well a score tells inputs of another kind from those of the training data, and right answers from wrong ones."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from spikeslab.metrics.classification import check_predictions


@dataclass(frozen=True)
class Detection:
    """How well a score detects.

    Attributes:
        auroc: Area under the ROC curve: the probability that a foreign input scores higher than one of our own.
        aupr: Area under the precision-recall curve (average precision), foreign inputs being the positives.
        fpr95: Share of our own inputs that are called foreign where 95 % of the foreign ones are.
    """

    auroc: float
    aupr: float
    fpr95: float


@dataclass(frozen=True)
class DetectionCurves:
    """The two curves of a score as its threshold falls from the top, foreign inputs being the positives.

    Attributes:
        false_positive: Share of our own inputs that are called foreign.
        true_positive: Share of the foreign inputs that are; with ``false_positive`` the ROC curve.
        recall: The same share at the thresholds of ``precision``.
        precision: Share of foreign inputs among those that are called so.
    """

    false_positive: Tensor
    true_positive: Tensor
    recall: Tensor
    precision: Tensor


def detection(own: Tensor, foreign: Tensor) -> Detection:
    """Judge a score that should be higher for ``foreign`` inputs than for ``own`` ones, such as an entropy.

    >>> detection(torch.tensor([0.1, 0.2, 0.3]), torch.tensor([0.25, 0.8, 0.9]))
    Detection(auroc=0.888..., aupr=0.916..., fpr95=0.333...)

    Args:
        own: Scores of inputs of the kind that the model was trained on.
        foreign: Scores of other inputs.
    """
    from torchmetrics.functional.classification import binary_auroc, binary_average_precision, binary_roc

    ranks, labels = _ranked(own, foreign)
    false_positive, true_positive, _ = binary_roc(ranks, labels)
    return Detection(
        auroc=float(binary_auroc(ranks, labels)),
        aupr=float(binary_average_precision(ranks, labels)),
        fpr95=float(false_positive[true_positive >= 0.95].min()),
    )


def detection_curves(own: Tensor, foreign: Tensor) -> DetectionCurves:
    """The ROC and the precision-recall curve of a score; arguments as in :func:`detection`."""
    from torchmetrics.functional.classification import binary_precision_recall_curve, binary_roc

    ranks, labels = _ranked(own, foreign)
    false_positive, true_positive, _ = binary_roc(ranks, labels)
    precision, recall, _ = binary_precision_recall_curve(ranks, labels)
    return DetectionCurves(false_positive, true_positive, recall.flip(0), precision.flip(0))


def _ranked(own: Tensor, foreign: Tensor) -> tuple[Tensor, Tensor]:
    """Scores as ranks in [0, 1], those outside of which would be taken for logits and rounded, and 1 for foreign."""
    for name, scores in (("own", own), ("foreign", foreign)):
        if scores.ndim != 1 or not len(scores) or not bool(scores.isfinite().all()):
            raise ValueError(f"{name} must be a vector of finite scores, but got the shape {tuple(scores.shape)}.")
    ranks = torch.cat([own, foreign]).double().unique(return_inverse=True)[1].double()
    labels = torch.cat([torch.zeros_like(own), torch.ones_like(foreign)]).long()
    return ranks / ranks.max().clamp_min(1.0), labels


def selective_accuracy(probabilities: Tensor, labels: Tensor, coverages: Tensor) -> Tensor:
    """Accuracy on the rows that the model is most confident of, at each share of rows kept.

    Args:
        probabilities: Class probabilities, of shape (rows, classes).
        labels: Labels, of shape (rows,).
        coverages: Shares of rows kept, in (0, 1].
    """
    if not bool(((coverages > 0) & (coverages <= 1)).all()):
        raise ValueError(f"coverages must be in (0, 1], but got {coverages.tolist()}.")
    check_predictions(probabilities, labels)
    confidence, predicted = probabilities.max(dim=1)
    right = (predicted == labels)[confidence.argsort(descending=True)].double()
    kept = (coverages.to(right.device) * len(labels)).round().long().clamp_min(1)
    return right.cumsum(0)[kept - 1] / kept
