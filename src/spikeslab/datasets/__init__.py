"""Data: the paper's simulation, and sets that come with a dependency."""

from spikeslab.datasets.digits import Digits, load_digits
from spikeslab.datasets.linear import LinearData, simulate_linear

__all__ = ["Digits", "LinearData", "load_digits", "simulate_linear"]
