"""What the library costs beside what users would take instead: the suites of ``spikeslab bench``."""

from spikeslab.bench.suites import SUITES, Suite
from spikeslab.bench.timing import Findings, Plan

__all__ = ["SUITES", "Findings", "Plan", "Suite"]
