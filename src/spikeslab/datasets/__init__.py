"""Data: the paper's simulations, sets that come with a dependency, and readers of files that the user has."""

from spikeslab.datasets.digits import Digits, load_digits
from spikeslab.datasets.linear import LinearData, simulate_linear
from spikeslab.datasets.logistic import LogisticData, simulate_logistic
from spikeslab.datasets.uci import UCIData, load_uci

__all__ = [
    "Digits",
    "LinearData",
    "LogisticData",
    "UCIData",
    "load_digits",
    "load_uci",
    "simulate_linear",
    "simulate_logistic",
]
