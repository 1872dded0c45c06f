"""Sparsity that a run chooses, and the sparsity curve, against a grid of separate runs: LeNet-5 on Fashion-MNIST.

A dense network is trained on 12,000 images. Runs of ``compress`` at the levels of a grid give the accuracy on 10,000
other training images at each of them; the sparsest that loses at most the tolerance is the grid's choice.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from spikeslab.bench.cost import build_lenet
from spikeslab.bench.suites import BenchPlan, Findings
from spikeslab.compression import Settings, compress, sparsity_curve
from spikeslab.paper.images import load_fashion
from spikeslab.report.tables import Cell, Column, Table
from spikeslab.training import TensorBatches

GRID = (0.9, 0.93, 0.95, 0.97, 0.98)
CURVE = (0.5, 0.8, *GRID)
TOLERANCE = 0.5
EPOCHS, CURVE_EPOCHS, DENSE_EPOCHS = 12, 21, 10
TRAIN, HELD_OUT, BATCH = 12_000, 10_000, 100
MEAN, DEVIATION = 0.286, 0.353
LR = 0.05
Images: TypeAlias = tuple[Tensor, Tensor]
Numbers: TypeAlias = dict[str, Any]


def run(plan: BenchPlan) -> Findings:
    """Compress a network for each of ``plan.repeats`` seeds: at every level of the grid, by search, and by a curve."""
    train, held_out = _split(plan)
    rounds = []
    for seed in range(plan.seed, plan.seed + plan.repeats):
        model = train_dense(train, seed, 1 if plan.quick else DENSE_EPOCHS)
        rounds.append(compress_all(model, train, held_out, seed, quick=plan.quick))
        plan.tick(1)
    return Findings({"auto": tabulate_search(rounds), "curve": tabulate_curve(rounds)})


def _split(plan: BenchPlan) -> tuple[Images, Images]:
    if plan.quick:
        return tuple((torch.randn(200, 1, 28, 28), torch.randint(10, (200,))) for _ in range(2))  # type: ignore[return-value]
    data = load_fashion()
    x, y = (data.x_train.float() / 255.0 - MEAN) / DEVIATION, data.y_train
    order = torch.randperm(len(x), generator=torch.Generator().manual_seed(0))
    parts = order[:TRAIN], order[TRAIN : TRAIN + HELD_OUT]
    train, held_out = ((x[rows].reshape(-1, 1, 28, 28), y[rows]) for rows in parts)
    return train, held_out


def train_dense(train: Images, seed: int, epochs: int) -> nn.Module:
    """Return a LeNet-5 trained by SGD, with a cosine lr from 0.05."""
    torch.manual_seed(seed)
    model, batches = build_lenet(), TensorBatches(*train, batch_size=BATCH, seed=seed)
    optimizer = torch.optim.SGD(model.parameters(), lr=LR, momentum=0.9, weight_decay=5e-4)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, epochs * len(batches))
    for epoch in range(epochs):
        for x, y in batches.epoch(epoch):
            optimizer.zero_grad()
            F.cross_entropy(model(x), y).backward()
            optimizer.step()
            schedule.step()
    return model


def compress_all(model: nn.Module, train: Images, held_out: Images, seed: int, *, quick: bool = False) -> Numbers:
    """Return the numbers of the grid, of the search and of the curve, from one dense network."""
    data = (
        TensorBatches(*train, batch_size=BATCH, seed=seed),
        list(zip(*(tensor.split(1000) for tensor in held_out), strict=True)),
    )
    shared: Numbers = {"weights": "*.weight", "lr": LR, "settings": Settings(scope="global"), "seed": seed}
    shared["progress"] = False
    epochs, curve_epochs = (2, 7) if quick else (EPOCHS, CURVE_EPOCHS)
    grid = {}
    for level in GRID:
        metrics = compress(model, *data, sparsity=level, epochs=epochs, **shared).report["metrics"]
        grid[f"{level:g}"] = _keep(metrics["sparse"])
    found = compress(model, *data, sparsity="auto", tolerance=TOLERANCE, epochs=epochs, **shared).report
    curve = sparsity_curve(model, *data, levels=CURVE, epochs=curve_epochs, **shared)
    return {
        "seed": seed,
        "dense": _keep(found["metrics"]["dense"]),
        "grid": grid,
        "auto": {"sparsity": found["network"]["sparsity"], **_keep(found["metrics"]["sparse"]), **found["search"]},
        "curve": {f"{each.level:g}": {**_keep(each.metrics), "bytes": each.bytes} for each in curve.levels},
    }


def _keep(metrics: Mapping[str, float]) -> dict[str, float]:
    return {"accuracy": metrics["accuracy"], "nll": metrics["nll"]}


def choose_from_grid(dense: float, grid: Mapping[str, Mapping[str, float]], tolerance: float = TOLERANCE) -> float:
    """Return the sparsest level that loses at most ``tolerance`` points of accuracy; 0 if none does.

    >>> choose_from_grid(0.90, {"0.9": {"accuracy": 0.899}, "0.95": {"accuracy": 0.896}, "0.98": {"accuracy": 0.85}})
    0.95
    """
    lost = {float(level): 100.0 * (dense - found["accuracy"]) for level, found in grid.items()}
    return max((level for level, points in lost.items() if points <= tolerance + 1e-9), default=0.0)


def tabulate_search(rounds: Sequence[Numbers]) -> Table:
    """Return the choices of grid and search by seed."""
    columns = [
        Column("seed", "seed"),
        Column("dense", "dense, %", ".2f"),
        *(Column(f"lost_{level:g}", f"lost at {level:g}", ".2f") for level in GRID),
        Column("grid", "grid's choice", ".2f"),
        Column("auto", "auto", ".3f"),
        Column("lost", "lost by auto", ".2f"),
        Column("error", "± SE", ".2f"),
    ]
    rows = []
    for found in rounds:
        dense = found["dense"]["accuracy"]
        row: dict[str, Cell] = {"seed": found["seed"], "dense": 100.0 * dense}
        for level in GRID:
            one = found["grid"].get(f"{level:g}")
            row[f"lost_{level:g}"] = None if one is None else 100.0 * (dense - one["accuracy"])
        row |= {"grid": choose_from_grid(dense, found["grid"]), "auto": found["auto"]["sparsity"]}
        sparse = found["auto"]["sparse"]
        rows.append({**row, "lost": sparse["difference"], "error": sparse["standard_error"]})
    note = (
        f"LeNet-5 on {TRAIN:,} images of Fashion-MNIST, evaluated on {HELD_OUT:,} other training images; points of "
        f"accuracy lost against the dense network, tolerance {TOLERANCE:g}. Every number is from one run of {EPOCHS} "
        "epochs: all layers, one ranking, lr 0.05. The standard error is paired over the images."
    )
    return Table("Sparsity chosen by one run and by a grid of runs", columns, rows, [note], {"rounds": list(rounds)})


def tabulate_curve(rounds: Sequence[Numbers]) -> Table:
    """Return the accuracies of the curve and of separate runs by seed and level."""
    columns = [
        Column("seed", "seed"),
        Column("level", "sparsity", ".2f"),
        Column("curve", "curve, %", ".2f"),
        Column("separate", "separate runs, %", ".2f"),
        Column("difference", "curve minus separate", "+.2f"),
        Column("curve_nll", "curve, NLL", ".4f"),
        Column("separate_nll", "separate runs, NLL", ".4f"),
        Column("kilobytes", "file, kB", ".1f"),
    ]
    rows: list[dict[str, Cell]] = []
    for found in rounds:
        for level, one in found.get("curve", {}).items():
            other = found["grid"].get(level)
            own = 100.0 * one["accuracy"]
            separate = None if other is None else 100.0 * other["accuracy"]
            rows.append(
                {
                    "seed": found["seed"],
                    "level": float(level),
                    "curve": own,
                    "separate": separate,
                    "difference": None if separate is None else own - separate,
                    "curve_nll": one["nll"],
                    "separate_nll": None if other is None else other["nll"],
                    "kilobytes": one["bytes"] / 1000.0,
                }
            )
    note = (
        f"The same networks and images as for `auto`. The curve is one run of {CURVE_EPOCHS} epochs, "
        f"{CURVE_EPOCHS // len(CURVE)} for each level; each separate run has {EPOCHS}."
    )
    return Table("Sparsity curve from one run, and separate runs", columns, rows, [note], {"rounds": list(rounds)})
