"""A whole training step: forward, backward, update, in units of the same with torch's SGD."""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F

from spikeslab.bench.optimizers import NETWORKS, SGD_NAME, Network, channels_last, optimizers
from spikeslab.bench.timing import HOW, UNFUSED, Findings, Plan, measure
from spikeslab.paper.packages import is_installed
from spikeslab.report.tables import Cell, Column, Table

BATCHES = (("MNIST CNN", 100), ("MNIST CNN", 1000), ("ResNet20", 128))
BLOCKS = len(BATCHES)
QUICK = 10  # times smaller batches


def run(plan: Plan) -> Findings:
    """Ratios for each network and batch."""
    rows: list[dict[str, Cell]] = []
    raw: dict[str, dict[str, float]] = {}
    for name, size in BATCHES:
        batch = size // QUICK if plan.quick else size
        times = measure(_steps(NETWORKS[name], batch, plan.seed), plan, seconds=0.2)
        raw[f"{name}, batch {batch}"] = times.microseconds()
        rows += [
            {
                "network": f"{name}, batch {batch}",
                "what": what,
                "best": times.ratio(what, SGD_NAME),
                "median": times.median_ratio(what, SGD_NAME),
            }
            for what in times.seconds
        ]
    columns = [
        Column("network", "Network"),
        Column("what", ""),
        Column("best", "ratio", ".3f"),
        Column("median", "median", ".3f"),
    ]
    notes = [
        f"{HOW} Ratio: of the least times of {plan.repeats} rounds; median: of the ratios of each round. The control "
        "is the first row of its block again: its distance from 1 is the error of the others. Channels last.",
    ]
    if not is_installed("numba"):
        notes.append(UNFUSED)
    title = f"Time of a training step, in units of the same with torch.optim.SGD(momentum=0.9), {plan.words}"
    return Findings({"step": Table(title, columns, rows, notes, {"microseconds": raw})})


def _steps(network: Network, batch: int, seed: int) -> dict[str, Callable[[], None]]:
    torch.manual_seed(seed)
    images = torch.rand(batch, *network.image).contiguous(memory_format=torch.channels_last)
    labels = torch.randint(10, (batch,))

    def step_of(build: Callable[[torch.nn.Module], torch.optim.Optimizer]) -> Callable[[], None]:
        model = channels_last(network)
        optimizer = build(model)

        def step() -> None:
            optimizer.zero_grad()
            F.cross_entropy(model(images), labels).backward()
            optimizer.step()

        return step

    built = optimizers(network.globs, network.num_data, seed)
    return {name: step_of(build) for name, build in built.items() if name not in ("torch Adam", "SGHMC")}
