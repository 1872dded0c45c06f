"""Priors over the sparse weights: the adaptive spike-and-slab mixtures, and plain L1 and L2 for comparison."""

from spikeslab.priors.adaptation import EM, SA, Adaptation, Fixed, Marginal
from spikeslab.priors.base import Prior
from spikeslab.priors.group_spike_slab import GroupSpikeSlab
from spikeslab.priors.penalties import L1, L2
from spikeslab.priors.spike_slab import Diagnostics, SpikeSlab
from spikeslab.priors.spike_slab_gaussian import SpikeSlabGaussian
from spikeslab.priors.stacked import StackedSpikeSlab

__all__ = [
    "EM",
    "L1",
    "L2",
    "SA",
    "Adaptation",
    "Diagnostics",
    "Fixed",
    "GroupSpikeSlab",
    "Marginal",
    "Prior",
    "SpikeSlab",
    "SpikeSlabGaussian",
    "StackedSpikeSlab",
]
