r"""Posterior odds of inclusion by the curvature of the likelihood: Optimal Brain Damage inside Bayes' rule.

With the other weights given, let the log-likelihood of N examples be quadratic in a weight,
:math:`-\tfrac12 N F (w - \hat w)^2`, with F the diagonal of the Fisher information of one example. A slab
:math:`N(0, v_1)` makes the posterior of the weight

.. math:: N(m, 1/P), \qquad P = N F + 1/v_1, \qquad P m = N F \hat w.

The spike is a point at zero, so the Bayes factor of the slab is the density of the slab's prior at zero over that of
its posterior (Savage and Dickey), and with the prior probability :math:`\delta` of the slab

.. math:: \log\frac{\rho}{1-\rho} = \mathrm{logit}\,\delta + \tfrac12 m^2 P - \tfrac12 \log(v_1 P).

The second term is the *saliency*. At a mode it tends to :math:`\tfrac12 N F w^2`, by which the loss of all examples
rises without the weight. The third is the price of a free parameter.

At any w the gradient of an example's loss is :math:`g = F(w - \hat w)`, so that :math:`P m = N (F w - g)`: the *pull*
:math:`F w - g` of the data on the weight is the same wherever the chain is, whatever penalty holds the weight there,
and at any temperature.

References:
    J. M. Dickey. The weighted likelihood ratio, linear hypotheses on normal location parameters. Annals of Mathematical
    Statistics 42, 1971.
    Y. LeCun, J. Denker and S. Solla. Optimal brain damage. NeurIPS 1989.
    P. Carbonetto and M. Stephens. Scalable variational inference for Bayesian variable selection in regression.
    Bayesian Analysis 7, 2012.
    L. Theis, I. Korshunova, A. Tejani and F. Huszar. Faster gaze prediction with dense networks and Fisher pruning.
    arXiv:1801.05787, 2018.
"""

from __future__ import annotations

from torch import Tensor

from spikeslab.functional.mixture import logit


def saliency(pull: Tensor, fisher: Tensor, *, num_data: float, v1: float) -> Tensor:
    r"""Return the saliency :math:`\tfrac12 m^2 P = N^2 (F w - g)^2/(2 P)` of every weight.

    It ranks weights for pruning: of all sets of a given number of weights, zeroing those with the smallest saliencies
    raises the loss least. Odds would keep a weight that no example reaches, which has its prior odds, before one whose
    saliency is smaller than its price.

    >>> import torch
    >>> saliency(torch.tensor([0.0, 0.3]), torch.tensor([1.0, 1.0]), num_data=99.0, v1=1.0)
    tensor([0.0000, 4.4104])

    Args:
        pull: :math:`F w - g`, with g the gradient of the mean loss at w.
        fisher: F, the mean square of an example's gradient.
        num_data: N.
        v1: Variance of the slab.
    """
    return pull.square().mul_(0.5 * num_data**2).div_((num_data * fisher).add_(1.0 / v1))


def inclusion_log_odds(pull: Tensor, fisher: Tensor, *, num_data: float, v1: float, delta: float) -> Tensor:
    r"""Return the log odds of a Gaussian slab against a point at zero, for every weight.

    .. math:: \mathrm{logit}\,\delta + \frac{N^2 (F w - g)^2}{2 P} - \tfrac12\log(v_1 P), \qquad P = N F + 1/v_1

    It is exact for a linear model with Gaussian noise and orthogonal columns. With other columns it is exact given the
    other weights; with their means along a chain in their place it is the coordinate update of the mean-field
    approximation (Carbonetto and Stephens, 2012).

    >>> import torch
    >>> inclusion_log_odds(torch.tensor([0.0, 0.3]), torch.tensor([1.0, 1.0]), num_data=99.0, v1=1.0, delta=0.5)
    tensor([-2.3026,  2.1079])

    Args:
        pull: :math:`F w - g`, with g the gradient of the mean loss at w.
        fisher: F, the mean square of an example's gradient.
        num_data: N.
        v1: Variance of the slab.
        delta: Prior probability of the slab.
    """
    price = (num_data * v1 * fisher).log1p_()
    return saliency(pull, fisher, num_data=num_data, v1=v1).sub_(price, alpha=0.5).add_(logit(delta))
