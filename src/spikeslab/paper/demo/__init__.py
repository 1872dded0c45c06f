"""The demo: a small CNN on scikit-learn's digits, and the paper's linear regression."""

from spikeslab.paper.demo.data import Digits, load_digits, load_upscaled_digits
from spikeslab.paper.demo.network import DigitsCNN

__all__ = ["Digits", "DigitsCNN", "load_digits", "load_upscaled_digits"]
