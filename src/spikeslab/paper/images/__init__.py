"""Table 2 of the paper: MNIST and Fashion-MNIST."""

from spikeslab.paper.images.augmentation import (
    Augment,
    Normalize,
    random_crop,
    random_erasing,
    random_flip,
    random_rotation,
)
from spikeslab.paper.images.data import Images, load_cifar10, load_fashion, load_mnist
from spikeslab.paper.images.networks import CNN, BatchNormCNN

__all__ = [
    "CNN",
    "Augment",
    "BatchNormCNN",
    "Images",
    "Normalize",
    "load_cifar10",
    "load_fashion",
    "load_mnist",
    "random_crop",
    "random_erasing",
    "random_flip",
    "random_rotation",
]
