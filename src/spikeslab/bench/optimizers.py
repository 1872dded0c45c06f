"""Cost of an update and of a training step: torch's optimizers, a plain SGLD, ours, and those of posteriors.

An update is what an optimizer does between two backward passes; a step is forward, backward and update. Both are in
units of ``torch.optim.SGD(momentum=0.9)``.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.optim import SGD, Adam, Optimizer

from spikeslab.bench.suites import BenchPlan, Findings
from spikeslab.bench.timing import HOW, MISSING, UNFUSED, Candidates, Times, is_installed, load, measure, training_step
from spikeslab.errors import SpikeSlabWarning
from spikeslab.paper.cifar10.networks import resnet20
from spikeslab.paper.images.networks import CNN
from spikeslab.priors import SA, SpikeSlab
from spikeslab.report.tables import Cell, Column, Table
from spikeslab.samplers import SGHMC, SGLD
from spikeslab.schedules import polynomial
from spikeslab.weights import select_weights

LR = 1e-6  # so small that the weights stay as they are over any number of steps
SGD_NAME, CONTROL = "torch SGD, momentum", "the same again: a control"
NORMAL = "drawing noise with normal_() alone"
POSTERIORS = {"posteriors sgld": "sgld", "posteriors sghmc": "sghmc"}
STEP_BATCHES = (("MNIST CNN", 100), ("MNIST CNN", 1000), ("ResNet20", 128))
QUICK_DIVISOR = 10  # of the batches of a step


class BenchNetwork(NamedTuple):
    """Network to train: its constructor, globs of its sparse weights, the shape of an input, and its training rows."""

    build: Callable[[], nn.Module]
    globs: tuple[str, ...]
    image: tuple[int, ...]
    num_data: int


NETWORKS = {
    "MNIST CNN": BenchNetwork(CNN, ("fc1.weight",), (1, 28, 28), 60_000),
    "ResNet20": BenchNetwork(resnet20, ("layer*.conv*.weight",), (3, 32, 32), 50_000),
}


def run_update(plan: BenchPlan) -> Findings:
    """Time the update of each optimizer on both networks."""
    times = {name: measure(_updates(network, plan.seed), plan, seconds=0.01) for name, network in NETWORKS.items()}
    timed = next(iter(times.values())).seconds
    names = list(dict.fromkeys([*timed, *POSTERIORS]))
    columns: dict[Column, Callable[[str], Cell]] = {Column("what", ""): str}
    for network, found in times.items():
        columns[Column(network, network, ".2f")] = partial(_cell, found.ratio, found)
        columns[Column(f"{network}, median", "median", ".2f")] = partial(_cell, found.median_ratio, found)
    sizes = {name: sum(p.numel() for p in network.build().parameters()) for name, network in NETWORKS.items()}
    counts = ", ".join(f"{name} {size:,}" for name, size in sizes.items())
    notes = [
        f"Parameters: {counts}. {HOW} The first column of a network is the ratio of the least times of "
        f"{plan.repeats} rounds, the second the median ratio of a round. The second row is the first one again: its "
        "distance from 1 is the error of all other numbers. Weights are contiguous: with channels last, torch's "
        "normal_() takes several times as long for convolutions, and so does everything that draws with it.",
    ]
    absent = [name for name in POSTERIORS if name not in timed]
    if absent:
        notes.append(f"{MISSING.capitalize()} where this ran: {', '.join(absent)}.")
    if not is_installed("numba"):
        notes.append(UNFUSED)
    raw = {"microseconds": {name: t.microseconds() for name, t in times.items()}}
    title = f"Time of an update, in units of torch.optim.SGD(momentum=0.9), {plan.words}"
    return Findings({"update": Table.build(title, names, columns, notes, raw)})


def _cell(ratio: Callable[[str, str], float], times: Times, name: str) -> float | None:
    return ratio(name, SGD_NAME) if name in times.seconds else None


def run_step(plan: BenchPlan) -> Findings:
    """Time a training step for each network and batch size."""
    found: dict[str, Times] = {}
    for name, size in STEP_BATCHES:
        batch = size // QUICK_DIVISOR if plan.quick else size
        found[f"{name}, batch {batch}"] = measure(_steps(NETWORKS[name], batch, plan.seed), plan, seconds=0.2)
    columns: dict[Column, Callable[[tuple[str, str]], Cell]] = {
        Column("network", "Network"): lambda row: row[0],
        Column("what", ""): lambda row: row[1],
        Column("best", "ratio", ".3f"): lambda row: found[row[0]].ratio(row[1], SGD_NAME),
        Column("median", "median", ".3f"): lambda row: found[row[0]].median_ratio(row[1], SGD_NAME),
    }
    rows = [(network, what) for network, times in found.items() for what in times.seconds]
    notes = [
        f"{HOW} Ratio: of the least times of {plan.repeats} rounds; median: of the ratios of each round. The control "
        "is the first row of its block again: its distance from 1 is the error of the others. Channels last.",
    ]
    if not is_installed("numba"):
        notes.append(UNFUSED)
    title = f"Time of a training step, in units of the same with torch.optim.SGD(momentum=0.9), {plan.words}"
    raw = {"microseconds": {network: times.microseconds() for network, times in found.items()}}
    return Findings({"step": Table.build(title, rows, columns, notes, raw)})


def _updates(network: BenchNetwork, seed: int) -> Candidates:
    torch.manual_seed(seed)
    images, labels = torch.rand(8, *network.image), torch.randint(10, (8,))

    def with_gradients() -> nn.Module:
        model = network.build()
        F.cross_entropy(model(images), labels).backward()
        return model

    built = build_optimizers(network, seed)
    candidates: dict[str, Callable[[], object]] = {name: build(with_gradients()).step for name, build in built.items()}
    params = list(with_gradients().parameters())
    candidates[NORMAL] = lambda: [torch.empty_like(param).normal_() for param in params]
    return candidates | _posteriors_updates(params)


def _steps(network: BenchNetwork, batch: int, seed: int) -> Candidates:
    torch.manual_seed(seed)
    images = torch.rand(batch, *network.image).contiguous(memory_format=torch.channels_last)
    labels = torch.randint(10, (batch,))

    def step_of(build: Callable[[nn.Module], Optimizer]) -> Callable[[], None]:
        model: nn.Module = cast(Any, network.build()).to(memory_format=torch.channels_last)  # fastest on a CPU
        return training_step(model, build(model), F.cross_entropy, images, labels)

    built = build_optimizers(network, seed)
    return {name: step_of(build) for name, build in built.items() if name not in ("torch Adam", "SGHMC")}


class PlainSGLD(Optimizer):
    """SGLD as anyone would write it with torch's list operations: no prior, no checks, no state."""

    def __init__(self, params: Sequence[Tensor], lr: float, num_data: int) -> None:
        super().__init__(params, {"lr": lr, "num_data": num_data})

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        """Take one step."""
        for group in self.param_groups:
            params = [param for param in group["params"] if param.grad is not None]
            noise = [torch.randn_like(param) for param in params]
            torch._foreach_add_(params, [param.grad for param in params], alpha=-group["lr"])
            torch._foreach_add_(params, noise, alpha=math.sqrt(2.0 * group["lr"] / group["num_data"]))


