"""Sparse Bayesian deep learning for PyTorch: SG-MCMC samplers with an adaptive spike-and-slab prior.

These are the names of the examples; the rest is in its room, such as ``spikeslab.priors.GroupSpikeSlab``.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from spikeslab import presets
    from spikeslab.compression import (
        compact,
        compress,
        export_onnx,
        load_sparse,
        prune_one_shot,
        save_sparse,
        sparsity_curve,
    )
    from spikeslab.errors import NonFiniteError, SpikeSlabWarning
    from spikeslab.likelihoods import GaussianLikelihood
    from spikeslab.posterior import Chains, Posterior
    from spikeslab.priors import EM, L1, L2, SA, Fixed, Marginal, SpikeSlab
    from spikeslab.pruning import ChannelPruner, Pruner, RhoPruner, measure_sparsity
    from spikeslab.samplers import PSGLD, SGHMC, SGLD
    from spikeslab.schedules import cosine, cubic_sparsity, cyclical, exponential_sparsity, polynomial
    from spikeslab.weights import select_weights

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
    "prune_one_shot",
    "save_sparse",
    "select_weights",
    "sparsity_curve",
]

# A room is imported when one of its names is first used: the command line and the estimators need no torch.
_ROOMS = {
    "attacks": (),
    "compression": (
        "compact",
        "compress",
        "export_onnx",
        "load_sparse",
        "prune_one_shot",
        "save_sparse",
        "sparsity_curve",
    ),
    "diagnostics": (),
    "errors": ("NonFiniteError", "SpikeSlabWarning"),
    "integrations": (),
    "likelihoods": ("GaussianLikelihood",),
    "metrics": (),
    "parallel": (),
    "posterior": ("Chains", "Posterior"),
    "presets": (),
    "priors": ("EM", "L1", "L2", "SA", "Fixed", "Marginal", "SpikeSlab"),
    "pruning": ("ChannelPruner", "Pruner", "RhoPruner", "measure_sparsity"),
    "report": (),
    "samplers": ("PSGLD", "SGHMC", "SGLD"),
    "schedules": ("cosine", "cubic_sparsity", "cyclical", "exponential_sparsity", "polynomial"),
    "training": (),
    "weights": ("select_weights",),
}

if not TYPE_CHECKING:  # a type checker would take every name for one that is there

    def __getattr__(name: str) -> Any:
        for room, names in _ROOMS.items():
            if name == room:
                return import_module(f"spikeslab.{room}")
            if name in names:
                globals()[name] = value = getattr(import_module(f"spikeslab.{room}"), name)
                return value
        raise AttributeError(f"module 'spikeslab' has no attribute {name!r}")

    def __dir__() -> list[str]:
        return sorted({*globals(), *__all__, *_ROOMS})
