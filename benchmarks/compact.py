"""What compacting buys: time of a forward pass with half of the channels dead, dense, folded and compacted.

    python benchmarks/compact.py [--threads 1] [--batch 64] [--rounds 30] [--out results/bench]

All candidates run in one process, in turns, so that a busy machine hurts them alike; the times are medians over the
rounds. Filters are zeroed at random, and batch normalisation has random statistics and shifts, so that a dead channel
is a constant that is seldom zero: the hard case.
"""

from __future__ import annotations

import argparse
import statistics
import time
from pathlib import Path

import torch
from torch import nn

from spikeslab.compression import compact, fold_batch_norm
from spikeslab.models import CNN, resnet20
from spikeslab.report.tables import Column, Run, Table


@torch.no_grad()
def resnet(all_widths: bool) -> nn.Module:
    """Half of the channels inside each block dead; with ``all_widths`` half of those between the blocks too."""
    model = resnet20().eval()
    for module in model.modules():
        if isinstance(module, nn.BatchNorm2d):
            module.running_mean.normal_(0.0, 0.3)
            module.running_var.uniform_(0.5, 2.0)
            module.bias.normal_(0.0, 0.3)
    between = {width: torch.randperm(width)[: width // 2] for width in (16, 32, 64)}
    for name, module in model.named_modules():
        if isinstance(module, nn.Conv2d):
            width = len(module.weight)
            if name.startswith("layer") and name.endswith("conv1"):
                module.weight[torch.randperm(width)[: width // 2]] = 0.0
            elif all_widths:
                module.weight[between[width]] = 0.0
    return model


@torch.no_grad()
def cnn() -> nn.Module:
    """Half of the filters and of the hidden units dead."""
    model = CNN().eval()
    for layer in (model.conv1, model.conv2, model.fc1):
        layer.weight[torch.randperm(len(layer.weight))[: len(layer.weight) // 2]] = 0.0
    return model


def networks() -> dict[str, tuple[nn.Module, tuple[int, ...]]]:
    return {
        "ResNet20, half of the inner channels": (resnet(all_widths=False), (3, 32, 32)),
        "ResNet20, half of all widths": (resnet(all_widths=True), (3, 32, 32)),
        "MNIST CNN, half of filters and units": (cnn(), (1, 28, 28)),
    }


@torch.inference_mode()
def medians(models: dict[str, nn.Module], x: torch.Tensor, rounds: int) -> dict[str, float]:
    """Median milliseconds of a forward pass of each, measured in turns."""
    times: dict[str, list[float]] = {name: [] for name in models}
    for turn in range(rounds + 2):
        for name, model in models.items():
            start = time.perf_counter()
            model(x)
            if turn >= 2:  # the first turns warm up
                times[name].append(1000 * (time.perf_counter() - start))
    return {name: statistics.median(values) for name, values in times.items()}


def measure(name: str, model: nn.Module, shape: tuple[int, ...], batch: int, rounds: int) -> dict[str, str | float]:
    x = torch.randn(batch, *shape)
    compacted = compact(model, x[:1])
    times = medians({"dense": model, "folded": fold_batch_norm(model, x[:1]), "compacted": compacted.model}, x, rounds)
    (parameters, left), (products, products_left) = compacted.report.parameters, compacted.report.multiply_adds
    with torch.inference_mode():
        expected = model(x)
        deviation = float((compacted.model(x) - expected).abs().max() / expected.abs().max())
    return {
        "network": name,
        **times,
        "faster_folded": times["dense"] / times["folded"],
        "faster": times["dense"] / times["compacted"],
        "parameters": left / parameters,
        "multiply_adds": products_left / products,
        "deviation": deviation,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--rounds", type=int, default=30)
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    torch.manual_seed(0)
    rows = [
        measure(name, model, shape, arguments.batch, arguments.rounds) for name, (model, shape) in networks().items()
    ]
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
    threads = f"{arguments.threads} thread{'s' if arguments.threads > 1 else ''}"
    title = f"Forward pass with half of the channels dead, batch {arguments.batch}, {threads}"
    notes = (f"Medians over {arguments.rounds} rounds in turns in one process; the ratios matter, not the times.",)
    table = Table(title, columns, rows, notes)
    print(table.markdown())
    if arguments.out:
        arguments.out.mkdir(parents=True, exist_ok=True)
        command = (
            f"python benchmarks/compact.py --threads {arguments.threads} --batch {arguments.batch} "
            f"--rounds {arguments.rounds}"
        )
        table.write(arguments.out / "compact", Run(command, seed=0))


if __name__ == "__main__":
    main()
