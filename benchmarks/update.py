"""What a step costs beside ``torch.optim.SGD(momentum=0.9)``: the update alone, and a whole training step.

    python benchmarks/update.py [--threads 1] [--repeats 7] [--out results/bench]

All candidates run in one process, in short turns, and each is given its best time of many, so that a busy machine
hurts them alike. The table shows ratios to SGD; times mean little on another machine.
"""

from __future__ import annotations

import argparse
import time
import warnings
from collections.abc import Callable
from pathlib import Path

import torch
import torch.nn.functional as F

import spikeslab as ss
from spikeslab.models import CNN, resnet20
from spikeslab.report.tables import Column, Run, Table

SAMPLERS = ("SGD", "SGLD", "SGHMC", "SGHMC-SA")


def make_optimizer(name: str, model: torch.nn.Module, weights: dict[str, torch.nn.Parameter], num_data: int):
    parameters = list(model.parameters())
    if name == "SGD":
        return torch.optim.SGD(parameters, lr=1e-6, momentum=0.9, foreach=True)
    if name == "SGLD":
        return ss.SGLD(parameters, lr=1e-6, num_data=num_data, seed=0)
    prior = None
    if name == "SGHMC-SA":
        prior = ss.SpikeSlab(weights, v0=1e-3, v1=1.0, adapt=ss.SA(ss.polynomial(1.0, power=0.75, offset=1000)))
    return ss.SGHMC(parameters, lr=1e-6, momentum=0.9, num_data=num_data, prior=prior, seed=0)


def networks() -> dict[str, tuple[Callable[[], torch.nn.Module], tuple[str, ...], tuple[int, ...], int]]:
    """Constructor, globs of the sparse weights, shape of a batch, number of data."""
    return {
        "MNIST CNN": (CNN, ("fc1.weight",), (1000, 1, 28, 28), 60_000),
        "ResNet20": (resnet20, ("layer*.conv*.weight",), (128, 3, 32, 32), 50_000),
    }


def best_times(candidates: dict[str, Callable[[], None]], repeats: int, seconds: float) -> dict[str, float]:
    """Best mean time of each candidate over ``repeats`` rounds in turns, each of about ``seconds``."""
    counts = {}
    for name, run in candidates.items():
        run()
        start = time.perf_counter()
        run()
        counts[name] = max(1, round(seconds / (time.perf_counter() - start)))
    best = dict.fromkeys(candidates, float("inf"))
    for _ in range(repeats):
        for name, run in candidates.items():
            start = time.perf_counter()
            for _ in range(counts[name]):
                run()
            best[name] = min(best[name], (time.perf_counter() - start) / counts[name])
    return best


def measure(network: str, repeats: int) -> dict[str, dict[str, float]]:
    build, globs, shape, num_data = networks()[network]
    updates, steps = {}, {}
    torch.manual_seed(0)
    images, labels = torch.rand(shape).contiguous(memory_format=torch.channels_last), torch.randint(10, shape[:1])
    for name in SAMPLERS:
        model = build().to(memory_format=torch.channels_last)
        optimizer = make_optimizer(name, model, ss.select_weights(model, *globs), num_data)

        def train(model=model, optimizer=optimizer) -> None:
            optimizer.zero_grad()
            F.cross_entropy(model(images), labels).backward()
            optimizer.step()

        train()
        updates[name], steps[name] = optimizer.step, train
    # The update first: a training step would replace the gradients that it uses.
    update = best_times(updates, 20 * repeats, seconds=0.01)
    step = best_times(steps, repeats, seconds=0.3)
    return {"update": update, "step": step}


def table(results: dict[str, dict[str, dict[str, float]]], threads: int) -> Table:
    parts = {"update": "update alone", "step": "whole training step"}
    rows = [
        {"what": f"{network}, {parts[part]}", **{name: times[name] / times["SGD"] for name in SAMPLERS}}
        for network, measured in results.items()
        for part, times in measured.items()
    ]
    columns = [Column("what", ""), *(Column(name, name, ".2f") for name in SAMPLERS)]
    title = f"Time of a step, in units of torch.optim.SGD(momentum=0.9), {threads} thread{'s' if threads > 1 else ''}"
    notes = (
        "MNIST CNN: 681,506 parameters, prior on 627,200, batch 1000. ResNet20: 272,474, prior on 267,264, batch 128. "
        "Best of interleaved repeats in one process.",
    )
    return Table(title, columns, rows, notes)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    warnings.simplefilter("ignore", ss.SpikeSlabWarning)
    results = {network: measure(network, arguments.repeats) for network in networks()}
    ratios = table(results, arguments.threads)
    print(ratios.markdown())
    if arguments.out:
        arguments.out.mkdir(parents=True, exist_ok=True)
        command = f"python benchmarks/update.py --threads {arguments.threads} --repeats {arguments.repeats}"
        ratios.write(arguments.out / f"update-{arguments.threads}", Run(command, seed=0))


if __name__ == "__main__":
    main()
