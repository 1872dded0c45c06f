"""Cost of the update against the number of parameters and of threads, and its memory."""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from spikeslab.bench.optimizers import SGD_NAME, BenchNetwork, build_optimizers
from spikeslab.bench.suites import BenchPlan, Findings
from spikeslab.bench.timing import HOW, UNFUSED, Times, is_installed, log_slope, measure, use_threads
from spikeslab.errors import pluralize
from spikeslab.memory import available_memory
from spikeslab.report.tables import Cell, Column, Table

if TYPE_CHECKING:
    from matplotlib.figure import Figure

SIZES = tuple(10**power for power in range(4, 9))
LINEAR_FROM = 10**5  # below, what a step does once for a tensor counts
QUICK_MOST = 10**6
BYTES = 48  # for one parameter in all candidates: weight, gradient, what they keep, and what is in flight
COMPARED = (SGD_NAME, "torch Adam", "plain SGLD, foreach", "SGLD", "SGHMC-SA")
THREADED = (681_500, 10**7)  # the paper's CNN for MNIST, and what no cache holds


def run(plan: BenchPlan) -> Findings:
    """Time the update at several sizes and numbers of threads, and count its memory."""
    sizes, threads, threaded = _sizes(plan.quick), _thread_counts(), _thread_sizes(plan.quick)
    by_size = {size: measure(_steps(size, plan.seed), plan, seconds=0.02) for size in sizes}
    by_thread = {size: measure(_thread_steps(size, threads, plan.seed), plan, seconds=0.02) for size in threaded}
    use_threads(plan.threads)
    left_out = len(SIZES) + len(THREADED) - len(sizes) - len(threaded)
    if left_out:
        plan.tick(plan.repeats * left_out)
    names = list(by_size[sizes[0]].seconds)
    tables = {
        "scaling": _cost_table(by_size, names, plan),
        "threads": _thread_table(by_thread, threads, plan),
        "memory": memory_table(plan.seed),
    }
    return Findings(tables, {"scaling": _figure(by_size, by_thread, threads)} if is_installed("matplotlib") else {})


def slope(by_size: dict[int, Times], name: str) -> float | None:
    """Return the least-squares slope of log time against log parameters, without the sizes where overhead counts."""
    times = {size: of_size.least(name) for size, of_size in by_size.items() if size >= LINEAR_FROM}
    return log_slope(times) if len(times) > 1 else None


def state_floats(optimizer: Optimizer, size: int) -> float:
    """Return how many floating-point numbers an optimizer keeps between steps for each of ``size`` weights."""

    def count(part: Any) -> int:
        if isinstance(part, Tensor):
            return part.numel() if part.is_floating_point() and part.numel() >= size else 0
        if isinstance(part, dict):
            return sum(map(count, part.values()))
        return sum(map(count, part)) if isinstance(part, (list, tuple)) else 0

    return count(optimizer.state_dict()) / size


def memory_table(seed: int, size: int = 10_000) -> Table:
    """Count what each optimizer keeps for a sparse weight, in its state after a few steps."""
    rows: list[dict[str, Cell]] = []
    for name in COMPARED:
        optimizer = _optimizers(size, seed)[name]
        for _ in range(2):
            optimizer.step()
        rows.append({"what": name, "floats": state_floats(optimizer, size)})
    columns = [Column("what", ""), Column("floats", "float tensors per weight", ".0f")]
    notes = [f"Counted in the state_dict after two steps, for {size:,} weights with a prior where there is one."]
    return Table("Memory of an optimizer, in tensors of the size of the weights", columns, rows, notes)


def _sizes(quick: bool) -> list[int]:
    most = QUICK_MOST if quick else available_memory() // BYTES
    return [size for size in SIZES if size <= max(most, SIZES[0])]


def _thread_sizes(quick: bool) -> list[int]:
    return [size for size in THREADED if size <= max(_sizes(quick))] or [max(_sizes(quick))]


def _thread_counts() -> list[int]:
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return [count for count in (1, 2, 4, 8, 16, 32, 64) if count <= cores]


