"""Pruning: set weights or whole channels to zero while the sampler runs, to exact targets.

In ``"projected"`` mode, as in the paper, a zero still has a gradient and noise and may come back; in ``"masked"`` mode
it stays zero.
"""

from spikeslab.graph.free_channels import free_channel_layers
from spikeslab.graph.units import UnitFamily, find_units
from spikeslab.pruning.channel_pruner import ChannelPruner
from spikeslab.pruning.pruner import Pruner
from spikeslab.pruning.rho_pruner import RhoPruner
from spikeslab.pruning.sparsity import Sparsity, measure_sparsity
from spikeslab.pruning.units import channel_gates, unit_prior

__all__ = [
    "ChannelPruner",
    "Pruner",
    "RhoPruner",
    "Sparsity",
    "UnitFamily",
    "channel_gates",
    "find_units",
    "free_channel_layers",
    "measure_sparsity",
    "unit_prior",
]
