"""Costs that users feel: pruning, predictions, ``compress``, the start of a command, and memory, as ratios.

Candidates take turns in one process, or in fresh ones where a process is what is measured. The ratio is that of the
medians of processor time, which other programs on the machine disturb less than the time on the clock.
"""

from __future__ import annotations

import copy
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from statistics import median
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from spikeslab.bench.suites import BenchPlan, Findings
from spikeslab.bench.timing import training_step
from spikeslab.compression import Settings, compress
from spikeslab.compression.settings import Timeline
from spikeslab.paper.cifar10.networks import BasicBlock
from spikeslab.posterior import Posterior
from spikeslab.priors import SpikeSlab
from spikeslab.pruning import Pruner
from spikeslab.report.tables import Cell, Column, Table
from spikeslab.samplers import SGHMC
from spikeslab.schedules import cubic_sparsity
from spikeslab.training import TensorBatches
from spikeslab.weights import select_weights

SAMPLES, ROWS, CHUNK = 15, 4000, 500
EPOCHS, TRAIN_ROWS, BATCH, LR = 6, 3200, 64, 0.05
RESNET_BATCH, SPARSE, SPARSITY = 16, "*.conv*.weight", 0.9
KINDS = SGD, CHAIN = ("sgd", "chain")
TRACE = """import sys
from spikeslab.cli import main
try:
    main()
finally:
    print("torch" in sys.modules, file=sys.stderr)
"""
NUMPY = "import numpy"


class Cost(NamedTuple):
    """Processor time, time on the clock and peak memory of one turn."""

    cpu: float
    wall: float
    memory: float = 0.0


def run(plan: BenchPlan) -> Findings:
    """Measure the costs and their ratios."""
    torch.manual_seed(plan.seed)
    costs = {
        "prune": _compare(_pruning(plan), plan),
        "predict LeNet": _compare(_predicting(build_lenet, (1, 28, 28), plan), plan),
        "predict MLP": _compare(_predicting(build_mlp, (20,), plan), plan),
        "compress": _compare(_compressing(plan), plan),
        "memory": _compare({kind: partial(_train_in_process, kind, plan) for kind in KINDS}, plan),
    }
    return Findings({"cost": _cost_table(costs, plan), "start": _start_table(plan)})


def _cost_table(costs: Mapping[str, dict[str, list[Cost]]], plan: BenchPlan) -> Table:
    settings = Settings()
    every = Timeline(settings, 10**6).prune_every
    often = settings.freeze_from / every

    def prune(wall: bool) -> tuple[float, float]:
        choose, hold = (_ratio(costs["prune"], name, "base", wall=wall) for name in ("choose", "hold"))
        return choose, often * choose + (1.0 - often) * hold

    moving, mean = zip(prune(wall=False), prune(wall=True), strict=True)
    memory = {kind: median(cost.memory for cost in costs["memory"][kind]) for kind in KINDS}
    loop = f"loop over sample(i), {CHUNK} rows at a time"
    found = [
        ("Pruner.step while the mask moves", "SGD step", *moving, 0.15),
        ("Pruner.step, mean of a default compress", "SGD step", *mean, 0.03),
        ("predict, LeNet", loop, *_ratios(costs["predict LeNet"]), 1.0),
        ("predict, MLP", loop, *_ratios(costs["predict MLP"]), 0.6),
        ("compress, LeNet", "pruning and fine-tuning by hand", *_ratios(costs["compress"]), 1.15),
        ("peak memory of SGHMC with a prior", "SGD", memory[CHAIN] / memory[SGD], None, 1.25),
    ]
    columns = [
        Column("what", ""),
        Column("base", "in units of"),
        Column("cpu", "ratio", ".3f"),
        Column("wall", "on the clock", ".3f"),
        Column("target", "aim", ".2f"),
    ]
    rows: list[dict[str, Cell]] = [dict(zip([c.key for c in columns], row, strict=True)) for row in found]
    raw = {name: {key: list(map(list, of_key)) for key, of_key in each.items()} for name, each in costs.items()}
    note = (
        f"Ratios of median processor times of {plan.repeats} interleaved turns; on the clock: of median times. "
        f"ResNet18 with 11,173,962 parameters at batch {RESNET_BATCH}; {SAMPLES} samples, {ROWS:,} rows; {EPOCHS} "
        f"epochs of {TRAIN_ROWS:,} rows at batch {BATCH}, both with the same lr. The mean of a compress chooses the "
        f"zeros every {every} steps until they freeze and holds them otherwise. Memory: resident, of fresh processes "
        "with everything they import."
    )
    return Table(f"Costs that users feel, {plan.words}", columns, rows, [note], {"seconds and bytes": raw})


