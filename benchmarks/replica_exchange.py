"""Replica exchange on a target with two modes that a single chain cannot leave: does it find both, and their weights?

The target is 0.3 N(-4, 0.6²) + 0.7 N(4, 0.8²), all chains start in the lower mode, and the samples are those at
temperature 1.

    python benchmarks/replica_exchange.py [--steps 40000] [--out results/replica-exchange]
"""

from __future__ import annotations

import argparse
import math
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

import spikeslab as ss
from spikeslab.parallel import replica_exchange
from spikeslab.parallel.replica_exchange import ReplicaExchange
from spikeslab.parallel.swaps import log_acceptance
from spikeslab.report.tables import Column, Estimate, Provenance, Table

WEIGHTS, MEANS, STDS = (0.3, 0.7), (-4.0, 4.0), (0.6, 0.8)
LADDER = (1.0, 4.0, 16.0)
EVERY, BURN_IN, BATCHES = 2, 1000, 20
NOISE = 6.0


def logs(w: Tensor) -> Tensor:
    parts = zip(WEIGHTS, MEANS, STDS, strict=True)
    return torch.stack([math.log(weight / std) - 0.5 * ((w - mean) / std) ** 2 for weight, mean, std in parts])


def gradient(w: Tensor) -> Tensor:
    shares = logs(w).softmax(0)
    return sum(share * (w - mean) / std**2 for share, mean, std in zip(shares, MEANS, STDS, strict=True))


def samplers(count: int, seed: int) -> list[tuple[nn.Parameter, ss.SGLD]]:
    weights = [nn.Parameter(torch.full((1,), MEANS[0], dtype=torch.float64)) for _ in range(count)]
    options = {"lr": 0.04, "num_data": 1, "check_finite": False}
    return [(weight, ss.SGLD([weight], seed=seed + i, **options)) for i, weight in enumerate(weights)]


def move(weight: nn.Parameter, sampler: ss.SGLD) -> None:
    weight.grad = gradient(weight.detach())
    sampler.step()


def run_single(steps: int, seed: int) -> dict[str, object]:
    ((weight, sampler),) = samplers(1, seed)
    trace = []
    for _ in range(steps):
        move(weight, sampler)
        trace.append(float(weight.detach()))
    return {"method": "one chain", **measured(trace), "rates": "–", "noise": "–", "trips": None}


def run_ladder(steps: int, seed: int, latents: str, noise: float) -> dict[str, object]:
    replicas = samplers(len(LADDER), seed)
    exchange = ReplicaExchange([s for _, s in replicas], LADDER, seed=seed, every=EVERY, latents=latents)
    errors = torch.Generator().manual_seed(seed)

    def loss(replica: int) -> Tensor:
        clean = -logs(replicas[replica][0].detach()).logsumexp(0).sum()
        return clean + noise * torch.randn(4, generator=errors) if noise else clean

    trace = []
    for _ in range(steps):
        for weight, sampler in replicas:
            move(weight, sampler)
        exchange.step(loss)
        trace.append(float(replicas[exchange.replica(0)][0].detach()))
    report = exchange.report()
    shown = {name: ", ".join(f"{x:.2f}" for x in getattr(report, name)) for name in ("rates", "noise")}
    return {**measured(trace), **shown, "trips": report.round_trips}


def measured(trace: list[float]) -> dict[str, Estimate]:
    """Share of the upper mode, and the mean square distance from the nearer mode in its own units, exactly 1."""
    w = np.array(trace[BURN_IN:])
    upper = w > 0
    squares = ((w - np.where(upper, MEANS[1], MEANS[0])) / np.where(upper, STDS[1], STDS[0])) ** 2
    means = [[batch.mean() for batch in np.array_split(values, BATCHES)] for values in (upper, squares)]
    return {"upper": Estimate.of(means[0]), "square": Estimate.of(means[1])}


def table(steps: int, seed: int) -> Table:
    rows = [
        run_single(steps, seed),
        {"method": "replica exchange, carried", **run_ladder(steps, seed, "carried", 0.0)},
        {"method": "replica exchange, frozen", **run_ladder(steps, seed, "frozen", 0.0)},
        {"method": "noisy energies, corrected", **run_ladder(steps, seed, "carried", NOISE)},
    ]
    replica_exchange.log_acceptance = lambda estimate, variance: log_acceptance(estimate, 0.0)
    rows.append({"method": "noisy energies, not corrected", **run_ladder(steps, seed, "carried", NOISE)})
    replica_exchange.log_acceptance = log_acceptance
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
    return Table("Two modes, unequal weights: samples at temperature 1", columns, rows, notes)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=40_000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    torch.set_num_threads(1)
    result = table(options.steps, options.seed)
    print(result.markdown())
    if options.out:
        options.out.mkdir(parents=True, exist_ok=True)
        command = f"python benchmarks/replica_exchange.py --steps {options.steps} --seed {options.seed}"
        result.write(options.out / "two-modes", Provenance(command, seed=options.seed))


if __name__ == "__main__":
    main()
