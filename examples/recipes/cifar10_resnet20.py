r"""A recipe for ``spikeslab compress``: ResNet20 on CIFAR-10, of which weights or whole channels go.

    spikeslab compress examples/recipes/cifar10_resnet20.py --dense resnet20.safetensors --structure channels \\
        --sparsity 0.6 --epochs 30 --out out/channels
    spikeslab sparsity out/channels

``--dense`` names the file of a trained network; ``spikeslab reproduce cifar10 --pretrain`` trains one. The recipe also
gives ``spikeslab sparsity RUN --recipe ...`` the network of the runs of ``spikeslab reproduce cifar10``, to time them.
The images are downloaded once, or read from the folder that ``SPIKESLAB_DATA`` names.
"""

from __future__ import annotations

from functools import cache

import torch
from torch import Tensor, nn

from spikeslab.compression import Settings
from spikeslab.paper.cifar10 import resnet20
from spikeslab.paper.images import Augment, load_cifar10
from spikeslab.paper.images.data import Images
from spikeslab.training import TensorBatches

HELD_OUT = 5000
settings = Settings(distillation=0.2, scope="global")


@cache
def images() -> Images:
    """All images, in bytes."""
    return load_cifar10()


def model() -> nn.Module:
    """The network; its weights come from the file that ``--dense`` names."""
    return resnet20().to(memory_format=torch.channels_last)


def train_data() -> TensorBatches:
    """Batches to train on, cropped and flipped at random, in a new order in every epoch."""
    x, y, _, _ = images().hold_out(min(HELD_OUT, len(images().y_train) // 5))
    augment = Augment("cifar10", erasing=False)
    return TensorBatches(x, y, batch_size=128, transform=lambda batch, source: channels_last(augment(batch, source)))


def val_data() -> list[tuple[Tensor, Tensor]]:
    """Batches for the accuracy after every epoch; a network from a file may have been trained on them."""
    _, _, x, y = images().hold_out(min(HELD_OUT, len(images().y_train) // 5))
    return in_batches(x, y)


def test_data() -> list[tuple[Tensor, Tensor]]:
    """Batches that are looked at once, when all is done."""
    return in_batches(images().x_test, images().y_test)


def in_batches(x: Tensor, y: Tensor) -> list[tuple[Tensor, Tensor]]:
    """Images in their order, as they are."""
    normalize = Augment("cifar10").normalize
    return [(channels_last(normalize(a)), b) for a, b in zip(x.split(200), y.split(200), strict=True)]


def channels_last(x: Tensor) -> Tensor:
    """The layout in which convolutions are fastest on a CPU."""
    return x.contiguous(memory_format=torch.channels_last)
