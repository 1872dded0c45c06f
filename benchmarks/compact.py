"""What compacting buys: time of a forward pass with half of the channels dead, dense, folded and compacted.

    python benchmarks/compact.py [--batch 64] [--rounds 20] [--out results/bench]

All candidates run in one process, on one thread, in turns; the times are medians over the rounds of the time that the
processor spent, which other programs on the machine disturb little. Filters are zeroed at random. Batch normalisation
has random statistics and shifts: a dead channel is then a constant, and in front of a padded convolution one channel
has to carry such constants. The rows "shift zero too" have the normalisation of a dead channel at zero, as where it is
pruned with its filter; no channel is needed for it.
"""

from __future__ import annotations

import argparse
import statistics
import time
from pathlib import Path

import torch
from torch import nn

from spikeslab.compression import compact, fold_batch_norm
from spikeslab.paper.cifar10 import resnet20
from spikeslab.paper.images import CNN
from spikeslab.report.tables import Column, Provenance, Table


@torch.no_grad()
def resnet(all_widths: bool, shift_zero: bool) -> nn.Module:
    """Half of the channels inside each block dead; with ``all_widths`` half of those between the blocks too."""
    model = resnet20().eval()
    between = {width: torch.randperm(width)[: width // 2] for width in (16, 32, 64)}
    layers = [module for module in model.modules() if isinstance(module, (nn.Conv2d, nn.BatchNorm2d))]
    inner = {id(block.conv1) for stage in (model.layer1, model.layer2, model.layer3) for block in stage}
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
def cnn() -> nn.Module:
    """Half of the filters and of the hidden units dead."""
    model = CNN().eval()
    for layer in (model.conv1, model.conv2, model.fc1):
        layer.weight[torch.randperm(len(layer.weight))[: len(layer.weight) // 2]] = 0.0
    return model


def networks() -> dict[str, tuple[nn.Module, tuple[int, ...]]]:
    return {
        "ResNet20, half of the inner channels": (resnet(False, False), (3, 32, 32)),
        "ResNet20, half of the inner channels, shift zero too": (resnet(False, True), (3, 32, 32)),
        "ResNet20, half of all widths": (resnet(True, False), (3, 32, 32)),
        "ResNet20, half of all widths, shift zero too": (resnet(True, True), (3, 32, 32)),
        "MNIST CNN, half of filters and units": (cnn(), (1, 28, 28)),
    }


@torch.inference_mode()
def medians(models: dict[str, nn.Module], x: torch.Tensor, rounds: int) -> dict[str, float]:
    """Median milliseconds of a forward pass of each, measured in turns."""
    times: dict[str, list[float]] = {name: [] for name in models}
    for turn in range(rounds + 2):
        for name, model in models.items():
            start = time.thread_time()
            model(x)
            if turn >= 2:  # the first turns warm up
                times[name].append(1000 * (time.thread_time() - start))
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
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
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
    title = f"Forward pass with half of the channels dead, batch {arguments.batch}, one thread"
    notes = (
        f"Medians over {arguments.rounds} rounds in turns in one process, processor time; the ratios matter, not the "
        "times.",
    )
    table = Table(title, columns, rows, notes)
    print(table.markdown())
    if arguments.out:
        arguments.out.mkdir(parents=True, exist_ok=True)
        command = f"python benchmarks/compact.py --batch {arguments.batch} --rounds {arguments.rounds}"
        table.write(arguments.out / "compact", Provenance(command, seed=0))


if __name__ == "__main__":
    main()
