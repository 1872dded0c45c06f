"""The paper's logistic regression with more variables than rows (appendix C)."""

from spikeslab.paper.logistic.data import LogisticData, simulate_logistic

__all__ = ["LogisticData", "simulate_logistic"]
