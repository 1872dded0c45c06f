"""A recipe for ``spikeslab compress``: LeNet-5 on Fashion-MNIST, 28 x 28 pixels, ten kinds of clothes.

    spikeslab compress examples/recipes/fashion_lenet.py --sparsity 0.9 --epochs 30 --out out/lenet

The images are downloaded once, or read from the folder that ``SPIKESLAB_DATA`` names.
"""

from __future__ import annotations

from functools import cache

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from spikeslab.paper.images import load_fashion
from spikeslab.training import TensorBatches

MEAN, DEVIATION = 0.2860, 0.3530
HELD_OUT = 5000


@cache
def images() -> dict[str, tuple[Tensor, Tensor]]:
    """Images and labels to train on, to validate on, and to test on once."""
    data = load_fashion()
    held_out = min(HELD_OUT, len(data.y_train) // 5)
    x, y, x_val, y_val = data.hold_out(held_out)
    parts = {"train": (x, y), "val": (x_val, y_val), "test": (data.x_test, data.y_test)}
    return {name: ((x.float() / 255.0 - MEAN) / DEVIATION, y) for name, (x, y) in parts.items()}


def model() -> nn.Module:
    """The dense network, trained here for three epochs; yours would load a file."""
    torch.manual_seed(0)
    network = nn.Sequential(
        nn.Conv2d(1, 6, kernel_size=5, padding=2),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(6, 16, kernel_size=5),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(400, 120),
        nn.ReLU(),
        nn.Linear(120, 84),
        nn.ReLU(),
        nn.Linear(84, 10),
    )
    optimizer = torch.optim.SGD(network.parameters(), lr=0.05, momentum=0.9, weight_decay=5e-4)
    batches = train_data()
    for epoch in range(3):
        for x, y in batches.epoch(epoch):
            optimizer.zero_grad()
            F.cross_entropy(network(x), y).backward()
            optimizer.step()
    return network


def train_data() -> TensorBatches:
    """Batches to train on, in a new order in every epoch."""
    return TensorBatches(*images()["train"], batch_size=100)


def val_data() -> list[tuple[Tensor, Tensor]]:
    """Batches for the accuracy after every epoch."""
    return in_batches(*images()["val"])


def test_data() -> list[tuple[Tensor, Tensor]]:
    """Batches that are looked at once, when all is done."""
    return in_batches(*images()["test"])


def in_batches(x: Tensor, y: Tensor) -> list[tuple[Tensor, Tensor]]:
    """Images in their order."""
    return list(zip(x.split(1000), y.split(1000), strict=True))
