r"""Averages along a chain that tell how much the data want each weight: pull and curvature of the likelihood.

A batch of B examples with the gradient g of its mean loss at the weight w has :math:`F_k = B g^2`, whose mean over
batches is the Fisher information F of one example near a mode, and the pull :math:`F_k w - g`. Both are averaged with
the step sizes :math:`\omega_k` of the stochastic approximation, from zero:

.. math:: A \leftarrow (1-\omega_k) A + \omega_k A_k, \qquad \text{average} = A/W, \quad W = 1 - \prod(1-\omega_i).

These are weighted means over the steps so far, whose weights :math:`c_k` have the sum 1. They rest on about
:math:`B/\sum c_k^2` examples. While that is less than N, it takes the place of N: noise of few batches is no evidence.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from spikeslab.functional.evidence import inclusion_log_odds, saliency


class Curvature:
    """Average pull and Fisher information of every weight.

    Args:
        batch_size: Examples behind a gradient, B.

    Attributes:
        pull: Pull of each tensor of weights, times W; empty before the first step.
        fisher: Fisher information of each tensor of weights, times W.
    """

    def __init__(self, batch_size: int) -> None:
        self.batch_size = batch_size
        self.pull: list[Tensor] = []
        self.fisher: list[Tensor] = []
        self._num_data = 0
        self._share = 0.0  # W
        self._squares = 0.0  # W^2 times the sum of the squared weights c_k

    def __bool__(self) -> bool:
        return bool(self.pull)

    @property
    def examples(self) -> float:
        """Examples whose evidence counts: those behind the averages, at most N."""
        return min(float(self._num_data), self.batch_size * self._share**2 / self._squares)

    def observe(self, betas: list[Tensor], gradients: Sequence[Tensor | None], omega: float, num_data: int) -> None:
        """Add the gradients of a batch at the weights ``betas``; a weight without one was not used, and has zero."""
        if not self:
            self.pull, self.fisher = ([torch.zeros_like(beta) for beta in betas] for _ in range(2))
        pairs = zip(betas, gradients, strict=True)
        grads = [torch.zeros_like(beta) if grad is None else grad.detach().to(beta.dtype) for beta, grad in pairs]
        scratch = torch._foreach_mul(grads, grads)
        torch._foreach_mul_(scratch, float(self.batch_size))
        torch._foreach_lerp_(self.fisher, scratch, omega)
        torch._foreach_mul_(scratch, betas)
        torch._foreach_sub_(scratch, grads)
        torch._foreach_lerp_(self.pull, scratch, omega)
        self._num_data = num_data
        self._share += omega * (1.0 - self._share)
        self._squares = (1.0 - omega) ** 2 * self._squares + omega**2

    def log_odds(self, v1: float, deltas: Iterable[float]) -> list[Tensor]:
        """Return the log odds of a slab of variance ``v1``, with the prior probability ``deltas`` of each tensor."""
        arguments = {"num_data": self.examples, "v1": v1}
        layers = zip(*self._means(), deltas, strict=True)
        return [inclusion_log_odds(pull, fisher, delta=delta, **arguments) for pull, fisher, delta in layers]

    def saliencies(self, v1: float) -> list[Tensor]:
        """Return the saliencies of the weights under a slab of variance ``v1``."""
        arguments = {"num_data": self.examples, "v1": v1}
        return [saliency(pull, fisher, **arguments) for pull, fisher in zip(*self._means(), strict=True)]

    def _means(self) -> tuple[list[Tensor], list[Tensor]]:
        pulls, fishers = (list(torch._foreach_div(sums, self._share)) for sums in (self.pull, self.fisher))
        return pulls, fishers

    def state_dict(self) -> dict[str, Any]:
        """Return averages and counters."""
        counters = {"num_data": self._num_data, "share": self._share, "squares": self._squares}
        return {"pull": list(self.pull), "fisher": list(self.fisher), **counters}

    def load_state_dict(self, state: Mapping[str, Any], like: list[Tensor]) -> None:
        """Load averages, in the dtypes and on the devices of ``like``, and counters."""
        for target, kind in ((self.pull, "pull"), (self.fisher, "fisher")):
            target[:] = [torch.empty_like(u).copy_(t) for u, t in zip(like, state[kind], strict=False)]
        self._num_data = int(state["num_data"])
        self._share, self._squares = float(state["share"]), float(state["squares"])
