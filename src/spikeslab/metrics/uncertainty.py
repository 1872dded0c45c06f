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
        weights: Weight of each sample, summing to 1; equal by default.
    """
    if probabilities.ndim != 3:
        raise ValueError(
            f"probabilities must have the shape (samples, rows, classes), but got {tuple(probabilities.shape)}."
        )
    if weights is None:
        weights = torch.full((len(probabilities),), 1.0 / len(probabilities))
    share = weights.to(probabilities).view(-1, 1, 1)
    mean = (share * probabilities).sum(dim=0)
    return (entropy(mean) - (share[..., 0] * entropy(probabilities)).sum(dim=0)).clamp_min(0.0)
