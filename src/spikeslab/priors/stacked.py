r"""The spike-and-slab prior of many chains at once: every chain k has its own latents.

The weights have a leading dimension of chains. :math:`\rho` and :math:`\kappa` are tensors like the weights, and
:math:`\sigma_k` and :math:`\delta_{lk}` replace the single numbers of :class:`~spikeslab.SpikeSlab`. Nothing is summed
over chains, so chain k is, given the same noise, the chain that would run alone; a chain that diverges leaves the
others as they are.

The mixture is a scale family: :math:`\tilde\rho` depends on :math:`\beta/\sigma` alone, and so does the elastic net
:math:`l_1|\beta|/\sigma_k + l_2\beta^2/(2\sigma_k^2)`. Omega is the same for all chains, hence :math:`l_1` and
:math:`l_2` are the same affine functions of the smoothed rho for all of them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from spikeslab.functional import mixture
from spikeslab.functional.mixture import Affine
from spikeslab.priors.adaptation import Marginal
from spikeslab.priors.base import Prior
from spikeslab.priors.scale import SMALLEST, Scale
from spikeslab.priors.spike_slab import SpikeSlab
from spikeslab.selection import Weights


class StackedSpikeSlab(Prior):
    """:class:`~spikeslab.SpikeSlab` for stacked chains, each with its own rho, kappa, sigma and delta.

    >>> prior = StackedSpikeSlab([torch.zeros(3, 5, 4)], v0=1e-3, v1=1.0)
    >>> prior.chains, prior.sigma.shape, prior.delta["weights[0]"].shape
    (3, torch.Size([3]), torch.Size([3]))

    Args:
        weights: Sparse weights of a ``StackedModel``, with the chains along their first dimension.
        **settings: Those of ``SpikeSlab``, the same for all chains.

    Attributes:
        chains: Number of chains.
        scale: Sigma of each chain.
    """

    def __init__(self, weights: Weights, **settings: Any) -> None:
        super().__init__(weights)
        counts = {len(weight) if weight.ndim else 0 for weight in self.weights.values()}
        if len(counts) > 1 or counts == {0}:
            raise ValueError(
                f"weights must have the same number of chains along their first dimension, but got {sorted(counts)}."
            )
        self.chains = counts.pop()
        # What all chains share, the settings and how far kappa has come, is kept by the prior of one of them.
        self._each = SpikeSlab({name: weight.detach()[0] for name, weight in self.weights.items()}, **settings)
        device = next(iter(self.weights.values())).device
        self.scale = self._each.scale = StackedScale(self._each.scale, self.chains, device)
        initial = torch.tensor(list(self._each.delta.values()), dtype=torch.float64, device=device)
        self._deltas = initial.unsqueeze(1).repeat(1, self.chains)
        self._rho: list[Tensor] = []
        self._rho_bar: list[Tensor] = []

    @property
    def sigma(self) -> Tensor:
        """Current sigma of each chain, (chains,)."""
        return self.scale.sigmas

    @property
    def delta(self) -> dict[str, Tensor]:
        """Inclusion probability of each layer and chain, (chains,)."""
        return dict(zip(self.weights, self._deltas, strict=True))

    @property
    def rho(self) -> dict[str, Tensor]:
        """Probability of the slab for every weight of every chain."""
        betas = self._betas()
        if isinstance(self._each.adapt, Marginal):
            rhos = self._responsibilities(betas)
        else:
            rhos = self._rho or [torch.full_like(beta, self._each._initial_rho) for beta in betas]
        return dict(zip(self.weights, rhos, strict=True))

    @property
    def kappa(self) -> dict[str, tuple[Tensor, Tensor]]:
        """The pair (kappa0, kappa1) of every weight of every chain."""
        betas = self._betas()
        smoothed = self._smoothed(betas) or [torch.zeros_like(beta) for beta in betas]
        kappa0, kappa1 = self._each._kappa()
        return {
            name: (kappa0.base + kappa0.slope * s, kappa1.base + kappa1.slope * s)
            for name, s in zip(self.weights, smoothed, strict=True)
        }

    def penalties(self, num_data: int = 1) -> Tensor:
        """What the prior adds to the mean loss of each chain, (chains,), as ``SpikeSlab.penalty``."""
        betas, sigma = self._betas(), self.scale.of_each_prior
        if isinstance(self._each.adapt, Marginal):
            logs = [
                mixture.log_marginal(beta[chain], **densities, delta=float(delta[chain])).sum()
                for chain, densities in enumerate(self._each._densities() | {"sigma": s} for s in sigma.tolist())
                for beta, delta in zip(betas, self._deltas, strict=True)
            ]
            return -torch.stack(logs).view(self.chains, -1).sum(1).double() / num_data
        b, j = self._elastic_net_sums(betas)
        return (b / sigma + j / (2.0 * sigma.square())) / num_data

    def penalty(self, num_data: int = 1) -> float:
        """The sum of :meth:`penalties`, as the loss of stacked chains is the sum of theirs."""
        return float(self.penalties(num_data).sum())

    def check_ready(self) -> None:
        """Raise if sigma needs residuals and there are none."""
        self._each.check_ready()

    def discard(self) -> None:
        """Forget residuals of a step that will not be taken."""
        self._each.discard()

    @torch.no_grad()
    def update(self, step: int, num_data: int) -> None:
        """Move the latents of every chain by one step of stochastic approximation (eqs. 12-15)."""
        omega = self._each.adapt.omega(step)
        if omega > 0.0:
            betas = self._betas()
            rhos = self._responsibilities(betas)
            if not isinstance(self._each.adapt, Marginal):
                if not self._rho:
                    self._rho = [torch.full_like(beta, self._each._initial_rho) for beta in betas]
                    self._rho_bar = [torch.zeros_like(beta) for beta in betas]
                torch._foreach_lerp_(self._rho, rhos, omega)
                torch._foreach_lerp_(self._rho_bar, self._rho, omega)
                rhos = self._rho
            self._each._advance(omega)
            self._maximise(omega, num_data, betas, rhos)
        self.discard()

    def _maximise(self, omega: float, num_data: int, betas: list[Tensor], rhos: list[Tensor]) -> None:
        """Move sigma and delta of every chain towards the maxima of Q (eqs. 14 and 15)."""
        if self.scale.coupling == "conjugate":
            self.scale.update_each(omega, *self._elastic_net_sums(betas), sum(self._each._sizes), num_data)
        elif self.scale.coupling == "independent":
            nothing = torch.zeros_like(self.sigma)
            self.scale.update_each(omega, nothing, nothing, sum(self._each._sizes), num_data)
        if self._each.learn_delta:
            layers = zip(rhos, self._each._sizes, self._each._b, strict=True)
            new = [
                mixture.delta(rho_sum=_sums(rho), num_weights=size, a=self._each._a, b=beta_b)
                for rho, size, beta_b in layers
            ]
            self._deltas = self._deltas.lerp(torch.stack(new), omega)

    def _responsibilities(self, betas: list[Tensor], indices: list[int] | None = None) -> list[Tensor]:
        deltas = self._deltas if indices is None else self._deltas[indices]
        densities = self._each._densities() | {"sigma": 1.0}
        odds = mixture.log_odds(**densities, deltas=[0.5])[0]
        offsets = deltas.logit(eps=mixture.TINY) + odds.offset
        scaled = betas
        if self._each.sigma_in_rho and self.scale.coupling != "independent":
            scaled = [beta / _beside(self.sigma, beta) for beta in betas]
        return [
            mixture.slab_probability(beta, odds.linear, odds.quadratic, _beside(offset, beta))
            for beta, offset in zip(scaled, offsets, strict=True)
        ]

    def _smoothed(self, betas: list[Tensor], indices: list[int] | None = None) -> list[Tensor] | None:
        """The rho in kappa, or ``None`` where no latent has moved and it is zero."""
        if isinstance(self._each.adapt, Marginal):
            return self._responsibilities(betas, indices)
        if not self._rho_bar:
            return None
        return self._rho_bar if indices is None else [self._rho_bar[i] for i in indices]

    def _elastic_net_sums(self, betas: list[Tensor]) -> tuple[Tensor, Tensor]:
        """B and J of every chain."""
        l1, l2 = mixture.elastic_net(*self._each._kappa(), self._each.spike, self._each.slab)
        smoothed: Sequence[Tensor | None] = self._smoothed(betas) or [None] * len(betas)
        b = [_weighted_sums(l1, beta.abs(), s) for beta, s in zip(betas, smoothed, strict=True)]
        j = [_weighted_sums(l2, beta.square(), s) for beta, s in zip(betas, smoothed, strict=True)]
        return torch.stack(b).sum(0), torch.stack(j).sum(0)

    def _add_gradient_(self, indices: list[int], betas: list[Tensor], outs: list[Tensor], num_data: int) -> None:
        smoothed = self._smoothed(betas, indices)
        l1, l2 = mixture.elastic_net(*self._each._kappa(), self._each.spike, self._each.slab)
        sigma = self.scale.of_each_prior
        for index, (out, beta) in enumerate(zip(outs, betas, strict=True)):
            for weight, direction, scale in (
                (l1, beta.sign() if l1 else beta, sigma * num_data),
                (l2, beta, sigma.square() * num_data),
            ):
                if weight:
                    strength = weight.base + (0.0 if smoothed is None else weight.slope * smoothed[index])
                    out.addcdiv_(direction * strength, _beside(scale, beta))

    def state_dict(self) -> dict[str, Any]:
        """Latents of all chains and counters."""
        return super().state_dict() | {
            "sigma": self.sigma,
            "delta": self._deltas,
            "omega_sum": self._each._omega_sum,
            "progress": self._each._progress,
            "rho": list(self._rho),
            "rho_bar": list(self._rho_bar),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take over latents and counters; a state of other weights is refused and changes nothing."""
        self.check_state(state)
        betas = self._betas()
        self.discard()
        self.scale.sigmas = torch.empty_like(self.sigma).copy_(state["sigma"])
        self._deltas = torch.empty_like(self._deltas).copy_(state["delta"])
        self._each._omega_sum = float(state["omega_sum"])
        self._each._progress = float(state["progress"])
        for target, kind in ((self._rho, "rho"), (self._rho_bar, "rho_bar")):
            target[:] = [torch.empty_like(b).copy_(t) for b, t in zip(betas, state[kind], strict=False)]

    def check_state(self, state: Mapping[str, Any]) -> None:
        """Raise if the state is not for these weights and chains."""
        super().check_state(state)
        if len(state["sigma"]) != self.chains:
            raise ValueError(f"state_dict must be of {self.chains} chains, but got {len(state['sigma'])}.")
        for kind in ("rho", "rho_bar"):
            shapes = [tuple(tensor.shape) for tensor in state[kind]]
            own = [tuple(weight.shape) for weight in self.weights.values()]
            if shapes and shapes != own:
                raise ValueError(f"state_dict must hold a {kind} of the shapes {own} or none, but got {shapes}.")