def build_optimizers(network: BenchNetwork, seed: int) -> dict[str, Callable[[nn.Module], Optimizer]]:
    """Return constructors by name; the first is the unit of the others."""
    num_data = network.num_data

    def sghmc(model: nn.Module, prior: SpikeSlab | None = None) -> Optimizer:
        return SGHMC(model.parameters(), lr=LR, momentum=0.9, num_data=num_data, prior=prior, seed=seed)

    def sghmc_sa(model: nn.Module, adapt_every: int = 1) -> Optimizer:
        weights, adapt = select_weights(model, *network.globs), SA(polynomial(1.0, power=0.75, offset=1000))
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", SpikeSlabWarning)
            return sghmc(model, SpikeSlab(weights, v0=1e-3, v1=1.0, adapt=adapt, adapt_every=adapt_every))

    def sgd(model: nn.Module) -> Optimizer:
        return SGD(model.parameters(), lr=LR, momentum=0.9, foreach=True)

    return {
        SGD_NAME: sgd,
        CONTROL: sgd,
        "torch Adam": lambda model: Adam(model.parameters(), lr=LR, foreach=True),
        "plain SGLD, foreach": lambda model: PlainSGLD(list(model.parameters()), LR, num_data),
        "SGLD": lambda model: SGLD(model.parameters(), lr=LR, num_data=num_data, seed=seed),
        "SGHMC": sghmc,
        "SGHMC-SA": sghmc_sa,
        "SGHMC-SA, adapt_every=10": lambda model: sghmc_sa(model, 10),
    }


class _StoredGradient(torch.autograd.Function):
    """Loss of zero with a precomputed gradient: it costs nothing, so that only the update is timed.

    Half of the tensors are parameters, the other half their gradients.
    """

    @staticmethod
    def forward(*tensors: Tensor) -> Tensor:
        return tensors[0].new_zeros(())

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, ...], output: Tensor) -> None:
        ctx.gradients = inputs[len(inputs) // 2 :]

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        return (*ctx.gradients, *(None for _ in ctx.gradients))


def _posteriors_updates(params: Sequence[Tensor]) -> dict[str, Callable[[], object]]:
    """Return the updates of the library posteriors for parameters with gradients; none where it is not installed."""
    if not is_installed("posteriors"):
        return {}
    gradients = [cast(Tensor, param.grad).clone() for param in params]

    def log_posterior(values: dict[str, Tensor], batch: Any) -> tuple[Tensor, Tensor]:
        return cast(Any, _StoredGradient).apply(*values.values(), *gradients), torch.zeros(())

    def update_of(kind: str) -> Callable[[], None]:
        transform = getattr(load("posteriors").sgmcmc, kind).build(log_posterior, lr=LR)
        values = {str(index): param.detach().clone() for index, param in enumerate(params)}
        return posteriors_step(transform, values)

    return {name: update_of(kind) for name, kind in POSTERIORS.items()}


def posteriors_step(transform: Any, values: dict[str, Tensor]) -> Callable[..., None]:
    """Return a function that takes one step of a transform of posteriors on a batch, in place."""
    state = transform.init(values)

    def step(*batch: Tensor) -> None:
        nonlocal state
        result = transform.update(state, batch, inplace=True)
        state = result[0] if isinstance(result, tuple) and not hasattr(result, "params") else result

    return step
