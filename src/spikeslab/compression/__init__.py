"""Compression of a network of one's own: ``compress``, its recipe and its methods."""

from spikeslab.compression.harness import Compression, compress
from spikeslab.compression.methods import METHODS
from spikeslab.compression.paper import paper_settings
from spikeslab.compression.result import Compressed
from spikeslab.compression.settings import Settings

__all__ = ["METHODS", "Compressed", "Compression", "Settings", "compress", "paper_settings"]
