"""Data: the paper's simulations and image sets, and sets that come with a dependency."""

from spikeslab.datasets.digits import Digits, load_digits
from spikeslab.datasets.images import Images, load_cifar10, load_fashion, load_mnist
from spikeslab.datasets.linear import LinearData, simulate_linear
from spikeslab.datasets.logistic import LogisticData, simulate_logistic
from spikeslab.datasets.published import DataError

__all__ = [
    "DataError",
    "Digits",
    "Images",
    "LinearData",
    "LogisticData",
    "load_cifar10",
    "load_digits",
    "load_fashion",
    "load_mnist",
    "simulate_linear",
    "simulate_logistic",
]
