"""Suites on networks: an epoch of MNIST, bfloat16 and distillation, dead channels, files, methods of ``compress``."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from spikeslab.bench.suites import BenchPlan, Findings
from spikeslab.bench.timing import CONTROL, HOW, measure, ratio_note, ratio_table
from spikeslab.compression import METHODS, Settings, compact, compress, finalize, fold_batch_norm
from spikeslab.compression.sparse_file import DENSE, file_sizes
from spikeslab.compression.tasks import CLASSIFICATION, Task, classify, with_distillation
from spikeslab.errors import SpikeSlabWarning
from spikeslab.paper.cifar10.networks import resnet20
from spikeslab.paper.demo import load_digits
from spikeslab.paper.demo.digits import DigitsPreset, train_dense
from spikeslab.paper.images.augmentation import NORMALIZE, Augment
from spikeslab.paper.images.networks import CNN
from spikeslab.priors import SA, SpikeSlab
from spikeslab.pruning import Pruner
from spikeslab.report.tables import Cell, Column, Table
from spikeslab.samplers import SGHMC
from spikeslab.schedules import Schedule, constant, polynomial
from spikeslab.training import TensorBatches, Training
from spikeslab.weights import select_weights

BARE, FLOAT32 = "bare loop: forward, backward, SGD on ready floats", "float32"
SPARSE, SPARSITY = "layer*.conv*.weight", 0.9
CASES: list[tuple[str, dict[str, Any]]] = [
    *((method, {}) for method in METHODS),
    *(("a-sghmc-sa", {"omega_sum": 5.0, "v0": v0}) for v0 in (0.007, 0.013, 0.05)),
]

Step = Callable[[], object]


def run_epoch(plan: BenchPlan) -> Findings:
    """Time a step of an MNIST run against a bare loop: forward, backward and SGD on floats in memory.

    A step of ours cuts rows in a new order out of bytes, augments and normalises them, and updates SGHMC-SA in the
    training loop with its checks. Samples, evaluations, the log and checkpoints are not part of it.
    """
    rows, batch = (2000, 100) if plan.quick else (60_000, 1000)
    generator = torch.Generator().manual_seed(plan.seed)
    images = torch.randint(256, (rows, 1, 28, 28), generator=generator, dtype=torch.uint8)
    labels = torch.randint(10, (rows,), generator=generator)
    floats = NORMALIZE["mnist"](images)

    def sampler(model: nn.Module) -> SGHMC:
        return _sghmc_sa(model, rows, "fc1.weight", 0.05, 0.04, polynomial(1.0, power=0.75, offset=1000))

    def bare(optimizer_of: Callable[[nn.Module], torch.optim.Optimizer]) -> Step:
        model, position = _channels_last(CNN, plan.seed), 0
        optimizer = optimizer_of(model)

        def step() -> None:
            nonlocal position
            part = slice(position, position + batch)
            optimizer.zero_grad()
            F.cross_entropy(model(floats[part]), labels[part]).backward()
            optimizer.step()
            position = (position + batch) % rows

        return step

    def loop(transform: Callable[..., Tensor]) -> Step:
        model = _channels_last(CNN, plan.seed)
        batches = TensorBatches(images, labels, batch_size=batch, seed=plan.seed, transform=transform)
        return _step_of(Training(model, sampler(model), batches))

    def sgd(model: nn.Module) -> torch.optim.Optimizer:
        return torch.optim.SGD(model.parameters(), lr=1e-3, momentum=0.9, foreach=True)

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", SpikeSlabWarning)
        candidates = {
            BARE: bare(sgd),
            "control: the bare loop again": bare(sgd),
            "the same with SGHMC-SA": bare(sampler),
            "our loop, batches cut from bytes": loop(NORMALIZE["mnist"]),
            "our loop with augmentation: all of a step": loop(Augment("mnist")),
        }
    times = measure(candidates, plan, seconds=0.0)
    seconds = {Column("seconds", "s of an epoch", ".1f"): lambda name: times.least(name) * rows / batch}
    note = (
        f"2-Conv-2-FC CNN with 681,506 parameters, prior on 627,200, batch {batch}, channels last, random images. "
        f"{ratio_note(plan)} {CONTROL} Samples, evaluations, log and checkpoints are not part of a step."
    )
    title = f"A step of an epoch of MNIST, in units of a bare loop, {plan.words}"
    return Findings({"epoch": ratio_table(title, times, BARE, note, seconds)})


def run_precision(plan: BenchPlan) -> Findings:
    """Time a training step of ResNet20 in bfloat16 and with distillation, in units of float32."""
    batch, rows = (8 if plan.quick else 128), 50_000

    def step(precision: str, distillation: float = 0.0) -> Step:
        model = _channels_last(resnet20, plan.seed)
        x = torch.randn(batch, 3, 32, 32).contiguous(memory_format=torch.channels_last)
        sampler = _sghmc_sa(model, rows, SPARSE, 0.005, 0.1, constant(1e-4))
        loss = with_distillation(Task(CLASSIFICATION, classify), model, distillation, 4.0).loss
        return _step_of(Training(model, sampler, [(x, torch.randint(10, (batch,)))], loss, precision=precision))

    candidates = {
        FLOAT32: step(FLOAT32),
        "control: float32 again": step(FLOAT32),
        "bfloat16": step("bfloat16"),
        "float32, distillation": step(FLOAT32, 0.2),
        "bfloat16, distillation": step("bfloat16", 0.2),
    }
    times = measure(candidates, plan, seconds=0.0 if plan.quick else 0.5)
    native = torch.cpu._is_avx512_bf16_supported() or torch.cpu._is_amx_tile_supported()
    note = (
        f"Batch {batch}, channels last. The processor {'multiplies' if native else 'does not multiply'} bfloat16 "
        f"itself. {ratio_note(plan)} {CONTROL}"
    )
    title = f"A training step of ResNet20, in units of float32, {plan.words}"
    return Findings({"precision": ratio_table(title, times, FLOAT32, note)})


def run_compact(plan: BenchPlan) -> Findings:
    """Time a forward pass with half of the channels dead: dense, with folded normalisation, and compacted.

    Filters are zeroed at random. The statistics and shifts of batch normalisation are random, so a dead channel is a
    constant, which one channel has to carry in front of a padded convolution. In the rows "shift zero too" the
    normalisation of a dead channel is zero, as where it is pruned with its filter.
    """
    batch = 4 if plan.quick else 64
    torch.manual_seed(plan.seed)
    networks = {
        "ResNet20, half of the inner channels": _half_resnet(all_widths=False, shift_zero=False),
        "ResNet20, half of the inner channels, shift zero too": _half_resnet(all_widths=False, shift_zero=True),
        "ResNet20, half of all widths": _half_resnet(all_widths=True, shift_zero=False),
        "ResNet20, half of all widths, shift zero too": _half_resnet(all_widths=True, shift_zero=True),
        "MNIST CNN, half of filters and units": _half_cnn(),
    }
    rows = [{"network": name, **_compact_cells(model, batch, plan)} for name, model in networks.items()]
    columns = [
        Column("network", "Network"),
        Column("dense", "dense ms", ".1f"),
        Column("folded", "folded ms", ".1f"),
        Column("compacted", "compacted ms", ".1f"),
        Column("faster_folded", "dense/folded", ".2f"),
        Column("faster", "dense/compacted", ".2f"),
        Column("parameters", "parameters left", ".2f"),
        Column("multiply_adds", "multiply-adds left", ".2f"),
        Column("deviation", "relative deviation", ".0e"),
    ]
    title = f"Forward pass with half of the channels dead, batch {batch}, {plan.words}"
    note = f"{HOW} Least times of {plan.repeats} rounds; the ratios matter, not the times."
    return Findings({"compact": Table(title, columns, rows, [note])})


def run_files(plan: BenchPlan) -> Findings:
    """Count the bytes on disk of a ResNet20 with 90 % zeros, in each format.

    The network has random weights and is pruned by magnitude, so these are sizes and nothing else.
    """
    torch.manual_seed(plan.seed)
    model = resnet20()
    Pruner(select_weights(model, SPARSE), constant(SPARSITY), network=model).step()
    tensors = finalize(model).state_dict()
    sizes = file_sizes(tensors, tensors)
    columns: dict[Column, Callable[[str], Cell]] = {
        Column("file", "File"): str,
        Column("bytes", "bytes", ","): sizes.get,
        Column("smaller", "times smaller", ".2f"): lambda name: sizes[DENSE] / sizes[name],
    }
    nonzeros = sum(int(parameter.count_nonzero()) for parameter in model.parameters())
    plan.tick(plan.repeats)
    note = f"Random weights, pruned by magnitude; {nonzeros:,} parameters are left."
    return Findings({"files": Table.build(f"Files of a ResNet20 with {SPARSITY:.0%} zeros", sizes, columns, [note])})


def run_methods(plan: BenchPlan) -> Findings:
    """Compress the digits CNN by every method, in ``plan.repeats`` epochs each.

    The settings are the defaults, tuned for none of the methods: the table shows that all of them run on one harness,
    not which one wins. The last rows vary the width of the spike with ``omega_sum=5``, where it matters most.
    """
    digits = load_digits()
    dense = train_dense(digits, DigitsPreset(), plan.seed)
    train = TensorBatches(digits.x_train, digits.y_train, batch_size=64, seed=plan.seed)
    unseen = [(torch.cat([digits.x_validation, digits.x_test]), torch.cat([digits.y_validation, digits.y_test]))]
    found: list[tuple[str, Mapping[str, float], Mapping[str, float] | None, int]] = []
    for method, changes in CASES:
        result = compress(
            dense,
            train,
            unseen,
            sparsity=SPARSITY,
            epochs=plan.repeats,
            method=method,
            seed=plan.seed,
            settings=Settings(**changes),
            progress=False,
        )
        scores, network = result.evaluation, result.report["network"]
        if not found:
            found.append(("dense", scores["dense"], None, network["weights"]))
        label = ", ".join([method, *(f"{name}={value:g}" for name, value in changes.items())])
        found.append((label, scores["sparse"], scores["average"], network["nonzeros"]))
        plan.tick(plan.repeats)
    images = len(unseen[0][1])
    notes = [
        f"{plan.repeats} epochs from one dense network, one seed, default settings where none are named. "
        f"{images} images that are not trained on, one of which is {100 / images:.2f} points."
    ]
    title = f"Methods of compress on the digits CNN, {SPARSITY:.0%} of the network zero"
    table = Table.build(
        title,
        found,
        {
            Column("method", "Method"): lambda row: row[0],
            Column("accuracy", "accuracy %", ".2f"): lambda row: 100.0 * row[1]["accuracy"],
            Column("nll", "NLL", ".3f"): lambda row: row[1]["nll"],
            Column("average_accuracy", "average: accuracy %", ".2f"): lambda row: (
                100.0 * row[2]["accuracy"] if row[2] else None
            ),
            Column("average_nll", "average: NLL", ".3f"): lambda row: row[2]["nll"] if row[2] else None,
            Column("nonzeros", "non-zeros", ","): lambda row: row[3],
        },
        notes,
    )
    return Findings({"digits": table})


def _channels_last(build: Callable[[], nn.Module], seed: int) -> nn.Module:
    torch.manual_seed(seed)
    return build().to(memory_format=torch.channels_last)  # type: ignore[call-overload, no-any-return]


def _sghmc_sa(model: nn.Module, num_data: int, glob: str, v0: float, v1: float, omega: Schedule) -> SGHMC:
    prior = SpikeSlab(select_weights(model, glob), v0=v0, v1=v1, adapt=SA(omega))
    return SGHMC(model.parameters(), lr=1e-3, momentum=0.9, num_data=num_data, temperature=1e-3, prior=prior, seed=0)


def _step_of(training: Training) -> Step:
    return lambda: training.run(steps=training.steps + 1)


@torch.no_grad()
def _half_resnet(*, all_widths: bool, shift_zero: bool) -> nn.Module:
    """Return a ResNet20 with half of the channels inside each block dead; ``all_widths`` adds those between blocks."""
    model = resnet20().eval()
    between = {width: torch.randperm(width)[: width // 2] for width in (16, 32, 64)}
    layers: list[Any] = [module for module in model.modules() if isinstance(module, (nn.Conv2d, nn.BatchNorm2d))]
    inner = {id(module) for name, module in model.named_modules() if name.endswith(".conv1")}
    for conv, norm in zip(layers[::2], layers[1::2], strict=True):  # each is registered right before its normalisation
        width = conv.out_channels
        norm.running_mean.normal_(0.0, 0.3)
        norm.running_var.uniform_(0.5, 2.0)
        norm.bias.normal_(0.0, 0.3)
        if id(conv) in inner or all_widths:
            dead = torch.randperm(width)[: width // 2] if id(conv) in inner else between[width]
            conv.weight[dead] = 0.0
            if shift_zero:
                norm.running_mean[dead] = norm.bias[dead] = 0.0
    return model


@torch.no_grad()
def _half_cnn() -> nn.Module:
    """Return the CNN of MNIST with half of the filters and of the hidden units dead."""
    model = CNN().eval()
    for layer in (model.conv1, model.conv2, model.fc1):
        layer.weight[torch.randperm(len(layer.weight))[: len(layer.weight) // 2]] = 0.0
    return model


def _compact_cells(model: nn.Module, batch: int, plan: BenchPlan) -> dict[str, Cell]:
    x = torch.randn(batch, *((1, 28, 28) if isinstance(model, CNN) else (3, 32, 32)))
    compacted = compact(model, x[:1])
    networks = {"dense": model, "folded": fold_batch_norm(model, x[:1]), "compacted": compacted.model}
    with torch.inference_mode():
        times = measure({name: partial(each, x) for name, each in networks.items()}, plan, seconds=0.0)
        expected = model(x)
        deviation = float((compacted.model(x) - expected).abs().max() / expected.abs().max())
    (parameters, left), (products, products_left) = compacted.report.parameters, compacted.report.multiply_adds
    return {
        **{name: 1000.0 * times.least(name) for name in networks},
        "faster_folded": times.ratio("dense", "folded"),
        "faster": times.ratio("dense", "compacted"),
        "parameters": left / parameters,
        "multiply_adds": products_left / products,
        "deviation": deviation,
    }
