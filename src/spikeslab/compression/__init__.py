"""Compression of networks, and models that are really smaller.

``compress`` prunes and samples; ``finalize``, ``save_sparse`` and ``compact`` make the result small; a
``SparsityReport`` measures what was gained.
"""

from spikeslab.compression.compact import Compacted, CompactReport, LayerSize, compact
from spikeslab.compression.compress import Compression, compress
from spikeslab.compression.curve import SparsityCurve, sparsity_curve
from spikeslab.compression.finalize import finalize
from spikeslab.compression.methods import METHODS
from spikeslab.compression.one_shot import OneShot, prune_one_shot
from spikeslab.compression.onnx import ExportError, export_onnx
from spikeslab.compression.result import Compressed
from spikeslab.compression.settings import Settings, paper_settings
from spikeslab.compression.sparse_file import load_sparse, load_sparse_into, save_sparse
from spikeslab.compression.sparsity_report import SparsityReport
from spikeslab.compression.tasks import BatchError
from spikeslab.graph.folding import fold_batch_norm

__all__ = [
    "METHODS",
    "BatchError",
    "CompactReport",
    "Compacted",
    "Compressed",
    "Compression",
    "ExportError",
    "LayerSize",
    "OneShot",
    "Settings",
    "SparsityCurve",
    "SparsityReport",
    "compact",
    "compress",
    "export_onnx",
    "finalize",
    "fold_batch_norm",
    "load_sparse",
    "load_sparse_into",
    "paper_settings",
    "prune_one_shot",
    "save_sparse",
    "sparsity_curve",
]
