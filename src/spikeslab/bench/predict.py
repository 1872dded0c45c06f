"""Posterior prediction with many samples of the UCI network, in units of one forward pass of one network.

"One forward pass" is ``model(x)`` without gradients on the same rows. At few rows it is all overhead, and many samples
cost little more than one; at thousands it is arithmetic, of which 20 samples have 20 times as much.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn

from spikeslab.bench.timing import HOW, Findings, Plan, measure
from spikeslab.likelihoods import GaussianLikelihood
from spikeslab.paper.uci.network import MLP
from spikeslab.posterior import Posterior
from spikeslab.priors import SpikeSlab
from spikeslab.report.tables import Column, Table
from spikeslab.weights import select_weights

SAMPLES, FEATURES = 20, 13
ROWS = (1, 50, 100, 1000)
BLOCKS = len(ROWS)
FORWARD = "forward"


def run(plan: Plan) -> Findings:
    """Ratios for each number of rows."""
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


def _candidates(model: nn.Module, one: Posterior, many: Posterior, x: Tensor) -> dict[str, Callable[[], object]]:
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
