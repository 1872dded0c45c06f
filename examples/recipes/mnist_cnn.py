r"""A recipe for ``spikeslab compress``: the paper's CNN on MNIST, of which whole channels go, so that it is faster.

    spikeslab reproduce mnist --methods vanilla --presets default --epochs 10 --out out/mnist
    spikeslab compress examples/recipes/mnist_cnn.py --dense out/mnist/vanilla-default-10-seed0/network.safetensors \
        --structure channels --weights "conv*.weight" --weights fc1.weight --sparsity 0.5 --epochs 10 --out out/channels
    spikeslab sparsity out/channels

The first command trains the dense network; any other file of its weights will do. The images are downloaded once, or
read from the folder that ``SPIKESLAB_DATA`` names.
"""

from __future__ import annotations

from functools import cache

import torch
from torch import Tensor, nn

from spikeslab.paper.images import CNN, load_mnist
from spikeslab.training import TensorBatches

HELD_OUT = 5000


@cache
def images() -> dict[str, tuple[Tensor, Tensor]]:
    """Images and labels to train on, to validate on, and to test on once."""
    data = load_mnist()
    held_out = min(HELD_OUT, len(data.y_train) // 5)
    x, y, x_val, y_val = data.hold_out(held_out)
    parts = {"train": (x, y), "val": (x_val, y_val), "test": (data.x_test, data.y_test)}
    # Pixels in [0, 1], which is what the dense network above was trained on.
    return {name: (x.float() / 255.0, y) for name, (x, y) in parts.items()}


def model() -> nn.Module:
    """The network; its weights come from the file that ``--dense`` names."""
    return CNN().to(memory_format=torch.channels_last)


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
    return list(zip(x.split(500), y.split(500), strict=True))
