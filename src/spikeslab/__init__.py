"""Sparse Bayesian deep learning for PyTorch: SG-MCMC samplers with an adaptive spike-and-slab prior."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from spikeslab import presets
from spikeslab.errors import NonFiniteError, SpikeSlabWarning
from spikeslab.likelihoods import GaussianLikelihood, StackedGaussianLikelihood
from spikeslab.posterior import Chains, Convergence, Posterior, Prediction, recalibrate
from spikeslab.priors import (
    EM,
    L1,
    L2,
    SA,
    Fixed,
    GroupSpikeSlab,
    Marginal,
    Prior,
    SpikeSlab,
    SpikeSlabGaussian,
    StackedSpikeSlab,
)
from spikeslab.pruning import (
    ChannelPruner,
    Pruner,
    RhoPruner,
    Sparsity,
    channel_gates,
    free_channel_layers,
    measure_sparsity,
)
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
    waves,
)
from spikeslab.weights import select_weights

if TYPE_CHECKING:
    from spikeslab.compression import (
        Compressed,
        SparsityReport,
        compact,
        compress,
        export_onnx,
        finalize,
        fold_batch_norm,
        load_sparse,
        load_sparse_into,
        save_sparse,
    )

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
    "Compressed",
    "Convergence",
    "Fixed",
    "GaussianLikelihood",
    "GroupSpikeSlab",
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
    "SparsityReport",
    "SpikeSlab",
    "SpikeSlabGaussian",
    "SpikeSlabWarning",
    "StackedGaussianLikelihood",
    "StackedSpikeSlab",
    "channel_gates",
    "compact",
    "compress",
    "constant",
    "cosine",
    "cubic_sparsity",
    "cyclical",
    "exponential_sparsity",
    "export_onnx",
    "finalize",
    "fold_batch_norm",
    "free_channel_layers",
    "geometric",
    "load_sparse",
    "load_sparse_into",
    "measure_sparsity",
    "multistep",
    "polynomial",
    "presets",
    "recalibrate",
    "save_sparse",
    "select_weights",
    "waves",
]

_COMPRESSION = frozenset(
    {
        "Compressed",
        "SparsityReport",
        "compact",
        "compress",
        "export_onnx",
        "finalize",
        "fold_batch_norm",
        "load_sparse",
        "load_sparse_into",
        "save_sparse",
    }
)
"""Loaded when they are asked for: with the training loop below them they would take a tenth of the import."""

if not TYPE_CHECKING:  # a type checker would take every name for one that is there

    def __getattr__(name: str) -> Any:
        if name in _COMPRESSION:
            return getattr(import_module("spikeslab.compression"), name)
        raise AttributeError(f"module 'spikeslab' has no attribute {name!r}")

    def __dir__() -> list[str]:
        return sorted({*globals(), *__all__})