def _optimizers(size: int, seed: int) -> dict[str, Optimizer]:
    """Return the optimizers, which share one tensor: its values do not matter for the time of an update."""
    param = nn.Parameter(torch.full((size // 100, 100), 0.01))
    param.grad = torch.full_like(param, 1e-3)
    model = nn.ParameterDict({"weight": param})
    build = build_optimizers(BenchNetwork(nn.Module, ("weight",), (), 60_000), seed)
    return {name: build[name](model) for name in COMPARED}


def _steps(size: int, seed: int) -> dict[str, Callable[[], object]]:
    return {name: optimizer.step for name, optimizer in _optimizers(size, seed).items()}


def _thread_steps(size: int, threads: list[int], seed: int) -> dict[str, Callable[[], object]]:
    def step(optimizer: Optimizer, count: int) -> None:
        use_threads(count)
        optimizer.step()

    built = _optimizers(size, seed)
    return {f"{name} @{count}": partial(step, built[name], count) for name in built for count in threads}


def _cost_table(by_size: dict[int, Times], names: list[str], plan: BenchPlan) -> Table:
    columns: dict[Column, Callable[[str], Cell]] = {Column("what", ""): str}
    for size, times in by_size.items():
        columns[Column(f"{size}", f"{size:,}", ".2f")] = partial(times.ratio, base=SGD_NAME)
    columns[Column("slope", "slope", ".3f")] = partial(slope, by_size)
    left_out = [f"{size:,}" for size in SIZES if size not in by_size]
    notes = [
        f"Time of an update of one tensor in units of torch's SGD at the same size; slope: of log time against log "
        f"parameters from {LINEAR_FROM:,} on, 1 where cost is linear. {HOW} Least times of {plan.repeats} rounds.",
    ]
    if left_out:
        why = "this is a quick look" if plan.quick else "memory was short"
        notes.append(f"Left out, since {why}: {' and '.join(left_out)} parameters.")
    if not is_installed("matplotlib"):
        notes.append("matplotlib was not installed where this ran: there is no figure.")
    if not is_installed("numba"):
        notes.append(UNFUSED)
    title = f"Time of an update against the number of parameters, {plan.words}"
    return Table.build(title, names, columns, notes, _raw(by_size))


def _raw(by_size: dict[int, Times]) -> dict[str, Any]:
    return {"microseconds": {f"{size} parameters": times.microseconds() for size, times in by_size.items()}}


def _thread_table(by_size: dict[int, Times], threads: list[int], plan: BenchPlan) -> Table:
    rows: list[dict[str, Cell]] = []
    for size, times in by_size.items():
        for name in dict.fromkeys(key.rpartition(" @")[0] for key in times.seconds):
            gains = {f"{count}": times.ratio(f"{name} @1", f"{name} @{count}") for count in threads}
            median = times.median_ratio(f"{name} @1", f"{name} @{threads[-1]}")
            rows.append({"parameters": size, "what": name, **gains, "median": median})
    columns = [
        Column("parameters", "parameters", ","),
        Column("what", ""),
        *(Column(f"{count}", pluralize(count, "thread"), ".2f") for count in threads),
        Column("median", f"median at {threads[-1]}", ".2f"),
    ]
    notes = [f"How many times faster than itself on one thread. {HOW} Least times of {plan.repeats} rounds."]
    return Table("Speed of an update against threads", columns, rows, notes, _raw(by_size))


def _figure(by_size: dict[int, Times], by_thread: dict[int, Times], threads: list[int]) -> Figure:

    from spikeslab.report.figures import BLUE, GREEN, GREY, ORANGE, VERMILION, new_figure

    names = list(next(iter(by_size.values())).seconds)
    colours = dict(zip(names, (GREY, ORANGE, VERMILION, GREEN, BLUE), strict=True))
    unit = next(iter(by_size.values())).least(SGD_NAME)
    threaded, of_threads = list(by_thread.items())[-1]
    with new_figure(3.6) as figure:
        cost, speed = figure.subplots(1, 2, width_ratios=(1.25, 1.0))
        for name, colour in colours.items():
            own = slope(by_size, name)
            label = name if own is None else f"{name}: slope {own:.2f}"
            cost.loglog(
                list(by_size), [t.least(name) / unit for t in by_size.values()], "o-", color=colour, label=label
            )
            gains = [of_threads.ratio(f"{name} @1", f"{name} @{count}") for count in threads]
            speed.plot(threads, gains, "o-", color=colour)
        cost.set(xlabel="parameters", ylabel=f"time, torch's SGD at {min(by_size):,} = 1")
        cost.set_title("An update against the number of parameters")
        cost.legend(loc="upper left")
        speed.plot(threads, threads, ":", color=GREY)
        place: dict[str, Any] = {"textcoords": "offset points", "ha": "right", "va": "center"}
        speed.annotate("ideal", (threads[-1], threads[-1]), (-14, 0), color=GREY, **place)
        speed.set(xlabel="threads", ylabel="times faster than on one thread", xticks=threads)
        speed.set(ylim=(0.0, None), title=f"Threads, {threaded:,} parameters")
    return figure
