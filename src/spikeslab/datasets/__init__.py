"""Data: the paper's simulations, and sets that come with a dependency."""

from spikeslab.datasets.digits import Digits, load_digits
from spikeslab.datasets.linear import LinearData, simulate_linear
from spikeslab.datasets.logistic import LogisticData, simulate_logistic

__all__ = ["Digits", "LinearData", "LogisticData", "load_digits", "simulate_linear", "simulate_logistic"]
