"""What many stacked chains of the UCI network cost beside one."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from spikeslab.bench.timing import HOW, Findings, Plan, measure
from spikeslab.likelihoods import GaussianLikelihood, StackedGaussianLikelihood
from spikeslab.paper.uci.network import MLP
from spikeslab.parallel.stacked import StackedModel
from spikeslab.priors import SpikeSlab, StackedSpikeSlab
from spikeslab.report.tables import Cell, Column, Table
from spikeslab.samplers import SGHMC
from spikeslab.weights import select_weights

BLOCKS = 1
CHAINS, ROWS, FEATURES, NUM_DATA = 20, 50, 13, 455
PRIOR: dict[str, Any] = {"v0": 0.1, "v1": 10.0, "sigma_coupling": "conjugate"}
ONE = "one chain"


def run(plan: Plan) -> Findings:
    """The step of many chains in units of the step of one."""
    torch.manual_seed(plan.seed)
    x, y = torch.randn(CHAINS, ROWS, FEATURES), torch.randn(CHAINS, ROWS, 1)
    candidates = {
        ONE: _one_chain(x[0].clone(), y[0].clone(), plan.seed, fused=None),
        "one chain, fused=False": _one_chain(x[0].clone(), y[0].clone(), plan.seed, fused=False),
        f"{CHAINS} stacked chains, MLP": _stacked(lambda: MLP(FEATURES), x, y, plan.seed),
        f"{CHAINS} stacked chains, torch.vmap": _stacked(_plain, x, y, plan.seed),
    }
    times = measure(candidates, plan, seconds=0.05)
    rows: list[dict[str, Cell]] = [
        {"what": name, "ratio": times.ratio(name, ONE), "median": times.median_ratio(name, ONE)} for name in candidates
    ]
    columns = [Column("what", ""), Column("ratio", "ratio", ".2f"), Column("median", "median", ".2f")]
    notes = [
        f"{FEATURES} features, 50 hidden units, batch {ROWS}: forward, backward and SGHMC-SA with sigma. {HOW} Ratio: "
        f"of the least times of {plan.repeats} rounds; median: of the ratios of each round. One chain has the update "
        "that is the default here, fused where numba is installed; the stacked chains have torch's list operations.",
    ]
    title = f"Time of a step of {CHAINS} chains of the UCI network, in units of one, {plan.words}"
    return Findings({"chains": Table(title, columns, rows, notes, {"microseconds": times.microseconds()})})


def _plain() -> nn.Module:
    """The same network without a stacked forward pass of its own."""
    return nn.Sequential(nn.Linear(FEATURES, 50), nn.ReLU(), nn.Linear(50, 1))


def _one_chain(x: torch.Tensor, y: torch.Tensor, seed: int, *, fused: bool | None) -> Callable[[], None]:
    model = MLP(FEATURES)
    prior = SpikeSlab(select_weights(model, "*.weight"), **PRIOR)
    sampler = SGHMC(model.parameters(), lr=1e-6, num_data=NUM_DATA, prior=prior, seed=seed, fused=fused)
    return _step(model, sampler, GaussianLikelihood(prior), x, y)


def _stacked(build: Callable[[], nn.Module], x: torch.Tensor, y: torch.Tensor, seed: int) -> Callable[[], None]:
    model = StackedModel([build() for _ in range(CHAINS)])
    prior = StackedSpikeSlab(select_weights(model, "*.weight"), **PRIOR)
    sampler = SGHMC(model.parameters(), lr=1e-6, num_data=NUM_DATA, prior=prior, seed=seed, fused=False)
    return _step(model, sampler, StackedGaussianLikelihood(prior), x, y)


def _step(
    model: nn.Module, sampler: SGHMC, likelihood: Callable[..., torch.Tensor], x: torch.Tensor, y: torch.Tensor
) -> Callable[[], None]:
    def step() -> None:
        sampler.zero_grad()
        likelihood(model(x), y).backward()
        sampler.step()

    return step
