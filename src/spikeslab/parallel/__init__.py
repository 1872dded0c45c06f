"""Chains on several processes: ranks, gathered samples, replica exchange and stacked chains."""

from spikeslab.parallel.distributed import Ranks, gather_chains
from spikeslab.parallel.replica_exchange import ReplicaExchange
from spikeslab.parallel.stacked import StackedModel
from spikeslab.parallel.swaps import temperature_ladder

__all__ = ["Ranks", "ReplicaExchange", "StackedModel", "gather_chains", "temperature_ladder"]
