"""Samplers that stand in for a torch optimizer."""

from spikeslab.samplers.base import Sampler
from spikeslab.samplers.psgld import PSGLD
from spikeslab.samplers.sghmc import SGHMC
from spikeslab.samplers.sgld import SGLD

__all__ = ["PSGLD", "SGHMC", "SGLD", "Sampler"]
