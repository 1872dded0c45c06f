"""Which processes share the data of a chain, and which are chains of their own.

A world of ``chains * data_size`` ranks is a table with a row for each chain,

.. code-block:: text

    rank = chain * data_size + data_rank,

so that the ranks of a chain are neighbours, usually on one machine. Along a row (``data_group``) ranks hold the same
weights and see different data; ``DistributedDataParallel`` averages their gradients. Along a column (``chain_group``)
they hold different chains. The noise is a pure function of (seed, step, element): with one seed in a row, all its ranks
draw the same noise, nothing random is ever sent, and the ranks stay identical to the last bit.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch import distributed as dist
from torch.nn.parallel import DistributedDataParallel

from spikeslab.errors import check_count
from spikeslab.kernels.noise import mix64
from spikeslab.parallel.digests import digests
from spikeslab.states import Stateful

if TYPE_CHECKING:  # torch may be built without it
    from torch.distributed import ProcessGroup


@dataclass(frozen=True)
class Ranks:
    """The place of this process in the world of chains and shards.

    >>> ranks = Ranks.create()  # without torchrun: a world of one
    >>> ranks.chain, ranks.data_rank, ranks.data_size, ranks.is_writer
    (0, 0, 1, True)

    Attributes:
        chain: Number of this process's chain.
        chains: Number of chains.
        data_rank: Number of this process among those that share its chain.
        data_size: How many share a chain.
        data_group: They, for ``DistributedDataParallel`` and ``GaussianLikelihood``; ``None`` in a world of one.
        chain_group: The processes with the same ``data_rank``, one of each chain; ``None`` in a world of one.
    """

    chain: int = 0
    chains: int = 1
    data_rank: int = 0
    data_size: int = 1
    data_group: ProcessGroup | None = None
    chain_group: ProcessGroup | None = None

    @classmethod
    def create(cls, chains: int = 1) -> Ranks:
        """Share the ranks of the initialised world among ``chains``; all ranks must call it.

        Args:
            chains: Number of chains. 1 is data-parallel alone; as many as there are ranks is chain-parallel alone.

        Raises:
            RuntimeError: If torchrun started several processes and ``init_process_group`` was not called.
            ValueError: If the world cannot be shared so.
        """
        chains = check_count("chains", chains)
        if not (dist.is_available() and dist.is_initialized()):
            started = int(os.environ.get("WORLD_SIZE", "1"))
            if started > 1:
                raise RuntimeError(
                    f"torch.distributed.init_process_group() must be called before Ranks.create(), but it was not, and "
                    f"{started} processes were started: each would be a world of its own."
                )
            if chains > 1:
                raise ValueError(
                    f"chains must be 1 in a single process, but got {chains}: start the script with torchrun."
                )
            return cls()
        world = dist.get_world_size()
        if world % chains:
            raise ValueError(f"chains must divide the world size, {world}, but got {chains}.")
        size = world // chains
        chain, data_rank = divmod(dist.get_rank(), size)
        # Every rank takes part in the making of every group, in the same order.
        rows = [dist.new_group(list(range(c * size, (c + 1) * size))) for c in range(chains)]
        columns = [dist.new_group(list(range(r, world, size))) for r in range(size)]
        return cls(chain, chains, data_rank, size, rows[chain], columns[data_rank])

    @property
    def is_writer(self) -> bool:
        """Whether this process writes its chain's files: one of each chain does."""
        return self.data_rank == 0

    @property
    def device(self) -> torch.device:
        """Where tensors must be that ranks exchange: NCCL takes those of a GPU alone, other backends all of the CPU."""
        joined = self.chains * self.data_size > 1
        return torch.device("cuda" if joined and dist.get_backend() == "nccl" else "cpu")

    def writer(self, chain: int) -> int:
        """Rank in the world of the process that writes the files of ``chain``."""
        return chain * self.data_size

    def seed(self, base: int) -> int:
        """A seed in [0, 2**64) that is the same within a chain and different between any two chains.

        It is ``mix64(base ^ mix64(chain))``. ``mix64`` permutes the 64-bit numbers, so no two chains share a seed,
        and unlike with ``base + chain``, runs with neighbouring bases have unrelated chains.
        """
        if check_count("base", base, minimum=0) >= 1 << 64:
            raise ValueError(f"base must be an integer below 2**64, but got {base}.")
        return mix64(base ^ mix64(self.chain))

    def data_parallel(self, model: nn.Module, **options: Any) -> nn.Module:
        """``model`` for the forward pass: in ``DistributedDataParallel`` where ranks share a chain, else as it is.

        Give the prior, the pruner and the posterior the model itself, whose names have no ``module.`` in front, and
        keep what is returned: gradients are averaged as long as it lives.

        Args:
            model: The model; ranks that share a chain take over the weights of their first one.
            **options: Of ``DistributedDataParallel``.
        """
        if self.data_size == 1:
            return model
        return DistributedDataParallel(model, process_group=self.data_group, **options)

    def shard(self, batch: Tensor) -> Tensor:
        """This rank's part of a batch that all ranks of the chain have: rows or row numbers along dimension 0.

        The parts are of equal size, so that the mean over ranks of the mean losses is the mean over the batch.

        >>> Ranks(data_rank=1, data_size=2).shard(torch.arange(6))
        tensor([3, 4, 5])
        """
        if len(batch) % self.data_size:
            raise ValueError(
                f"batch must have a number of rows that the {self.data_size} ranks of a chain can share equally, "
                f"but got {len(batch)}."
            )
        return batch.chunk(self.data_size)[self.data_rank]

    def mean(self, values: Tensor) -> Tensor:
        """The mean of ``values`` over the ranks of this chain, in float64."""
        values = values.detach().double()
        if self.data_size == 1:
            return values
        total = values.to(self.device, copy=True)
        dist.all_reduce(total, group=self.data_group)
        return (total / self.data_size).to(values.device)

    def highest(self, value: int) -> int:
        """The highest of the numbers that the ranks of this chain have; all of them must call it."""
        if self.data_size == 1:
            return value
        shared = torch.tensor(value, dtype=torch.int64, device=self.device)
        dist.all_reduce(shared, op=dist.ReduceOp.MAX, group=self.data_group)
        return int(shared)

    def lowest(self, value: int) -> int:
        """The lowest of the numbers that the ranks of this chain have; all of them must call it."""
        return -self.highest(-value)

    def check_same(self, *parts: nn.Module | Stateful) -> None:
        """Raise on all ranks of a chain if they differ in a bit; all of them must call it.

        Args:
            *parts: Modules, of which the parameters are compared (under ``DistributedDataParallel`` the statistics of
                batch normalisation are each rank's own), and samplers, priors and pruners, of which all state is.

        Raises:
            RuntimeError: If they differ; it names the first number or tensor that does.
        """
        if self.data_size == 1:
            return
        own = {
            f"{name} of {type(part).__name__} (argument {position})": digest
            for position, part in enumerate(parts, start=1)
            for name, digest in digests(part)
        }
        # Ranks with another number of values differ in the last entry, and can be compared for all that.
        length = torch.tensor(len(own), device=self.device)
        dist.all_reduce(length, op=dist.ReduceOp.MAX, group=self.data_group)
        low = torch.tensor([*own.values(), *[0] * (int(length) - len(own)), len(own)], device=self.device)
        high = low.clone()
        dist.all_reduce(low, op=dist.ReduceOp.MIN, group=self.data_group)
        dist.all_reduce(high, op=dist.ReduceOp.MAX, group=self.data_group)
        odd = (low != high).nonzero().flatten().tolist()
        if odd:
            name = list(own)[odd[0]] if odd[0] < len(own) else "their number"
            raise RuntimeError(
                f"the {self.data_size} ranks of chain {self.chain} must be identical, but {len(odd)} of {len(own)} "
                f"values differ, first {name}: give all ranks of a chain the same seed (ranks.seed), the same start "
                "and the likelihood its group=ranks.data_group."
            )
