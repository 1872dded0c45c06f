r"""The Gaussian likelihood of a regression, which gathers the residuals that sigma is learned from."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from spikeslab.errors import ArgumentValueError, Phrase, check_number, mark
from spikeslab.priors.spike_slab import SpikeSlab
from spikeslab.priors.stacked import StackedSpikeSlab

if TYPE_CHECKING:  # torch may be built without it
    from torch.distributed import ProcessGroup


class GaussianLikelihood:
    r"""Mean squared error over :math:`2\sigma^2`: the negative log-likelihood of an example, without its constant.

    It reads sigma from the prior at every call, and adds up the squares of the residuals, from which
    ``sampler.step()`` then updates sigma (eq. 14). These are the residuals at the weights before the step, so they cost
    no second forward pass. They follow the gradients: several calls before a step add up, and the sum starts anew
    after a step or once the gradients have been cleared. Calls without gradient, as in evaluation, leave no trace.

    >>> GaussianLikelihood(0.5)(torch.tensor([1.0, 2.0]), torch.tensor([0.0, 2.0]))
    tensor(1.)

    Args:
        sigma: A ``SpikeSlab`` prior that learns sigma, or a number that stays.
        group: Processes that share this chain's data, such as ``ranks.data_group``: their squares and counts are added
            up just before sigma moves, so that it is the same on all of them. ``None`` is this process alone.
    """

    def __init__(self, sigma: SpikeSlab | float, *, group: ProcessGroup | None = None) -> None:
        self._prior: SpikeSlab | None = None
        if isinstance(sigma, SpikeSlab):
            self._prior = sigma
            self._residuals = sigma.scale.learn_from_residuals(sigma.weights.values(), group)
        else:
            self._sigma = check_number("sigma", sigma, "> 0")

    @property
    def sigma(self) -> float:
        """Standard deviation of the noise."""
        return self._sigma if self._prior is None else self._prior.sigma

    def __call__(self, prediction: Tensor, target: Tensor) -> Tensor:
        """Return the mean over the examples of the squared error, summed over outputs, divided by 2 sigma^2.

        Raises:
            ArgumentValueError: If the shapes differ; broadcasting (n, 1) against (n,) would give n^2 residuals.
        """
        if prediction.shape != target.shape:
            expectation = f"must have the shape of the prediction, {tuple(prediction.shape)}"
            raise ArgumentValueError("target", expectation, tuple(target.shape))
        if not prediction.ndim or not len(prediction):
            got = Phrase(f"got the shape {tuple(prediction.shape)}")
            raise ArgumentValueError("prediction", "must hold at least one example along its first dimension", got)
        squares = (prediction - target).square().sum()
        rows = len(prediction)
        if self._prior is not None and torch.is_grad_enabled() and prediction.requires_grad:
            self._residuals.add(squares, prediction.numel(), rows)
        return squares / (2.0 * self.sigma**2 * rows)


class StackedGaussianLikelihood:
    r"""Sum over stacked chains of their :class:`GaussianLikelihood`, each with its own :math:`\sigma_k`.

    The gradient with respect to the weights of a chain is that of the chain's own mean loss.

    Args:
        prior: The prior that learns the sigma of each chain.
    """

    def __init__(self, prior: StackedSpikeSlab) -> None:
        self._prior = prior
        self._residuals = prior.scale.learn_from_residuals(prior.weights.values())

    @property
    def sigma(self) -> Tensor:
        """Standard deviation of the noise of each chain, (chains,)."""
        return self._prior.sigma

    def __call__(self, prediction: Tensor, target: Tensor) -> Tensor:
        """Return the sum over the chains of the mean loss of each; both tensors are (chains, examples, ...).

        Raises:
            ArgumentValueError: If the shapes differ or there is not one row of examples for each chain.
        """
        chains = self._prior.chains
        if prediction.shape != target.shape or prediction.ndim < 2 or len(prediction) != chains:
            expectation = (
                f"and {mark('target')} must both have the shape ({chains}, examples, ...), one row for each chain"
            )
            got = Phrase(f"got {tuple(prediction.shape)} and {tuple(target.shape)}")
            raise ArgumentValueError("prediction", expectation, got)
        squares = (prediction - target).square().reshape(chains, -1).sum(1)
        rows = prediction.shape[1]
        if torch.is_grad_enabled() and prediction.requires_grad:
            self._residuals.add(squares, prediction[0].numel(), rows)
        return (squares / (2.0 * rows * self.sigma.to(squares.dtype).square())).sum()
