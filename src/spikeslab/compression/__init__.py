"""Models that are really smaller: exact zeros, sparse files, narrower layers, and reports of what was gained."""

from spikeslab.compression.compact import Compacted, compact
from spikeslab.compression.compact_report import CompactReport, LayerSize
from spikeslab.compression.finalize import finalize
from spikeslab.compression.fold import fold_batch_norm
from spikeslab.compression.onnx import ExportError, export_onnx
from spikeslab.compression.sparse_file import load_sparse, load_sparse_into, save_sparse
from spikeslab.compression.sparsity_report import SparsityReport

__all__ = [
    "CompactReport",
    "Compacted",
    "ExportError",
    "LayerSize",
    "SparsityReport",
    "compact",
    "export_onnx",
    "finalize",
    "fold_batch_norm",
    "load_sparse",
    "load_sparse_into",
    "save_sparse",
]
