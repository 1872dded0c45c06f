"""Replica exchange on a target with two modes that a single chain cannot leave: does it find both, and their weights?

The target is 0.3 N(-4, 0.6²) + 0.7 N(4, 0.8²), all chains start in the lower mode, and the samples are those at
temperature 1.
"""

from __future__ import annotations

import math
from unittest.mock import patch

import numpy as np
import torch
from torch import Tensor, nn

from spikeslab.bench.suites import BenchPlan, Findings
from spikeslab.parallel import replica_exchange
from spikeslab.parallel.replica_exchange import ReplicaExchange
from spikeslab.parallel.swaps import log_acceptance
from spikeslab.report.tables import Cell, Column, Estimate, Table
from spikeslab.samplers import SGLD

WEIGHTS, MEANS, STDS = (0.3, 0.7), (-4.0, 4.0), (0.6, 0.8)
LADDER = (1.0, 4.0, 16.0)
EVERY, BURN_IN, BATCHES = 2, 1000, 20
NOISE = 6.0  # standard deviation of a noisy energy


def run(plan: BenchPlan) -> Findings:
    """Sample with one chain and with ladders of temperatures, ``plan.repeats`` steps each."""
    steps = max(plan.repeats, BURN_IN + BATCHES)
    rows: list[dict[str, Cell]] = []

    def add(name: str, cells: dict[str, Cell]) -> None:
        rows.append({"method": name, **cells})
        plan.tick(plan.repeats)

    add("one chain", _run_single(steps, plan.seed))
    add("replica exchange, carried", _run_ladder(steps, plan.seed, "carried", 0.0))
    add("replica exchange, frozen", _run_ladder(steps, plan.seed, "frozen", 0.0))
    add("noisy energies, corrected", _run_ladder(steps, plan.seed, "carried", NOISE))
    with patch.object(replica_exchange, "log_acceptance", lambda estimate, variance: log_acceptance(estimate, 0.0)):
        add("noisy energies, not corrected", _run_ladder(steps, plan.seed, "carried", NOISE))
    columns = [
        Column("method", "Method"),
        Column("upper", "share of the upper mode (exact 0.7)", ".3f"),
        Column("square", "square distance from the mode (exact 1)", ".3f"),
        Column("rates", "swap rates"),
        Column("noise", "noise of the log ratio"),
        Column("trips", "round trips", ","),
    ]
    notes = [
        f"SGLD with lr 0.04, temperatures {', '.join(f'{t:g}' for t in LADDER)}, {steps:,} steps with an attempt at "
        f"every second; mean ± standard error from {BATCHES} batches. The lr alone makes the square distance about "
        f"1.04. The noisy energies are four values with standard deviation {NOISE:g} each."
    ]
    return Findings({"two-modes": Table("Two modes, unequal weights: samples at temperature 1", columns, rows, notes)})


def _log_densities(w: Tensor) -> Tensor:
    parts = zip(WEIGHTS, MEANS, STDS, strict=True)
    return torch.stack([math.log(weight / std) - 0.5 * ((w - mean) / std) ** 2 for weight, mean, std in parts])


def _gradient(w: Tensor) -> Tensor:
    shares = _log_densities(w).softmax(0)
    terms = [share * (w - mean) / std**2 for share, mean, std in zip(shares, MEANS, STDS, strict=True)]
    return torch.stack(terms).sum(0)


def _samplers(count: int, seed: int) -> list[tuple[nn.Parameter, SGLD]]:
    weights = [nn.Parameter(torch.full((1,), MEANS[0], dtype=torch.float64)) for _ in range(count)]
    return [
        (weight, SGLD([weight], lr=0.04, num_data=1, check_finite=False, seed=seed + i))
        for i, weight in enumerate(weights)
    ]


def _move(weight: nn.Parameter, sampler: SGLD) -> float:
    """Take a step and return the new weight."""
    weight.grad = _gradient(weight.detach())
    sampler.step()
    return float(weight.detach())


def _run_single(steps: int, seed: int) -> dict[str, Cell]:
    ((weight, sampler),) = _samplers(1, seed)
    trace = [_move(weight, sampler) for _ in range(steps)]
    return {**_summarize(trace), "rates": "–", "noise": "–", "trips": None}


def _run_ladder(steps: int, seed: int, latents: str, noise: float) -> dict[str, Cell]:
    replicas = _samplers(len(LADDER), seed)
    exchange = ReplicaExchange([s for _, s in replicas], LADDER, seed=seed, every=EVERY, latents=latents)
    errors = torch.Generator().manual_seed(seed)

    def loss(replica: int) -> Tensor:
        clean = -_log_densities(replicas[replica][0].detach()).logsumexp(0).sum()
        return clean + noise * torch.randn(4, generator=errors) if noise else clean

    trace = []
    for _ in range(steps):
        for weight, sampler in replicas:
            _move(weight, sampler)
        exchange.step(loss)
        trace.append(float(replicas[exchange.replica(0)][0].detach()))
    found = exchange.statistics()
    shown = {name: ", ".join(f"{x:.2f}" for x in getattr(found, name)) for name in ("rates", "noise")}
    return {**_summarize(trace), **shown, "trips": found.round_trips}


def _summarize(trace: list[float]) -> dict[str, Estimate]:
    """Return the share of the upper mode, and the mean square distance from the nearer mode in its own units."""
    w = np.array(trace[BURN_IN:])
    upper = w > 0
    squares = ((w - np.where(upper, MEANS[1], MEANS[0])) / np.where(upper, STDS[1], STDS[0])) ** 2
    means = [[batch.mean() for batch in np.array_split(values, BATCHES)] for values in (upper, squares)]
    return {"upper": Estimate.of(means[0]), "square": Estimate.of(means[1])}