class StackedScale(Scale):
    """Sigma of every chain, learnt from the residuals of that chain.

    Args:
        scale: Settings and initial sigma.
        chains: Number of chains.
        device: Of the weights.

    Attributes:
        sigmas: Sigma of each chain, (chains,).
    """

    def __init__(self, scale: Scale, chains: int, device: torch.device) -> None:
        super().__init__(scale.sigma, scale.nu, scale.lam, scale._coupling, scale.average)
        self.sigmas = torch.full((chains,), scale.sigma, dtype=torch.float64, device=device)

    @property
    def of_each_prior(self) -> Tensor:
        """The sigmas in the densities of the weights: 1 where they are independent of the noise."""
        return torch.ones_like(self.sigmas) if self.coupling == "independent" else self.sigmas

    def update_each(self, omega: float, b: Tensor, j: Tensor, num_weights: int, num_data: int) -> None:
        """Move every sigma towards the maximum of its Q1 by ``omega``, given B and J of each chain."""
        new = self._maxima(b, j, num_weights, num_data).clamp_min(SMALLEST)
        if self.average == "sigma":
            self.sigmas = self.sigmas + omega * (new - self.sigmas)
        else:
            self.sigmas = ((1.0 - omega) * self.sigmas.square() + omega * new.square()).sqrt()

    def _maxima(self, b: Tensor, j: Tensor, num_weights: int, num_data: int) -> Tensor:
        if self._squares is None:
            return mixture.sigma_classification(b=b, j=j, num_weights=num_weights, nu=self.nu, lam=self.lam)
        squares = self._squares.double() * num_data / self._rows
        num_targets = self._targets * num_data / self._rows
        if self.coupling == "independent":
            return mixture.sigma_independent(squares=squares, num_targets=num_targets, nu=self.nu, lam=self.lam)
        return mixture.sigma_regression(
            b=b, j=j, squares=squares, num_targets=num_targets, num_weights=num_weights, nu=self.nu, lam=self.lam
        )


def _sums(values: Tensor) -> Tensor:
    """The sum over all but the first dimension, (chains,)."""
    return values.reshape(len(values), -1).sum(1).double()


def _weighted_sums(weight: Affine, values: Tensor, smoothed: Tensor | None) -> Tensor:
    """The sum of ``(base + slope * smoothed) * values`` of every chain."""
    plain = weight.base * _sums(values)
    return plain if smoothed is None else plain + weight.slope * _sums(values * smoothed)


def _beside(of_chains: Tensor, beta: Tensor) -> Tensor:
    """A number for each chain, in the dtype of ``beta`` and in a shape that broadcasts over its chains."""
    return of_chains.to(beta.dtype).view(-1, *(1,) * (beta.ndim - 1))
