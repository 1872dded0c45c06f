"""The update alone: what an optimizer does between two backward passes, in units of torch's SGD."""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import nn

from spikeslab.bench.optimizers import NETWORKS, POSTERIORS, SGD_NAME, Network, optimizers
from spikeslab.bench.optimizers import posteriors_updates as of_posteriors
from spikeslab.bench.timing import HOW, MISSING, UNFUSED, Findings, Plan, Times, measure
from spikeslab.paper.packages import is_installed
from spikeslab.report.tables import Cell, Column, Table

BLOCKS = len(NETWORKS)
NORMAL = "drawing noise with normal_() alone"


def run(plan: Plan) -> Findings:
    """Ratios for both networks, one row for each optimizer."""
    times = {name: _measure(network, plan) for name, network in NETWORKS.items()}
    names = list(dict.fromkeys([*next(iter(times.values())).seconds, *POSTERIORS]))
    rows = [
        {"what": name, **{key: cell for n, t in times.items() for key, cell in _cells(n, t, name)}} for name in names
    ]
    columns = [Column("what", "")]
    for network in NETWORKS:
        columns += [Column(network, network, ".2f"), Column(f"{network}, median", "median", ".2f")]
    sizes = {name: sum(p.numel() for p in network.build().parameters()) for name, network in NETWORKS.items()}
    counts = ", ".join(f"{name} {size:,}" for name, size in sizes.items())
    notes = [
        f"Parameters: {counts}. {HOW} The first column of a network has the ratio of the least times of "
        f"{plan.repeats} rounds, the second the median ratio of a round. The second row is the first one again: as far "
        "as it is from 1, no other number means anything. Weights lie as torch makes them: with channels last its "
        "normal_() takes several times as long for convolutions, and so does all that draws with it.",
    ]
    absent = [name for name in POSTERIORS if name not in next(iter(times.values())).seconds]
    if absent:
        notes.append(f"{MISSING.capitalize()} where this ran: {', '.join(absent)}.")
    if not is_installed("numba"):
        notes.append(UNFUSED)
    raw = {"microseconds": {name: t.microseconds() for name, t in times.items()}}
    title = f"Time of an update, in units of torch.optim.SGD(momentum=0.9), {plan.words}"
    return Findings({"update": Table(title, columns, rows, notes, raw)})


def _cells(network: str, times: Times, name: str) -> list[tuple[str, Cell]]:
    known = name in times.seconds
    return [
        (network, times.ratio(name, SGD_NAME) if known else None),
        (f"{network}, median", times.median_ratio(name, SGD_NAME) if known else None),
    ]


def _measure(network: Network, plan: Plan) -> Times:
    torch.manual_seed(plan.seed)
    images, labels = torch.rand(8, *network.image), torch.randint(10, (8,))

    def with_gradients() -> nn.Module:
        model = network.build()
        F.cross_entropy(model(images), labels).backward()
        return model

    built = optimizers(network.globs, network.num_data, plan.seed)
    candidates: dict[str, Callable[[], object]] = {name: build(with_gradients()).step for name, build in built.items()}
    params = list(with_gradients().parameters())
    candidates[NORMAL] = lambda: [torch.empty_like(param).normal_() for param in params]
    candidates |= {name: step for name, step in of_posteriors(params).items() if step is not None}
    return measure(candidates, plan, seconds=0.01)
