"""Time and memory of a step against the number of parameters."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn
from torch.optim import Optimizer

from spikeslab.bench.optimizers import SGD_NAME
from spikeslab.bench.scale.candidates import OURS, build_optimizer
from spikeslab.bench.scale.processes import PeakMemory, run_alone
from spikeslab.bench.suites import BenchPlan
from spikeslab.bench.timing import HOW, Times, log_slope, measure, training_step
from spikeslab.memory import available_memory
from spikeslab.report.tables import Cell, Column, Table

SIZES, QUICK_SIZES = tuple(10**power for power in range(5, 9)), (10**5,)
LAYERS, BATCH = 4, 64
MEASURED_FROM = 10**6
"""Size from which memory is more than a few pages of the allocator."""
BYTES = 40
"""Bytes of a parameter while both candidates are in one process."""


def parameter_table(plan: BenchPlan) -> Table:
    """Time a step and an update, in turns, and measure the memory of fresh processes, for several sizes."""
    most = available_memory() // BYTES
    sizes = [size for size in (QUICK_SIZES if plan.quick else SIZES) if size <= max(most, SIZES[0])]
    steps, updates, memory = {}, {}, {}
    for size in sizes:
        steps[size], updates[size] = _time_steps(size, plan)
        memory[size] = _measure_memory(size, plan.seed) if size >= MEASURED_FROM else {}
    rows: list[dict[str, Cell]] = [
        {
            "parameters": _count(size),
            "step": steps[size].ratio(OURS, SGD_NAME),
            "step median": steps[size].median_ratio(OURS, SGD_NAME),
            "update": updates[size].ratio(OURS, SGD_NAME),
            "share": updates[size].least(OURS) / steps[size].least(OURS),
            "sgd bytes": memory[size].get(SGD_NAME),
            "bytes": memory[size].get(OURS),
        }
        for size in sizes
    ]
    columns = [
        Column("parameters", "parameters", ","),
        Column("step", "step", ".3f"),
        Column("step median", "median", ".3f"),
        Column("update", "update", ".2f"),
        Column("share", "its share of a step", ".1%"),
        Column("sgd bytes", "bytes a parameter, SGD", ".1f"),
        Column("bytes", "bytes a parameter", ".1f"),
    ]
    notes = [
        f"{LAYERS} square layers, batch {BATCH}, SpikeSlab on all weights. Step (forward, backward, update) and update "
        f"of SGHMC-SA in units of those of torch's SGD with momentum. {HOW} Least times of {plan.repeats} rounds. "
        "Bytes: peak resident memory of three steps in a fresh process, beyond what it takes before the network. SGD "
        "keeps weight, gradient and momentum, 12 bytes, SGHMC-SA rho and its smoothed copy too, 20."
    ]
    times = {size: {OURS: updates[size].least(OURS), "step": steps[size].least(OURS)} for size in sizes}
    if len(sizes) > 1:
        slopes = {name: log_slope({size: times[size][name] for size in sizes}) for name in (OURS, "step")}
        notes.append(
            f"Slope of log time against log parameters: {slopes[OURS]:.3f} of the update, {slopes['step']:.3f} of the "
            "step; 1 is linear."
        )
    raw = {
        "microseconds": {
            f"{size}": {"step": steps[size].microseconds(), "update": updates[size].microseconds()} for size in sizes
        }
    }
    return Table(f"Cost of a step against the number of parameters, {plan.words}", columns, rows, notes, raw)


def _count(size: int) -> int:
    """Return the number of parameters of the network for a size."""
    return LAYERS * math.isqrt(size // LAYERS) ** 2


def _build(size: int) -> nn.Sequential:
    width = math.isqrt(size // LAYERS)
    return nn.Sequential(*(nn.Linear(width, width, bias=False) for _ in range(LAYERS)))


def _train(kind: str, size: int, seed: int) -> tuple[Callable[[], None], Optimizer]:
    model = _build(size)
    params = dict(model.named_parameters())
    optimizer = build_optimizer(kind, params, params, seed)
    x = torch.randn(BATCH, math.isqrt(size // LAYERS))
    return training_step(model, optimizer, F.mse_loss, x, x), optimizer


def _time_steps(size: int, plan: BenchPlan) -> tuple[Times, Times]:
    steps, updates = {}, {}
    for kind in (SGD_NAME, OURS):
        step, optimizer = _train(kind, size, plan.seed)
        step()
        steps[kind], updates[kind] = step, optimizer.step
    return measure(steps, plan, seconds=0.05), measure(updates, plan, seconds=0.02)


def _measure_memory(size: int, seed: int) -> dict[str, float]:
    """Return the bytes of a parameter for each optimizer."""
    arguments = {"size": size, "seed": seed}
    kinds = SGD_NAME, OURS
    return {kind: run_alone("parameters:take_steps", kind=kind, **arguments)["bytes"] / _count(size) for kind in kinds}


def take_steps(kind: str, size: int, seed: int) -> dict[str, Any]:
    """Take three steps, and return the peak memory that they need."""
    warm, _ = _train(kind, 10**4, seed)
    warm()  # what torch and the kernels keep does not count
    peak = PeakMemory()
    step, _ = _train(kind, size, seed)
    for _ in range(3):
        step()
    return {"bytes": peak.read()}