def _ratios(costs: Mapping[str, list[Cost]]) -> tuple[float, float]:
    return _ratio(costs, "ours", "base"), _ratio(costs, "ours", "base", wall=True)


def _ratio(costs: Mapping[str, list[Cost]], name: str, base: str, *, wall: bool = False) -> float:
    own, other = (median(c.wall if wall else c.cpu for c in costs[key]) for key in (name, base))
    return own / other


def _compare(candidates: Mapping[str, Callable[[], Cost | None]], plan: BenchPlan) -> dict[str, list[Cost]]:
    """Let the candidates take turns; a candidate that runs a process returns the costs of that."""
    costs: dict[str, list[Cost]] = {name: [] for name in candidates}
    for turn in range(-1, plan.repeats):
        for name, candidate in candidates.items():
            cpu, wall = time.process_time(), time.perf_counter()
            found = candidate() or Cost(time.process_time() - cpu, time.perf_counter() - wall)
            if turn >= 0:  # the first turn compiles
                costs[name].append(found)
        plan.tick(turn >= 0)
    return costs


def build_resnet18(width: int = 64) -> nn.Module:
    """Return a ResNet18 for 32 x 32 images, 11,173,962 parameters."""
    layers: list[nn.Module] = [nn.Conv2d(3, width, 3, padding=1, bias=False), nn.BatchNorm2d(width), nn.ReLU()]
    inputs = width
    for stage in range(4):
        outputs = width << stage
        layers += [BasicBlock(inputs, outputs, 1 + (stage > 0)), BasicBlock(outputs, outputs, 1)]
        inputs = outputs
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(inputs, 10))


def build_lenet() -> nn.Module:
    """Return a LeNet-5 for 28 x 28 images, 61,706 parameters."""
    features = [nn.Conv2d(1, 6, 5, padding=2), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(6, 16, 5), nn.ReLU()]
    head = [nn.Linear(400, 120), nn.ReLU(), nn.Linear(120, 84), nn.ReLU(), nn.Linear(84, 10)]
    return nn.Sequential(*features, nn.MaxPool2d(2), nn.Flatten(), *head)


def build_mlp() -> nn.Module:
    """Return a perceptron with 20 inputs and two layers of 50 units."""
    return nn.Sequential(nn.Linear(20, 50), nn.ReLU(), nn.Linear(50, 50), nn.ReLU(), nn.Linear(50, 3))


def _images(rows: int, *shape: int) -> tuple[Tensor, Tensor]:
    return torch.randn(rows, *shape), torch.randint(10, (rows,))


def _pruning(plan: BenchPlan) -> dict[str, Callable[[], None]]:
    model = build_resnet18(8 if plan.quick else 64)
    sgd = torch.optim.SGD(model.parameters(), lr=1e-3, momentum=0.9)
    weights = select_weights(model, SPARSE)
    choosing = Pruner(weights, cubic_sparsity(SPARSITY, 2 * plan.repeats))
    held = Pruner(weights, SPARSITY, mode="masked")
    step = training_step(model, sgd, F.cross_entropy, *_images(RESNET_BATCH, 3, 32, 32))
    return {"base": step, "choose": choosing.step, "hold": held.step}


def _predicting(
    build: Callable[[], nn.Module], shape: tuple[int, ...], plan: BenchPlan
) -> dict[str, Callable[[], None]]:
    model, x = build(), torch.randn(40 if plan.quick else ROWS, *shape)
    posterior = Posterior(model)
    for _ in range(SAMPLES):
        for parameter in model.parameters():
            nn.init.normal_(parameter, std=0.05)
        posterior.collect()

    @torch.no_grad()
    def loop() -> None:
        total = torch.zeros(())
        for index in range(SAMPLES):
            sample = posterior.sample(index).eval()
            total = total + torch.cat([sample(part).softmax(dim=1) for part in x.split(CHUNK)]) / SAMPLES

    def predict() -> None:
        posterior.predict(x)

    return {"base": loop, "ours": predict}


def _compressing(plan: BenchPlan) -> dict[str, Callable[[], None]]:
    model = build_lenet()
    batches = TensorBatches(*_images(2 * BATCH if plan.quick else TRAIN_ROWS, 1, 28, 28), batch_size=BATCH)

    def ours() -> None:
        compress(model, batches, sparsity=SPARSITY, epochs=EPOCHS, lr=LR, progress=False, report=False)

    def by_hand() -> None:
        network = copy.deepcopy(model)
        sgd = torch.optim.SGD(network.parameters(), lr=LR, momentum=0.9, weight_decay=5e-4)
        weights = [parameter for parameter in network.parameters() if parameter.ndim > 1]
        masks: list[Tensor] = []
        for epoch in range(EPOCHS):
            if epoch <= 0.6 * EPOCHS:
                share = SPARSITY * min(1.0, (epoch + 1) / (0.6 * EPOCHS))
                sizes = [weight.detach().abs() for weight in weights]
                masks = [size > size.flatten().kthvalue(round(share * size.numel())).values for size in sizes]
            for x, y in batches.epoch(epoch):
                sgd.zero_grad()
                F.cross_entropy(network(x), y).backward()
                sgd.step()
                with torch.no_grad():
                    for weight, mask in zip(weights, masks, strict=True):
                        weight.mul_(mask)

    return {"base": by_hand, "ours": ours}


