"""Regression on UCI data (appendix D): one method on one data set, its 20 splits as stacked chains.

The preset ``paper`` repeats the authors' code: the loss is the sum of squares, without 1/(2 sigma^2), on the targets of
the file. The preset ``default`` has standardised targets, a Gaussian likelihood with a learned sigma, and a prior that
does not scale with it. Both standardise the features by the training rows of the split.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from spikeslab.likelihoods import StackedGaussianLikelihood
from spikeslab.metrics import gaussian_log_score, interval_coverage, root_mean_squared_error
from spikeslab.paper.grid import Record, round_digits
from spikeslab.paper.uci.data import UCIData
from spikeslab.paper.uci.network import MLP
from spikeslab.parallel.stacked import StackedModel
from spikeslab.posterior.prediction import Average, Prediction
from spikeslab.presets import Preset, paper_uci
from spikeslab.priors import SA, Adaptation, Marginal, StackedSpikeSlab
from spikeslab.samplers import SGHMC
from spikeslab.schedules import constant, cosine, geometric, polynomial
from spikeslab.weights import select_weights

METHODS = {
    "SGHMC": ("fixed", False),
    "A-SGHMC": ("fixed", True),
    "SGHMC-EM": ("em", False),
    "A-SGHMC-EM": ("em", True),
    "SGHMC-SA": ("sa", False),
    "A-SGHMC-SA": ("sa", True),
}
PRESETS = ("default", "paper")
LEVEL = 0.9
PAPER_VARIANCE = 0.5  # exp(-squares) is the density of a Gaussian with this variance


@dataclass(frozen=True)
class UCIDefaults:
    """Hyper-parameters of the default preset, chosen on validation rows; see ``docs/reproduce.md``.

    Half a cosine leads from ``lr`` to ``lr_end``, the lr of the second half, which is averaged. The temperature of an
    annealed run falls from 1 to ``coldest``.
    """

    lr: float = 1e-2
    lr_end: float = 1e-3
    v0: float = 0.2
    v1: float = 1.0
    coldest: float = 0.1
    epochs: int = 500
    batch_size: int = 50


CHOSEN = {
    "boston": UCIDefaults(),
    "yacht": UCIDefaults(lr_end=3e-4, epochs=1000),
    "energy": UCIDefaults(v0=0.5, epochs=700),
    "energy-heating": UCIDefaults(v0=0.5, epochs=700),
    "wine": UCIDefaults(v0=0.1, epochs=150),
    "concrete": UCIDefaults(v0=0.5, epochs=600),
}


def make_preset(preset: str, dataset: str, method: str, rows: int, epochs: int) -> Preset:
    """Return the preset of a method for a data set with that many training rows.

    The paper's SGHMC has no prior but the weight decay of 1e-4: its arguments of the prior are empty.
    """
    if preset == "default":
        return default_preset(method, rows, epochs, CHOSEN[dataset])
    kind, anneal = METHODS[method]
    paper = paper_uci(dataset.removesuffix("-heating"), method=kind, anneal=anneal, num_data=rows)
    return replace(paper, prior={}) if kind == "fixed" else paper


def default_preset(method: str, rows: int, epochs: int, chosen: UCIDefaults) -> Preset:
    """Return a preset with a Gaussian likelihood and a learned sigma; the prior of SGHMC is the slab alone.

    EM is ``Marginal``, which has the same gradient: with omega = 1 sigma would follow the residuals of every batch.
    """
    kind, anneal = METHODS[method]
    steps = epochs * (rows // chosen.batch_size)
    schedule = polynomial(1.0, power=0.7, offset=100)
    adapt: Adaptation = Marginal(schedule) if kind == "em" else SA(schedule)
    prior: dict[str, Any] = {"v0": chosen.v0, "v1": chosen.v1, "delta": 0.5, "b": 1.0, "adapt": adapt}
    if kind == "fixed":
        prior |= {"delta": 1.0 - 1e-9, "rho": 1.0, "learn_delta": False}
    sampler = {
        "lr": cosine(chosen.lr, total=max(1, steps // 2), final=chosen.lr_end),
        "momentum": 0.9,
        "num_data": rows,
        "temperature": geometric(1.0, chosen.coldest ** (1.0 / steps)) if anneal else constant(1.0),
        "weight_decay": 1.0 / (chosen.v1 * rows),
    }
    prior |= {"sigma_coupling": "independent", "nu": 1.0, "lam": 1e-3}
    return Preset(sampler, prior, chosen.batch_size, steps)


@dataclass(frozen=True)
class Splits:
    """Splits of a data set, stacked: (splits, rows, ...), the features standardised by the training rows."""

    x_train: Tensor
    y_train: Tensor
    x_test: Tensor
    y_test: Tensor

    @classmethod
    def of(cls, data: UCIData) -> Splits:
        """Cut a data set along its splits."""
        x_train, x_test = data.x[data.train], data.x[data.test]
        mean, std = x_train.mean(1, keepdim=True), x_train.std(1, keepdim=True, correction=0)
        std = torch.where(std == 0.0, 1.0, std)
        parts = (x_train - mean) / std, data.y[data.train], (x_test - mean) / std, data.y[data.test]
        return cls(*(part.float() for part in parts))


def sample_splits(splits: Splits, preset: Preset, *, standardise: bool, epochs: int, seed: int) -> Record:
    """Run one chain for each split, all at once, and return the scores of their predictions of the test rows.

    The average is over samples at the end of every epoch in the second half of the run. With ``standardise`` the target
    has a Gaussian likelihood with a learned sigma; otherwise the loss is the sum of squares.
    """
    chains, rows, features = splits.x_train.shape
    generator = torch.Generator().manual_seed(seed)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = StackedModel([MLP(features) for _ in range(chains)])
    centre, unit = torch.zeros(chains, 1), torch.ones(chains, 1)
    if standardise:
        centre, unit = splits.y_train.mean(1, keepdim=True), splits.y_train.std(1, keepdim=True)
    target = (splits.y_train - centre) / unit
    prior = StackedSpikeSlab(select_weights(model, "*.weight"), **preset.prior) if preset.prior else None
    # A chain that diverges is counted; it must not stop the others.
    sampler = SGHMC(model.parameters(), prior=prior, seed=seed, fused=False, check_finite=False, **preset.sampler)
    loss: _Squares | StackedGaussianLikelihood = _Squares(prior)
    if standardise and prior is not None:
        loss = StackedGaussianLikelihood(prior)
    average, own = Average(), torch.arange(chains).unsqueeze(1)
    for epoch in range(1, epochs + 1):
        for batch in _epoch(chains, rows, preset.batch_size, generator):
            sampler.zero_grad()
            loss(model(splits.x_train[own, batch]).squeeze(2), target[own, batch]).backward()
            sampler.step()
        if 2 * epoch > epochs:
            with torch.no_grad():
                last = model(splits.x_test).squeeze(2) * unit + centre
            variance = loss.sigma.square().unsqueeze(1).float() * unit.square()
            average.add(last.unsqueeze(0), variance.expand_as(last).unsqueeze(0), [1.0])
    return _score(last, average.result(), splits.y_test, model.find_diverged())


class _Squares:
    """Loss of the authors' code, the mean of squares; the prior learns the residuals from it as from a likelihood."""

    def __init__(self, prior: StackedSpikeSlab | None) -> None:
        self.sigma = torch.tensor([PAPER_VARIANCE]).sqrt()
        self._residuals = None if prior is None else prior.scale.learn_from_residuals(prior.weights.values())

    def __call__(self, prediction: Tensor, target: Tensor) -> Tensor:
        rows = prediction.shape[1]
        squares = (prediction - target).square().sum(1)
        if self._residuals is not None:
            self._residuals.add(squares, rows, rows)
        return squares.sum() / rows


def _epoch(chains: int, rows: int, batch_size: int, generator: torch.Generator) -> Iterator[Tensor]:
    """Yield row numbers (chains, batch_size) of every whole batch of a new shuffle for each chain."""
    order = torch.rand(chains, rows, generator=generator).argsort(1)
    yield from order[:, : rows // batch_size * batch_size].split(batch_size, dim=1)


def _score(last: Tensor, average: Prediction, targets: Tensor, diverged: list[int]) -> Record:
    """Return RMSE, log score and coverage of each split, in units of the file; ``None`` where its chain diverged."""
    rows: list[list[float | None]] = []
    for split, target in enumerate(targets):
        mean, variance = average.mean[split], average.variance[split]
        errors = [root_mean_squared_error(prediction, target) for prediction in (last[split], mean)]
        scores = gaussian_log_score(mean, variance, target), interval_coverage(mean, variance, target, LEVEL)
        rows.append([None] * 4 if split in diverged else round_digits([*errors, *scores]))
    names = ("rmse_last", "rmse", "log_score", "coverage")
    return {**dict(zip(names, map(list, zip(*rows, strict=True)), strict=True)), "diverged": diverged}
