"""What an adaptive prior does at the moment, in numbers that can be compared to a weight decay."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Diagnostics:
    """How far a spike-and-slab prior has come, and what it does to the mean loss.

    Attributes:
        omega_sum: Sum of omega over the steps so far.
        progress: Share of the way to a target that stands still, 1 - prod(1 - omega).
        sigma: Current sigma.
        delta: Current inclusion probability of each layer.
        effective_l1: Mean weight of ``|w|`` in the mean loss, over the non-zero weights of each layer.
        effective_l2: The same for ``w**2 / 2``: compare it to a weight decay.
        inverted: Whether the spike is wider than the slab.
    """

    omega_sum: float
    progress: float
    sigma: float
    delta: dict[str, float]
    effective_l1: dict[str, float]
    effective_l2: dict[str, float]
    inverted: bool
