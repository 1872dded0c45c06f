"""Models that are really smaller: exact zeros, sparse files, and reports of what was gained."""

from spikeslab.compression.finalize import finalize
from spikeslab.compression.sparse_file import load_sparse, load_sparse_into, save_sparse

__all__ = ["finalize", "load_sparse", "load_sparse_into", "save_sparse"]
