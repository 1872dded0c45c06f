"""How well a score tells inputs of another kind from those of the training data, and right answers from wrong ones."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor


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


def detection(own: Tensor, foreign: Tensor) -> Detection:
    """Judge a score that should be higher for ``foreign`` inputs than for ``own`` ones, such as an entropy.

    >>> detection(torch.tensor([0.1, 0.2, 0.3]), torch.tensor([0.25, 0.8, 0.9]))
    Detection(auroc=0.888..., aupr=0.916..., fpr95=0.333...)

    Args:
        own: Scores of inputs of the kind that the model was trained on.
        foreign: Scores of other inputs.
    """
    from torchmetrics.functional.classification import binary_auroc, binary_average_precision, binary_roc

    for name, scores in (("own", own), ("foreign", foreign)):
        if scores.ndim != 1 or not len(scores) or not bool(scores.isfinite().all()):
            raise ValueError(f"{name} must be a vector of finite scores, but got the shape {tuple(scores.shape)}.")
    # Ranks in [0, 1]: scores outside of it would be taken for logits, and rounded.
    both = torch.cat([own, foreign]).double()
    ranks = both.unique(return_inverse=True)[1].double()
    ranks = ranks / ranks.max().clamp_min(1.0)
    labels = torch.cat([torch.zeros(len(own)), torch.ones(len(foreign))]).long()
    false_positive, true_positive, _ = binary_roc(ranks, labels)
    return Detection(
        auroc=float(binary_auroc(ranks, labels)),
        aupr=float(binary_average_precision(ranks, labels)),
        fpr95=float(false_positive[true_positive >= 0.95].min()),
    )


def selective_accuracy(probabilities: Tensor, labels: Tensor, coverages: Tensor) -> Tensor:
    """Accuracy on the rows that the model is most confident of, at each share of rows kept.

    Args:
        probabilities: Class probabilities, of shape (rows, classes).
        labels: Labels, of shape (rows,).
        coverages: Shares of rows kept, in (0, 1].
    """
    if not bool(((coverages > 0) & (coverages <= 1)).all()):
        raise ValueError(f"coverages must be in (0, 1], but got {coverages.tolist()}.")
    confidence, predicted = probabilities.max(dim=1)
    right = (predicted == labels)[confidence.argsort(descending=True)].double()
    kept = (coverages * len(labels)).round().long().clamp_min(1)
    return right.cumsum(0)[kept - 1] / kept
