"""Benchmarks against other libraries, and long studies of our own: the suites of ``spikeslab bench``."""

from spikeslab.bench.suites import SUITES, BenchPlan, Findings, Suite

__all__ = ["SUITES", "BenchPlan", "Findings", "Suite"]
