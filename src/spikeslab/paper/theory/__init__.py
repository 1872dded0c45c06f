"""Theorem 1 and Corollary 1 of the paper on a problem that can be solved exactly."""