def train_resnet18(kind: str, width: int = 64) -> None:
    """Take three steps with a ResNet18, by SGD with momentum or by SGHMC with a prior."""
    model = build_resnet18(width)
    optimizer: torch.optim.Optimizer = torch.optim.SGD(model.parameters(), lr=1e-3, momentum=0.9)
    if kind == CHAIN:
        prior = SpikeSlab(select_weights(model, SPARSE), v0=0.01, v1=1.0)
        optimizer = SGHMC(model.parameters(), lr=1e-3, num_data=50_000, temperature=1e-3, prior=prior, seed=0)
    step = training_step(model, optimizer, F.cross_entropy, *_images(RESNET_BATCH, 3, 32, 32))
    for _ in range(3):
        step()


def _train_in_process(kind: str, plan: BenchPlan) -> Cost:
    call = f"train_resnet18({kind!r}, {8 if plan.quick else 64})"
    code = f"from spikeslab.bench.cost import *; torch.set_num_threads({plan.threads}); {call}; print_peak_memory()"
    found, errors = _run_process(["-c", code])
    return found._replace(memory=float(errors.split()[-1]))


def print_peak_memory() -> None:
    """Print the peak resident memory in bytes to standard error.

    The system's ``ru_maxrss`` would be that of the parent if it is larger.
    """
    lines = Path("/proc/self/status").read_text(encoding="ascii").splitlines()
    print(1024 * int(next(line for line in lines if line.startswith("VmHWM")).split()[1]), file=sys.stderr)


def _run_process(arguments: list[str]) -> tuple[Cost, str]:
    """Run Python with arguments, and return its costs and what it wrote to standard error."""
    begin = time.perf_counter()
    process = subprocess.Popen(
        [sys.executable, *arguments], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True
    )
    errors = process.stderr.read() if process.stderr is not None else ""
    _, _, usage = os.wait4(process.pid, 0)
    return Cost(usage.ru_utime + usage.ru_stime, time.perf_counter() - begin), errors


def _start_table(plan: BenchPlan) -> Table:
    """Measure whole commands, and note those that import torch."""
    with tempfile.TemporaryDirectory() as folder:
        table, out = Path(folder) / "table.csv", str(Path(folder) / "out")
        columns = torch.randn(60, 4, generator=torch.Generator().manual_seed(plan.seed)).tolist()
        lines = [",".join(map(str, row)) for row in columns]
        table.write_text("\n".join(["a,b,c,y", *lines]) + "\n", encoding="utf-8")
        fit = ["select", str(table), "--target", "y", "--out", out]
        commands: dict[str, tuple[list[str], float | None]] = {
            "spikeslab --help": (["--help"], 4.0),
            "a refused option": (["compress", "--epochs", "none"], 4.0),
            "select of a linear model": (fit, None),
            "predict of a linear model": (["predict", out, str(table), "--out", str(Path(folder) / "rows.csv")], None),
        }
        turns = [
            {"base": _run_process(["-c", NUMPY])}
            | {name: _run_process(["-c", TRACE, *words]) for name, (words, _) in commands.items()}
            for _ in range(plan.repeats)
        ]
        plan.tick(plan.repeats)
    base = median(turn["base"][0].cpu for turn in turns)
    rows: list[dict[str, Cell]] = [
        {
            "what": name,
            "cpu": median(turn[name][0].cpu for turn in turns) / base,
            "target": target,
            "torch": "yes" if turns[0][name][1].strip().endswith("True") else "no",
        }
        for name, (_, target) in commands.items()
    ]
    titles = [
        Column("what", ""),
        Column("cpu", "ratio", ".2f"),
        Column("target", "aim", ".1f"),
        Column("torch", "imports torch"),
    ]
    note = f"Processor time of fresh processes in units of `{NUMPY}`, medians of {plan.repeats} interleaved turns."
    raw = {"seconds": {name: [list(turn[name][0]) for turn in turns] for name in turns[0]}}
    return Table("Start of a command", titles, rows, [note], raw)
