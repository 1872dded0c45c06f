"""The paper's UCI regressions (appendix D)."""

from spikeslab.paper.uci.data import UCIData, load_uci
from spikeslab.paper.uci.network import MLP

__all__ = ["MLP", "UCIData", "load_uci"]
