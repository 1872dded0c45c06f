r"""Convergence of chains of networks: R-hat and effective sample sizes of predictions, norms, latents and weights.

The weights of a network are too many to look at one by one, and those of two chains need not agree: hidden units can
swap places and scales without a change of the function. So the chains are compared, in this order, in their
predictions, the norm of each layer, the latents, and some weights chosen at random.

R-hat (:mod:`spikeslab.functional.convergence`) compares the spread between chains with the spread within them. A single
chain counts as two halves, which shows drift but cannot show that another chain would have gone elsewhere.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from statistics import NormalDist
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch.linalg import vector_norm

from spikeslab.errors import StateError
from spikeslab.functional.convergence import NEEDED_DRAWS, ess_bulk, ess_tail, rhat
from spikeslab.posterior.samples import Tensors

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from spikeslab.posterior.posterior import Posterior

    Draws = NDArray[np.float64]

LARGEST_RHAT = 1e6  # of chains that stand still at different values it would be infinite, which JSON cannot hold
SCALARS = 200
WEIGHTS = 100
PREDICTIONS, NORMS, SIGMA, DELTA, SOME_WEIGHTS = "predictions", "norms of layers", "sigma", "delta", "some weights"
STATISTICS = ("running_mean", "running_var", "num_batches_tracked")


@dataclass(frozen=True)
class Convergence:
    """Agreement of chains in quantities of one kind; the worst of them counts.

    Attributes:
        name: Kind of the quantities.
        count: Number of quantities that vary and were assessed; if there is none, the numbers below are NaN.
        chains: Chains compared.
        draws: Samples of each chain.
        rhat: The largest R-hat: 1 where the chains agree, 1e6 where they stand still apart, NaN for too few draws.
        ess_bulk: The smallest effective sample size of the mean, over all chains.
        ess_tail: The smallest effective sample size of the 5 % and 95 % quantiles.
    """

    name: str
    count: int
    chains: int
    draws: int
    rhat: float
    ess_bulk: float
    ess_tail: float

    @property
    def chance(self) -> float:
        r"""R-hat that independent draws exceed in one of 100 cases.

        With M split chains of n draws the means of a scalar spread by chance such that
        :math:`\hat R^2 \approx 1 + (\chi^2_{M-1}/(M-1) - 1)/n`; the largest of ``count`` scalars, each looked at
        twice (in the bulk and in the tails), is that of the quantile at :math:`1 - 0.01/(2\,\mathrm{count})`.
        """
        parts = 4 if self.chains == 1 else 2 * self.chains
        length = self.draws * self.chains // parts
        if not length or not self.count:
            return math.inf
        return math.sqrt(1.0 + (_chi_square_quantile(1.0 - 0.005 / self.count, parts - 1) / (parts - 1) - 1.0) / length)


def _chi_square_quantile(probability: float, freedom: int) -> float:
    """Return the quantile by the cube root of Wilson and Hilferty, within about one per cent in the upper tail.

    >>> abs(_chi_square_quantile(0.99, 3) - 11.345) < 0.05
    True
    """
    z = NormalDist().inv_cdf(probability)
    return freedom * float((1.0 - 2.0 / (9.0 * freedom) + z * math.sqrt(2.0 / (9.0 * freedom))) ** 3)


def assess(name: str, draws: Draws, *, seed: int = 0) -> Convergence:
    """Compare chains in the scalars of one kind.

    >>> chains = np.random.default_rng(0).normal(size=(4, 100, 3))
    >>> result = assess("noise", chains)
    >>> result.rhat < 1.05, result.count
    (True, 3)

    Args:
        name: Kind of the scalars.
        draws: Draws of shape (chains, draws) or (chains, draws, scalars).
        seed: Seed of the choice of scalars where there are more than 200.
    """
    chains, length = draws.shape[:2]
    scalars = draws.reshape(chains, length, math.prod(draws.shape[2:]))
    scalars = scalars[:, :, np.ptp(scalars, axis=(0, 1)) > 0] if length else scalars[:, :, :0]
    if scalars.shape[2] > SCALARS:
        scalars = scalars[:, :, np.sort(np.random.default_rng(seed).permutation(scalars.shape[2])[:SCALARS])]
    count = scalars.shape[2]
    if not count or length < NEEDED_DRAWS * (2 if chains == 1 else 1):
        return Convergence(name, count, chains, length, math.nan, math.nan, math.nan)
    halves = np.stack([scalars[0, : length // 2], scalars[0, -(length // 2) :]]) if chains == 1 else scalars
    return Convergence(
        name,
        count,
        chains,
        length,
        rhat=min(max(_drop_nan(map(rhat, np.moveaxis(halves, 2, 0))), default=math.nan), LARGEST_RHAT),
        ess_bulk=min(_drop_nan(map(ess_bulk, np.moveaxis(scalars, 2, 0))), default=math.nan),
        ess_tail=min(_drop_nan(map(ess_tail, np.moveaxis(scalars, 2, 0))), default=math.nan),
    )


def _drop_nan(numbers: Iterable[float]) -> Iterator[float]:
    return (number for number in numbers if not math.isnan(number))


def weight_draws(chains: Sequence[Iterable[Tensors]], *, seed: int = 0) -> dict[str, Draws]:
    """Return the norms of all layers and the values of some random weights that the first sample does not prune.

    The chains have equal numbers of samples, which are read one at a time.
    """
    picks: dict[str, torch.Tensor] = {}
    norms, values = [], []
    for chain in chains:
        for tensors in chain:
            weights = learned_tensors(tensors)
            picks = picks or _pick(weights, seed)
            norms.append([float(vector_norm(weight, dtype=torch.float64)) for weight in weights.values()])
            values.append([x for name, index in picks.items() for x in weights[name].reshape(-1)[index].tolist()])
    length = len(norms) // len(chains)
    return {
        NORMS: np.array(norms, dtype=np.float64).reshape(len(chains), length, -1),
        SOME_WEIGHTS: np.array(values, dtype=np.float64).reshape(len(chains), length, -1),
    }


def learned_tensors(tensors: Tensors) -> Tensors:
    """Return the floating-point tensors without the statistics of batch normalisation, which follow the weights."""
    return {
        name: tensor
        for name, tensor in tensors.items()
        if tensor.is_floating_point() and name.rpartition(".")[2] not in STATISTICS
    }


def _pick(weights: Tensors, seed: int) -> dict[str, torch.Tensor]:
    alive = {name: weight.reshape(-1).nonzero().reshape(-1) for name, weight in weights.items()}
    ends = np.cumsum([len(index) for index in alive.values()])
    chosen = np.random.default_rng(seed).permutation(int(ends[-1]))[:WEIGHTS]
    starts = ends - [len(index) for index in alive.values()]
    return {
        name: index[torch.from_numpy(np.sort(chosen[(chosen >= start) & (chosen < end)] - start))]
        for (name, index), start, end in zip(alive.items(), starts, ends, strict=True)
    }


def latent_draws(posteriors: Sequence[Posterior], length: int) -> dict[str, Draws]:
    """Return sigma and delta of the last ``length`` samples of each chain, where they were kept."""
    records = [posterior.records[-length:] for posterior in posteriors]
    draws: dict[str, Draws] = {}
    if all(record.sigma is not None for chain in records for record in chain):
        draws[SIGMA] = np.array([[record.sigma for record in chain] for chain in records], dtype=np.float64)
    if all(record.delta is not None for chain in records for record in chain):
        deltas = [[list((record.delta or {}).values()) for record in chain] for chain in records]
        draws[DELTA] = np.array(deltas, dtype=np.float64)
    return draws


def common_length(posteriors: Sequence[Posterior]) -> int:
    """Return the number of samples of the shortest chain; of the others the last ones are used."""
    length = min(len(posterior) for posterior in posteriors)
    if not length:
        raise StateError("Every chain must hold a sample, but one has none.")
    return length


def prediction_draws(
    posteriors: Sequence[Posterior], inputs: tuple[Any, ...], batch_size: int | None, length: int
) -> Draws:
    """Return the predictions of the last ``length`` samples of each chain, of shape (chains, draws, rows, ...)."""
    chains = []
    for posterior in posteriors:
        skipped = len(posterior) - length
        outputs = posterior.outputs(*inputs, batch_size=batch_size)
        chains.append([value.double().cpu().numpy() for i, value in enumerate(outputs) if i >= skipped])
    return np.array(chains, dtype=np.float64)


def assess_convergence(
    posteriors: Sequence[Posterior], inputs: tuple[Any, ...], batch_size: int | None = None, seed: int = 0
) -> list[Convergence]:
    """Assess predictions on ``inputs`` (where given), norms of layers, latents and some weights, in this order."""
    length = common_length(posteriors)
    draws: dict[str, Draws] = {}
    if inputs:
        draws[PREDICTIONS] = prediction_draws(posteriors, inputs, batch_size, length)
    weights = weight_draws([map(p.tensors, range(len(p) - length, len(p))) for p in posteriors], seed=seed)
    draws |= {NORMS: weights[NORMS], **latent_draws(posteriors, length), SOME_WEIGHTS: weights[SOME_WEIGHTS]}
    return [assess(name, values, seed=seed) for name, values in draws.items()]
