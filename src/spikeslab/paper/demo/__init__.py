"""The demo: a small CNN on scikit-learn's digits, and the paper's linear regression."""

from spikeslab.paper.demo.data import Digits, DigitsCNN, load_digits, load_upscaled_digits

__all__ = ["Digits", "DigitsCNN", "load_digits", "load_upscaled_digits"]
