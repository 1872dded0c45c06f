"""Time of the solvers of pruning without training, for square layers, beside that of SparseGPT."""

from __future__ import annotations

import statistics
import time

import torch
from torch import Tensor

from spikeslab.bench.one_shot import solve_sparsegpt
from spikeslab.bench.suites import BenchPlan, Findings
from spikeslab.compression.one_shot import EXCHANGE, EXCHANGED_INPUTS, FAST, REFIT, SOLVERS
from spikeslab.functional.patterns import Pattern
from spikeslab.functional.reconstruction import reconstruction_error
from spikeslab.report.tables import Cell, Column, Table

SIZES, QUICK_SIZES = (256, 768, 2048, 4096), (64, 96)
"""Inputs and outputs of the layers."""
LONGEST = 2048
"""Size above which every solver has one turn."""
RIVAL = "SparseGPT"


def count_ticks(plan: BenchPlan) -> int:
    """Return the number of turns of all solvers."""
    return sum(_count_turns(plan, size) for size in _sizes(plan) for _ in _solvers(size))


def run(plan: BenchPlan) -> Findings:
    """Prune half of the weights of each layer by each solver, in turns."""
    rows: list[dict[str, Cell]] = []
    for size in _sizes(plan):
        dense, gram = make_layer(size, plan.seed)
        seconds: dict[str, list[float]] = {name: [] for name in _solvers(size)}
        errors: dict[str, float] = {}
        for _ in range(_count_turns(plan, size)):
            for name, found in seconds.items():
                solve = SOLVERS.get(name, solve_sparsegpt)
                start = time.process_time()
                weights = solve(dense, gram, Pattern(size * size // 2))
                found.append(time.process_time() - start)
                errors[name] = reconstruction_error(weights, dense, gram)
                plan.tick(1)
        times = {name: statistics.median(found) for name, found in seconds.items()}
        rows += [
            {
                "size": size,
                "solver": name,
                "seconds": times[name],
                "ratio": times[name] / times[RIVAL],
                "error": 100.0 * errors[name],
            }
            for name in seconds
        ]
    columns = [
        Column("size", "inputs and outputs", ","),
        Column("solver", "solver"),
        Column("seconds", "s", ".2f"),
        Column("ratio", f"in units of {RIVAL}", ".1f"),
        Column("error", "error %", ".3f"),
    ]
    note = (
        "Half of the weights of a random layer whose inputs are correlated. Seconds are processor time on "
        f"{plan.words}, the median of {plan.repeats} interleaved turns, of one above {LONGEST:,} inputs. Exchanges are "
        f"left out above {EXCHANGED_INPUTS:,} inputs, as by default."
    )
    return Findings({"one-shot-cost": Table("Time of pruning a layer without training", columns, rows, [note])})


def make_layer(size: int, seed: int) -> tuple[Tensor, Tensor]:
    """Return the weights of a square layer, and the Gram matrix of correlated inputs of different sizes."""
    generator = torch.Generator().manual_seed(seed)
    mix = torch.randn(size, size, generator=generator) / size**0.5
    x = torch.randn(2 * size, size, generator=generator) @ mix * torch.rand(size, generator=generator).mul(2.0).exp()
    return torch.randn(size, size, generator=generator) / size**0.5, x.T @ x


def _sizes(plan: BenchPlan) -> tuple[int, ...]:
    return QUICK_SIZES if plan.quick else SIZES


def _solvers(size: int) -> tuple[str, ...]:
    return (RIVAL, FAST, REFIT, *((EXCHANGE,) if size <= EXCHANGED_INPUTS else ()))


def _count_turns(plan: BenchPlan, size: int) -> int:
    return plan.repeats if size <= LONGEST else 1
