"""Sparse Bayesian deep learning for PyTorch: SG-MCMC samplers with an adaptive spike-and-slab prior.

These are the names of the examples; the rest is in its room, such as ``spikeslab.priors.GroupSpikeSlab``.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from spikeslab import presets
from spikeslab.errors import NonFiniteError, SpikeSlabWarning
from spikeslab.likelihoods import GaussianLikelihood
from spikeslab.posterior import Chains, Posterior
from spikeslab.priors import EM, L1, L2, SA, Fixed, Marginal, SpikeSlab
from spikeslab.pruning import ChannelPruner, Pruner, RhoPruner, measure_sparsity
from spikeslab.samplers import PSGLD, SGHMC, SGLD
from spikeslab.schedules import cosine, cubic_sparsity, cyclical, exponential_sparsity, polynomial
from spikeslab.weights import select_weights

if TYPE_CHECKING:
    from spikeslab.compression import compact, compress, export_onnx, load_sparse, save_sparse

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
    "ChannelPruner",
    "Fixed",
    "GaussianLikelihood",
    "Marginal",
    "NonFiniteError",
    "Posterior",
    "Pruner",
    "RhoPruner",
    "SpikeSlab",
    "SpikeSlabWarning",
    "compact",
    "compress",
    "cosine",
    "cubic_sparsity",
    "cyclical",
    "exponential_sparsity",
    "export_onnx",
    "load_sparse",
    "measure_sparsity",
    "polynomial",
    "presets",
    "save_sparse",
    "select_weights",
]

# Loaded on first use: the training loop below them would take a tenth of the import.
_ROOMS = frozenset({"attacks", "compression", "diagnostics", "metrics", "parallel", "report", "training"})
_COMPRESSION = frozenset({"compact", "compress", "export_onnx", "load_sparse", "save_sparse"})

if not TYPE_CHECKING:  # a type checker would take every name for one that is there

    def __getattr__(name: str) -> Any:
        if name in _COMPRESSION:
            return getattr(import_module("spikeslab.compression"), name)
        if name in _ROOMS:
            return import_module(f"spikeslab.{name}")
        raise AttributeError(f"module 'spikeslab' has no attribute {name!r}")

    def __dir__() -> list[str]:
        return sorted({*globals(), *__all__, *_ROOMS})
