r"""The spike-and-slab prior of stacked chains, each of which has its own latents.

The weights have a leading dimension of chains. :math:`\rho` and :math:`\kappa` are tensors like the weights, and
:math:`\sigma_k` and :math:`\delta_{lk}` replace the single numbers of :class:`~spikeslab.SpikeSlab`. Nothing is summed
over chains, so chain k is, given the same noise, the chain that would run alone; a chain that diverges leaves the
others as they are.

The mixture is a scale family: :math:`\tilde\rho` depends on :math:`\beta/\sigma` alone, and so does the elastic net
:math:`l_1|\beta|/\sigma_k + l_2\beta^2/(2\sigma_k^2)`. Omega is the same for all chains, hence :math:`l_1` and
:math:`l_2` are the same affine functions of the smoothed rho for all of them.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from spikeslab.errors import ArgumentValueError, Phrase, quote
from spikeslab.functional import mixture
from spikeslab.priors.adaptation import Marginal
from spikeslab.priors.base import Prior
from spikeslab.priors.spike_slab import SpikeSlab
from spikeslab.weights import Weights


class StackedSpikeSlab(Prior):
    """:class:`~spikeslab.SpikeSlab` for stacked chains, each with its own rho, kappa, sigma and delta.

    >>> prior = StackedSpikeSlab([torch.zeros(3, 5, 4)], v0=1e-3, v1=1.0)
    >>> prior.chains, prior.sigma.shape, prior.delta["weights[0]"].shape
    (3, torch.Size([3]), torch.Size([3]))

    Args:
        weights: Sparse weights of a ``StackedModel``, with the chains along their first dimension.
        **settings: Settings of ``SpikeSlab``, the same for all chains.

    Attributes:
        chains: Number of chains.
        scale: Sigma of each chain.
    """

    def __init__(self, weights: Weights, **settings: Any) -> None:
        super().__init__(weights)
        if self._ranks:
            raise ArgumentValueError("weights", "must not be sharded for stacked chains", Phrase("got DTensors"))
        counts = {len(weight) if weight.ndim else 0 for weight in self.weights.values()}
        if len(counts) > 1 or counts == {0}:
            expectation = "must have the same number of chains along their first dimension"
            raise ArgumentValueError("weights", expectation, sorted(counts))
        self.chains = counts.pop()
        if settings.get("evidence", "magnitude") != "magnitude":
            raise ArgumentValueError("evidence", "must be 'magnitude' for stacked chains", settings["evidence"])
        # The prior of one chain keeps what all chains share: the settings and the progress of kappa.
        self._each = SpikeSlab({name: weight.detach()[0] for name, weight in self.weights.items()}, **settings)
        device = next(iter(self.weights.values())).device
        self.scale = self._each.scale.stack(self.chains, device)
        initial = torch.tensor(list(self._each.delta.values()), dtype=torch.float64, device=device)
        self._deltas = initial.unsqueeze(1).repeat(1, self.chains)
        sizes = torch.tensor(self._each._sizes, device=device)
        self._layer_of = torch.arange(len(sizes), device=device).repeat_interleave(sizes)
        # (chains, weights of all layers): they are so small that one operation on all costs as much as one on a layer.
        self._rho: Tensor | None = None
        self._rho_bar: Tensor | None = None

    @property
    def sigma(self) -> Tensor:
        """Current sigma of each chain, (chains,)."""
        return self.scale.sigma

    @property
    def delta(self) -> dict[str, Tensor]:
        """Inclusion probability of each layer and chain, (chains,)."""
        return dict(zip(self.weights, self._deltas, strict=True))

    @property
    def rho(self) -> dict[str, Tensor]:
        """Probability of the slab for every weight of every chain."""
        beta = self._beta()
        if isinstance(self._each.adapt, Marginal):
            rho = self._responsibilities(beta)
        else:
            rho = torch.full_like(beta, self._each._initial_rho) if self._rho is None else self._rho
        return dict(zip(self.weights, self._layers(rho), strict=True))

    @property
    def kappa(self) -> dict[str, tuple[Tensor, Tensor]]:
        """Pair (kappa0, kappa1) of every weight of every chain."""
        beta = self._beta()
        smoothed = self._rho_in_kappa(beta)
        smoothed = torch.zeros_like(beta) if smoothed is None else smoothed
        both = (smoothed * kappa.slope + kappa.base for kappa in self._each._kappa())
        return dict(zip(self.weights, zip(*map(self._layers, both), strict=True), strict=True))

    def penalties(self, num_data: int = 1) -> Tensor:
        """Return the penalty in the mean loss of each chain, (chains,), as ``SpikeSlab.penalty``."""
        sigma = self.scale.of_prior
        if isinstance(self._each.adapt, Marginal):
            logs = [
                mixture.log_marginal(beta[chain], **densities, delta=float(delta[chain])).sum()
                for chain, densities in enumerate(self._each._densities() | {"sigma": s} for s in sigma.tolist())
                for beta, delta in zip(self._betas(), self._deltas, strict=True)
            ]
            return -torch.stack(logs).view(self.chains, -1).sum(1).double() / num_data
        b, j = self._elastic_net_sums(self._beta())
        return (b / sigma + j / (2.0 * sigma.square())) / num_data

    def penalty(self, num_data: int = 1) -> float:
        """Return the sum of :meth:`penalties`: the loss of stacked chains is the sum of theirs."""
        return float(self.penalties(num_data).sum())

    def latents(self) -> dict[str, Any]:
        """Return the means over the chains of sigma and of the delta of each layer."""
        deltas = {name: float(delta.mean()) for name, delta in self.delta.items()}
        return {"sigma": float(self.sigma.mean()), "delta": deltas}

    def check_ready(self) -> None:
        """Raise if sigma needs residuals and there are none."""
        if self._each.adapt.learns:
            self.scale.check_ready()

    @torch.no_grad()
    def update(self, step: int, num_data: int) -> None:
        """Move the latents of every chain by one step of stochastic approximation (eqs. 12-15)."""
        omega = self._each.adapt.omega(step)
        if omega > 0.0:
            beta = self._beta()
            rho = self._responsibilities(beta)
            if not isinstance(self._each.adapt, Marginal):
                if self._rho is None or self._rho_bar is None:
                    self._rho = torch.full_like(beta, self._each._initial_rho)
                    self._rho_bar = torch.zeros_like(beta)
                rho = self._rho.lerp_(rho, omega)
                self._rho_bar.lerp_(rho, omega)
            self._each._advance(omega)
            self._maximise(omega, num_data, beta, rho)
        self.scale.clear_residuals()

    def _maximise(self, omega: float, num_data: int, beta: Tensor, rho: Tensor) -> None:
        """Move sigma and delta of every chain towards the maxima of Q (eqs. 14 and 15)."""
        if self.scale.coupling != "fixed":
            nothing = torch.zeros_like(self.sigma), torch.zeros_like(self.sigma)
            sums = self._elastic_net_sums(beta) if self.scale.coupling == "conjugate" else nothing
            self.scale.update(omega, *sums, sum(self._each._sizes), num_data)
        if self._each.learn_delta:
            layers = zip(rho.split(self._each._sizes, dim=1), self._each._sizes, self._each._b, strict=True)
            new = [
                mixture.delta(rho_sum=of_layer.sum(1), num_weights=size, a=self._each._a, b=b)
                for of_layer, size, b in layers
            ]
            self._deltas = self._deltas.lerp(torch.stack(new).double(), omega)

    def _responsibilities(self, beta: Tensor) -> Tensor:
        odds = mixture.log_odds(**self._each._densities() | {"sigma": 1.0}, deltas=[0.5])[0]
        offsets = (self._deltas.logit(eps=mixture.TINY) + odds.offset).to(beta.dtype)
        if self._each.sigma_in_rho and self.scale.coupling != "independent":
            beta = beta / self.sigma.to(beta.dtype).unsqueeze(1)
        return mixture.slab_probability(beta, odds.linear, odds.quadratic, offsets.t()[:, self._layer_of])

    def _rho_in_kappa(self, beta: Tensor) -> Tensor | None:
        """Return the rho in kappa, or ``None`` while no latent has moved and it is zero."""
        return self._responsibilities(beta) if isinstance(self._each.adapt, Marginal) else self._rho_bar

    def _elastic_net_sums(self, beta: Tensor) -> tuple[Tensor, Tensor]:
        """Return B and J of every chain, (chains,)."""
        l1, l2 = mixture.elastic_net(*self._each._kappa(), self._each.spike, self._each.slab)
        sums = mixture.moments(beta, self._rho_in_kappa(beta), dim=1).double()
        return l1.of_sums(sums[0], sums[2]), l2.of_sums(sums[1], sums[3])

    def _add_gradient_(self, indices: list[int], betas: list[Tensor], outs: list[Tensor], num_data: int) -> None:
        beta = self._beta()
        l1, l2 = mixture.elastic_net(*self._each._kappa(), self._each.spike, self._each.slab)
        smoothed = self._rho_in_kappa(beta)
        sigma = self.scale.of_prior.to(beta.dtype).unsqueeze(1)
        gradient = torch.zeros_like(beta)
        of_weights = None if smoothed is None else [smoothed]
        mixture.add_elastic_net_gradient_([gradient], [beta / sigma], of_weights, l1, l2)
        layers = self._layers(gradient.div_(sigma * num_data))
        torch._foreach_add_(outs, [layers[index] for index in indices])

    def _beta(self) -> Tensor:
        """Return all weights, (chains, weights of all layers)."""
        return torch.cat([beta.reshape(self.chains, -1) for beta in self._betas()], dim=1)

    def _layers(self, flat: Tensor) -> list[Tensor]:
        """Return the layers that :meth:`_beta` joins, in the shapes of the weights."""
        parts = flat.split(self._each._sizes, dim=1)
        return [part.reshape(weight.shape) for part, weight in zip(parts, self.weights.values(), strict=True)]

    def settings_dict(self) -> dict[str, Any]:
        """Return the settings that all chains share."""
        return self._each.settings_dict() | super().settings_dict()

    def load_settings(self, settings: Mapping[str, Any]) -> None:
        """Check that the settings are those that the prior was made with; stacked chains keep them."""
        own = self.settings_dict()
        odd = [name for name, value in settings.items() if value != own[name] or name in ("sigma", "delta")]
        if odd:
            got = Phrase(f"{quote(odd)} would change")
            raise ArgumentValueError("prior", "of stacked chains must keep its settings", got)

    def state_dict(self) -> dict[str, Any]:
        """Return the latents of all chains and counters."""
        return super().state_dict() | {
            "sigma": self.sigma,
            "delta": self._deltas,
            "omega_sum": self._each._omega_sum,
            "progress": self._each._progress,
            "rho": self._rho,
            "rho_bar": self._rho_bar,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Load latents and counters; a state of other weights is refused and changes nothing."""
        self.check_state(state)
        self.scale.clear_residuals()
        self.scale.sigma = torch.empty_like(self.sigma).copy_(state["sigma"])
        self._deltas = torch.empty_like(self._deltas).copy_(state["delta"])
        self._each._omega_sum = float(state["omega_sum"])
        self._each._progress = float(state["progress"])
        beta = self._beta()
        self._rho, self._rho_bar = (
            None if state[kind] is None else torch.empty_like(beta).copy_(state[kind]) for kind in ("rho", "rho_bar")
        )

    def check_state(self, state: Mapping[str, Any]) -> None:
        """Raise if the state is not for these weights and chains."""
        super().check_state(state)
        if len(state["sigma"]) != self.chains:
            raise ArgumentValueError("state_dict", f"must be of {self.chains} chains", len(state["sigma"]))
        own = self.chains, sum(self._each._sizes)
        for kind in ("rho", "rho_bar"):
            if state[kind] is not None and tuple(state[kind].shape) != own:
                expectation = f"must hold a {kind} of the shape {own} or none"
                raise ArgumentValueError("state_dict", expectation, tuple(state[kind].shape))
