r"""How uncertain a posterior is, and of what: entropies of the predictions of its samples.

With :math:`p_k` the class probabilities of sample k and :math:`\bar p` their mean,

.. math::
    \underbrace{H(\bar p)}_{\text{predictive entropy}}
    = \underbrace{\tfrac1K \sum_k H(p_k)}_{\text{of the data}}
    + \underbrace{H(\bar p) - \tfrac1K \sum_k H(p_k)}_{\text{mutual information: of the weights}}.

Reference: N. Houlsby, F. Huszár, Z. Ghahramani and M. Lengyel (2011), Bayesian active learning.
"""

from __future__ import annotations

import torch
from torch import Tensor

from spikeslab.errors import pluralize


def entropy(probabilities: Tensor) -> Tensor:
    """Entropy in nats over the last dimension, 0 log 0 being 0.

    >>> entropy(torch.tensor([[0.5, 0.5], [0.9, 0.1]]))
    tensor([0.6931, 0.3251])
    """
    total: Tensor = torch.special.entr(probabilities).sum(dim=-1)
    return total


def mutual_information(probabilities: Tensor, weights: Tensor | None = None) -> Tensor:
    """Entropy of the mean prediction minus the mean entropy, in nats: what more data could teach the weights.

    Args:
        probabilities: Predictions of each sample, of shape (samples, rows, classes).
        weights: Weight of each sample, in any unit; equal by default.
    """
    if probabilities.ndim != 3 or not len(probabilities):
        raise ValueError(
            f"probabilities must have the shape (samples, rows, classes) with at least one sample, but got "
            f"{tuple(probabilities.shape)}."
        )
    if weights is None:
        weights = torch.ones(len(probabilities))
    if weights.shape != probabilities.shape[:1] or not bool((weights >= 0).all() and 0 < weights.sum() < torch.inf):
        raise ValueError(
            f"weights must be finite numbers >= 0, not all 0, one for each of the "
            f"{pluralize(len(probabilities), 'sample')}, but got {weights.tolist()}."
        )
    share = (weights / weights.sum()).to(probabilities).view(-1, 1, 1)
    mean = (share * probabilities).sum(dim=0)
    return (entropy(mean) - (share[..., 0] * entropy(probabilities)).sum(dim=0)).clamp_min(0.0)
