"""Time of an update of the same weights in more and more tensors: what a layer costs beside its weights."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import torch
from torch import Tensor, nn
from torch import distributed as dist
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.tensor import Shard, distribute_tensor

from spikeslab.bench.optimizers import SGD_NAME
from spikeslab.bench.scale.candidates import OURS, PLAIN, build_optimizer
from spikeslab.bench.scale.processes import run_ranks
from spikeslab.bench.suites import BenchPlan
from spikeslab.bench.timing import HOW, measure
from spikeslab.report.tables import Cell, Column, Table

TENSORS, QUICK_TENSORS, IN_ALL = (10, 100, 500, 2000), (10, 100), 1_000_000


def tensor_table(plan: BenchPlan) -> Table:
    """Time the update of the same number of weights in more and more tensors, whole and sharded."""
    counts = QUICK_TENSORS if plan.quick else TENSORS
    whole = {count: measure(_updates(count, plan.seed), plan, seconds=0.02) for count in counts}
    (sharded,) = run_ranks("tensors:time_sharded", 1, counts=counts, repeats=plan.repeats, seed=plan.seed)
    seconds = {name: {count: whole[count].least(name) for count in counts} for name in (SGD_NAME, PLAIN, OURS)} | {
        f"{name}, sharded": dict(zip(counts, of_kind, strict=True)) for name, of_kind in sharded.items()
    }
    rows = [_tensor_row(name, seconds) for name in seconds]
    columns = [
        Column("what", ""),
        *(Column(f"{count}", f"{count:,}", ".2f") for count in counts),
        Column("overhead", "µs a tensor", ".1f"),
    ]
    note = (
        f"Time of an update of {IN_ALL:,} weights in so many tensors, in units of torch's SGD with as many; the last "
        f"column is what one more tensor costs on this machine. {HOW} Least times of {plan.repeats} rounds. Sharded: "
        "DTensors over a mesh of one rank, in a process of their own."
    )
    raw = {"microseconds": {name: {f"{n}": 1e6 * t for n, t in each.items()} for name, each in seconds.items()}}
    return Table(f"Cost of an update against the number of tensors, {plan.words}", columns, rows, [note], raw)


def _tensor_row(name: str, seconds: Mapping[str, Mapping[int, float]]) -> dict[str, Cell]:
    own, base = seconds[name], seconds[SGD_NAME]
    least, most = min(own), max(own)
    ratios: dict[str, Cell] = {f"{count}": time / base[count] for count, time in own.items()}
    return {"what": name, **ratios, "overhead": 1e6 * (own[most] - own[least]) / (most - least)}


def build_tensors(count: int, mesh: DeviceMesh | None = None) -> dict[str, Tensor]:
    """Return parameters with gradients, ``IN_ALL`` numbers in all, cut over the ranks of a mesh or whole."""
    params: dict[str, Tensor] = {}
    for index in range(count):
        values = torch.full((IN_ALL // count // 10, 10), 0.01)
        param = nn.Parameter(values if mesh is None else distribute_tensor(values, mesh, [Shard(0)]))
        param.grad = torch.full_like(param, 1e-3)
        params[f"{index}"] = param
    return params


def _updates(count: int, seed: int, mesh: DeviceMesh | None = None) -> dict[str, Callable[[], object]]:
    def update(kind: str) -> Callable[[], object]:
        params = build_tensors(count, mesh)
        return build_optimizer(kind, params, params, seed).step

    return {kind: update(kind) for kind in (SGD_NAME, PLAIN, OURS)}


def time_sharded(counts: Sequence[int], repeats: int, seed: int) -> dict[str, list[float]]:
    """Return the seconds of an update of DTensors over all ranks, of each kind, for each number of tensors."""
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    times = [measure(_updates(count, seed, mesh), BenchPlan(repeats), seconds=0.02) for count in counts]
    return {kind: [of_count.least(kind) for of_count in times] for kind in times[0].seconds}
