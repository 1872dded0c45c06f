"""Sparse Bayesian deep learning for PyTorch: SG-MCMC samplers with an adaptive spike-and-slab prior."""

from spikeslab import presets
from spikeslab.errors import NonFiniteError, SpikeSlabWarning
from spikeslab.likelihoods import GaussianLikelihood, StackedGaussianLikelihood
from spikeslab.posterior import Chains, Convergence, Posterior, Prediction, recalibrate
from spikeslab.priors import EM, L1, L2, SA, Fixed, Marginal, Prior, SpikeSlab, SpikeSlabGaussian, StackedSpikeSlab
from spikeslab.pruning import Pruner, RhoPruner, Sparsity, measure_sparsity
from spikeslab.samplers import PSGLD, SGHMC, SGLD, Sampler
from spikeslab.schedules import (
    Schedule,
    constant,
    cosine,
    cubic_sparsity,
    cyclical,
    exponential_sparsity,
    geometric,
    multistep,
    polynomial,
)
from spikeslab.selection import select_weights

__version__ = "0.1.0"

__all__ = [
    "EM",
    "L1",
    "L2",
    "PSGLD",
    "SA",
    "SGHMC",
    "SGLD",
    "Chains",
    "Convergence",
    "Fixed",
    "GaussianLikelihood",
    "Marginal",
    "NonFiniteError",
    "Posterior",
    "Prediction",
    "Prior",
    "Pruner",
    "RhoPruner",
    "Sampler",
    "Schedule",
    "Sparsity",
    "SpikeSlab",
    "SpikeSlabGaussian",
    "SpikeSlabWarning",
    "StackedGaussianLikelihood",
    "StackedSpikeSlab",
    "constant",
    "cosine",
    "cubic_sparsity",
    "cyclical",
    "exponential_sparsity",
    "geometric",
    "measure_sparsity",
    "multistep",
    "polynomial",
    "presets",
    "recalibrate",
    "select_weights",
]
