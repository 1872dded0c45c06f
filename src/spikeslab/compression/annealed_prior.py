r"""Prior annealing: a spike-and-slab prior that is faded in, and whose spike shrinks.

With the weight :math:`\eta_k` rising from 0 to 1 and the spike's variance :math:`v_0(k)` falling, the sampler sees

.. math::
    \frac{U}{N} = \mathrm{loss} + (1 - \eta_k)\,\frac{\mathrm{wd}}{2}\sum\beta^2
    - \frac{\eta_k}{N} \sum \log\bigl[(1-\delta)\,N(\beta; 0, v_0(k)) + \delta\,N(\beta; 0, v_1)\bigr].

A network is found first, without the many modes of the mixture, and is then drawn into one of them.

Reference: Sun, Xiong and Liang, "Sparse Deep Learning: A New Framework Immune to Local Traps and Miscalibration",
NeurIPS 2021. The weight decay that fades out is its dense phase.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from spikeslab.priors import Diagnostics, Marginal, SpikeSlabGaussian
from spikeslab.schedules import ScheduleLike
from spikeslab.weights import Weights


class AnnealedPrior(SpikeSlabGaussian):
    """Mixture of two Gaussians whose weight and spike follow the step.

    Args:
        weights: Sparse weights.
        v0: Variance of the spike as a function of the step.
        v1: Variance of the slab.
        delta: Probability of the slab.
        eta: Weight of the prior as a function of the step, in [0, 1].
        weight_decay: L2 penalty in units of the mean loss, of weight 1 - eta.
    """

    def __init__(
        self, weights: Weights, *, v0: ScheduleLike, v1: float, delta: float, eta: ScheduleLike, weight_decay: float
    ) -> None:
        super().__init__(weights, v0=v0(1), v1=v1, delta=delta, adapt=Marginal(), sigma_coupling="fixed")
        self.weight_decay = weight_decay
        self.eta = eta(1)
        self._v0_schedule, self._eta_schedule = v0, eta
        self._step = 1

    def _add_gradient_(self, indices: list[int], betas: list[Tensor], outs: list[Tensor], num_data: int) -> None:
        if self.eta < 1.0:
            torch._foreach_add_(outs, betas, alpha=(1.0 - self.eta) * self.weight_decay)
        if self.eta > 0.0:
            gradients = [torch.zeros_like(beta) for beta in betas]
            super()._add_gradient_(indices, betas, gradients, num_data)
            torch._foreach_add_(outs, gradients, alpha=self.eta)

    def penalty(self, num_data: int = 1) -> float:
        """Return the penalty that is added to the mean loss."""
        squares = sum(float(beta.double().square().sum()) for beta in self._betas())
        return 0.5 * (1.0 - self.eta) * self.weight_decay * squares + self.eta * super().penalty(num_data)

    def diagnostics(self, num_data: int) -> Diagnostics:
        """Return the diagnostics of the mixture, weighted by eta, with the weight decay weighted by 1 - eta."""
        found = super().diagnostics(num_data)
        decay = (1.0 - self.eta) * self.weight_decay
        return replace(
            found,
            effective_l1={name: self.eta * value for name, value in found.effective_l1.items()},
            effective_l2={name: self.eta * value + decay for name, value in found.effective_l2.items()},
        )

    def update(self, step: int, num_data: int) -> None:
        """Move the weight and the spike to the next step."""
        super().update(step, num_data)
        self._move_to(step + 1)

    def _move_to(self, step: int) -> None:
        self._step, self.v0, self.eta = step, self._v0_schedule(step), self._eta_schedule(step)

    def state_dict(self) -> dict[str, Any]:
        """Return the state, with the step."""
        return super().state_dict() | {"step": self._step}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Load a state and move to its step."""
        super().load_state_dict(state)
        self._move_to(int(state["step"]))
