"""Cost of many chains and of many samples of the UCI network, in units of one chain and of one forward pass.

A forward pass is ``model(x)`` without gradients on the same rows. On few rows it is all overhead, and many samples cost
little more than one; on thousands of rows it is arithmetic, of which 20 samples have 20 times as much.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from spikeslab.bench.suites import BenchPlan, Findings
from spikeslab.bench.timing import HOW, Candidates, measure, ratio_note, ratio_table, training_step
from spikeslab.likelihoods import GaussianLikelihood, StackedGaussianLikelihood
from spikeslab.paper.uci.network import MLP
from spikeslab.parallel.stacked import StackedModel
from spikeslab.posterior import Posterior
from spikeslab.priors import SpikeSlab, StackedSpikeSlab
from spikeslab.report.tables import Column, Table
from spikeslab.samplers import SGHMC
from spikeslab.weights import select_weights

FEATURES, NUM_DATA = 13, 455
PRIOR: dict[str, Any] = {"v0": 0.1, "v1": 10.0, "sigma_coupling": "conjugate"}
CHAINS, BATCH, ONE = 20, 50, "one chain"
SAMPLES, ROWS, FORWARD = 20, (1, 50, 100, 1000), "forward"


def run_chains(plan: BenchPlan) -> Findings:
    """Time a step of many stacked chains in units of a step of one."""
    torch.manual_seed(plan.seed)
    x, y = torch.randn(CHAINS, BATCH, FEATURES), torch.randn(CHAINS, BATCH, 1)

    def plain() -> nn.Module:  # the same network without a stacked forward pass of its own
        return nn.Sequential(nn.Linear(FEATURES, 50), nn.ReLU(), nn.Linear(50, 1))

    candidates = {
        ONE: _one_chain(x[0].clone(), y[0].clone(), plan.seed, fused=None),
        "one chain, fused=False": _one_chain(x[0].clone(), y[0].clone(), plan.seed, fused=False),
        f"{CHAINS} stacked chains, MLP": _stack_chains(lambda: MLP(FEATURES), x, y, plan.seed),
        f"{CHAINS} stacked chains, torch.vmap": _stack_chains(plain, x, y, plan.seed),
    }
    times = measure(candidates, plan, seconds=0.05)
    note = (
        f"{FEATURES} features, 50 hidden units, batch {BATCH}: forward, backward and SGHMC-SA with sigma. "
        f"{ratio_note(plan)} One chain has the update that is the default here, fused where numba is installed; the "
        "stacked chains have torch's list operations."
    )
    title = f"Time of a step of {CHAINS} chains of the UCI network, in units of one, {plan.words}"
    return Findings({"chains": ratio_table(title, times, ONE, note, spec=".2f")})


def run_predict(plan: BenchPlan) -> Findings:
    """Time posterior predictions in units of one forward pass, for several numbers of rows."""
    torch.manual_seed(plan.seed)
    many, one, model = _posterior(SAMPLES), _posterior(1), MLP(FEATURES).eval()
    rows, raw = [], {}
    for count in ROWS:
        x = torch.randn(count, FEATURES)
        times = measure(_candidates(model, one, many, x), plan, seconds=0.01)
        ratios = {name: times.ratio(name, FORWARD) for name in times.seconds if name != FORWARD}
        raw[f"{count} rows"] = times.microseconds()
        rows.append({"rows": count, **ratios, "median": times.median_ratio("many", FORWARD)})
    columns = [
        Column("rows", "rows", ","),
        Column("loop", f"{SAMPLES} forward passes", ".1f"),
        Column("one", "predict, 1 sample", ".1f"),
        Column("many", f"predict, {SAMPLES} samples", ".1f"),
        Column("median", "median", ".1f"),
        Column("predictive", f"predictive, {SAMPLES} samples", ".1f"),
    ]
    notes = [
        f"{FEATURES} features, 50 hidden units, on as many rows as the first column says. {HOW} Ratios of the least "
        f"times of {plan.repeats} rounds; median: of the ratios of each round, for predict with {SAMPLES} samples.",
    ]
    title = f"Time of a prediction of the UCI network, in units of one forward pass, {plan.words}"
    return Findings({"predict": Table(title, columns, rows, notes, {"microseconds": raw})})


def _one_chain(x: Tensor, y: Tensor, seed: int, *, fused: bool | None) -> Callable[[], None]:
    model = MLP(FEATURES)
    prior = SpikeSlab(select_weights(model, "*.weight"), **PRIOR)
    sampler = SGHMC(model.parameters(), lr=1e-6, num_data=NUM_DATA, prior=prior, seed=seed, fused=fused)
    return training_step(model, sampler, GaussianLikelihood(prior), x, y)


def _stack_chains(build: Callable[[], nn.Module], x: Tensor, y: Tensor, seed: int) -> Callable[[], None]:
    model = StackedModel([build() for _ in range(CHAINS)])
    prior = StackedSpikeSlab(select_weights(model, "*.weight"), **PRIOR)
    sampler = SGHMC(model.parameters(), lr=1e-6, num_data=NUM_DATA, prior=prior, seed=seed, fused=False)
    return training_step(model, sampler, StackedGaussianLikelihood(prior), x, y)


def _candidates(model: nn.Module, one: Posterior, many: Posterior, x: Tensor) -> Candidates:
    @torch.no_grad()
    def forward() -> object:
        return model(x)

    return {
        FORWARD: forward,
        "loop": lambda: [forward() for _ in range(SAMPLES)],
        "one": lambda: one.predict(x),
        "many": lambda: many.predict(x),
        "predictive": lambda: many.predictive(x),
    }


def _posterior(samples: int) -> Posterior:
    model = MLP(FEATURES)
    prior = SpikeSlab(select_weights(model, "*.weight"), v0=0.1, v1=10.0)
    posterior = Posterior(model, likelihood=GaussianLikelihood(prior))
    for _ in range(samples):
        for parameter in model.parameters():
            nn.init.normal_(parameter)
        posterior.collect()
    return posterior
