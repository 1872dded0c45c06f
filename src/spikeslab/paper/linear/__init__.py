"""The paper's linear regression with more variables than rows (section 5.1)."""

from spikeslab.paper.linear.data import LinearData, simulate_linear

__all__ = ["LinearData", "simulate_linear"]
