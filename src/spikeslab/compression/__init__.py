"""Models that are really smaller: exact zeros, sparse files, and reports of what was gained."""

from spikeslab.compression.finalize import finalize
from spikeslab.compression.onnx import ExportError, export_onnx
from spikeslab.compression.sparse_file import load_sparse, load_sparse_into, save_sparse
from spikeslab.compression.sparsity_report import SparsityReport

__all__ = ["ExportError", "SparsityReport", "export_onnx", "finalize", "load_sparse", "load_sparse_into", "save_sparse"]
