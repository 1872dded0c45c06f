"""Data: the paper's simulations, image sets and regressions, and a set that comes with a dependency."""

from spikeslab.datasets.augmentation import (
    Augment,
    Normalize,
    random_crop,
    random_erasing,
    random_flip,
    random_rotation,
)
from spikeslab.datasets.digits import Digits, load_digits, load_upscaled_digits
from spikeslab.datasets.images import Images, load_cifar10, load_fashion, load_mnist
from spikeslab.datasets.linear import LinearData, simulate_linear
from spikeslab.datasets.logistic import LogisticData, simulate_logistic
from spikeslab.datasets.published import DataError
from spikeslab.datasets.uci import UCIData, load_uci

__all__ = [
    "Augment",
    "DataError",
    "Digits",
    "Images",
    "LinearData",
    "LogisticData",
    "Normalize",
    "UCIData",
    "load_cifar10",
    "load_digits",
    "load_fashion",
    "load_mnist",
    "load_uci",
    "load_upscaled_digits",
    "random_crop",
    "random_erasing",
    "random_flip",
    "random_rotation",
    "simulate_linear",
    "simulate_logistic",
]
