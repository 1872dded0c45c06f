"""Ranks of a torchrun world: data-parallel groups, chains, and the samples of all chains in one process.

A world of ``chains * data_size`` ranks is a table with a row for each chain,

.. code-block:: text

    rank = chain * data_size + data_rank,

so that the ranks of a chain are neighbours, usually on one machine. Along a row (``data_group``) ranks hold the same
weights and see different data; ``DistributedDataParallel`` averages their gradients. Along a column (``chain_group``)
they hold different chains. The noise is a pure function of (seed, step, element): with one seed in a row, all its ranks
draw the same noise, nothing random is ever sent, and the ranks stay identical to the last bit.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from hashlib import sha256
from typing import TYPE_CHECKING, Any

import torch
from safetensors.torch import load, save
from torch import Tensor, nn
from torch import distributed as dist
from torch.nn.parallel import DistributedDataParallel

from spikeslab.errors import ArgumentValueError, StateError, check_count
from spikeslab.kernels.noise import mix64
from spikeslab.posterior import Posterior
from spikeslab.posterior.samples import Samples
from spikeslab.samplers.base import CHAIN
from spikeslab.shards import check_torch, is_sharded
from spikeslab.states import Stateful

if TYPE_CHECKING:  # torch may be built without it
    from torch.distributed import ProcessGroup


@dataclass(frozen=True)
class Ranks:
    """Position of this process among the chains and the ranks that share a chain.

    >>> ranks = Ranks.create()  # without torchrun: a world of one
    >>> ranks.chain, ranks.data_rank, ranks.data_size, ranks.is_writer
    (0, 0, 1, True)

    Attributes:
        chain: Index of this process's chain.
        chains: Number of chains.
        data_rank: Index of this process among those that share its chain.
        data_size: Number of processes that share a chain.
        data_group: Process group of this chain, for ``DistributedDataParallel`` and ``GaussianLikelihood``; ``None`` in
            a world of one.
        chain_group: Process group of the ranks with the same ``data_rank``, one per chain; ``None`` in a world of one.
    """

    chain: int = 0
    chains: int = 1
    data_rank: int = 0
    data_size: int = 1
    data_group: ProcessGroup | None = None
    chain_group: ProcessGroup | None = None

    @classmethod
    def create(cls, chains: int = 1) -> Ranks:
        """Divide the ranks of the initialised world among ``chains``; all ranks must call it.

        Args:
            chains: Number of chains. 1 is data-parallel alone; as many as there are ranks is chain-parallel alone.

        Raises:
            StateError: If torchrun started several processes and ``init_process_group`` was not called.
            ValueError: If the world size is no multiple of ``chains``.
        """
        chains = check_count("chains", chains)
        if not (dist.is_available() and dist.is_initialized()):
            started = int(os.environ.get("WORLD_SIZE", "1"))
            if started > 1:
                raise StateError(
                    f"{started} processes were started without a process group, so each would be a world of its own: "
                    "call torch.distributed.init_process_group() before Ranks.create()."
                )
            if chains > 1:
                hint = "start the script with torchrun"
                raise ArgumentValueError("chains", "must be 1 in a single process", chains, hint)
            return cls()
        world = dist.get_world_size()
        if world % chains:
            raise ArgumentValueError("chains", f"must divide the world size, {world}", chains)
        size = world // chains
        chain, data_rank = divmod(dist.get_rank(), size)
        # Every rank takes part in the making of every group, in the same order.
        rows = [dist.new_group(list(range(c * size, (c + 1) * size))) for c in range(chains)]
        columns = [dist.new_group(list(range(r, world, size))) for r in range(size)]
        return cls(chain, chains, data_rank, size, rows[chain], columns[data_rank])

    @property
    def is_writer(self) -> bool:
        """True on the one process of each chain that writes its files."""
        return self.data_rank == 0

    @property
    def device(self) -> torch.device:
        """Device of tensors that ranks exchange: the GPU for NCCL, the CPU for other backends."""
        joined = self.chains * self.data_size > 1
        return torch.device("cuda" if joined and dist.get_backend() == "nccl" else "cpu")

    def writer(self, chain: int) -> int:
        """Return the global rank of the process that writes the files of ``chain``."""
        return chain * self.data_size

    def seed(self, base: int) -> int:
        """Return a seed in [0, 2**64): the same within a chain, different between any two chains.

        It is ``mix64(base ^ mix64(chain))``. ``mix64`` permutes the 64-bit numbers, so no two chains share a seed,
        and unlike with ``base + chain``, runs with neighbouring bases have unrelated chains.
        """
        return mix64(check_count("base", base, minimum=0, bits=64) ^ mix64(self.chain))

    def data_parallel(self, model: nn.Module, **options: Any) -> nn.Module:
        """Wrap ``model`` in ``DistributedDataParallel`` if ranks share a chain, and return it.

        Give the prior, the pruner and the posterior the model itself, whose names have no ``module.`` in front. Keep a
        reference to the wrapper: gradients are averaged as long as it lives.

        Args:
            model: The model; ranks that share a chain start from the weights of their first rank.
            **options: Options of ``DistributedDataParallel``.
        """
        if self.data_size == 1:
            return model
        return DistributedDataParallel(model, process_group=self.data_group, **options)

    def fully_shard(self, model: nn.Module, layers: Iterable[nn.Module] = (), **options: Any) -> nn.Module:
        """Shard ``model`` with FSDP2 over the ranks of this chain, in place, and return it; one rank keeps it whole.

        Gradients are averages over the ranks on any backend: those of gloo on the CPU may otherwise be sums.

        Args:
            model: The model, the same on all ranks.
            layers: Modules inside it that are sharded, and gathered in the forward pass, one at a time.
            **options: Options of ``torch.distributed.fsdp.fully_shard``.

        Raises:
            StateError: If torch is older than the first version with which sharding was tested.
        """
        if self.data_size == 1:
            return model
        check_torch()
        from torch.distributed.device_mesh import DeviceMesh
        from torch.distributed.fsdp import FSDPModule, fully_shard

        mesh = DeviceMesh.from_group(self.data_group, self.device.type)  # type: ignore[arg-type]
        for module in [*layers, model]:
            fully_shard(module, mesh=mesh, **options)
            if self.device.type == "cpu" and isinstance(module, FSDPModule):
                module.set_force_sum_reduction_for_comms(True)
                module.set_gradient_divide_factor(self.data_size)
        return model

    def shard(self, batch: Tensor) -> Tensor:
        """Return this rank's rows of a batch that all ranks of the chain have.

        The parts are of equal size, so that the mean over ranks of the mean losses is the mean over the batch.

        >>> Ranks(data_rank=1, data_size=2).shard(torch.arange(6))
        tensor([3, 4, 5])
        """
        if len(batch) % self.data_size:
            expectation = f"must have a number of rows that the {self.data_size} ranks of a chain can share equally"
            raise ArgumentValueError("batch", expectation, len(batch))
        return batch.chunk(self.data_size)[self.data_rank]

    def mean(self, values: Tensor) -> Tensor:
        """Return the mean of ``values`` over the ranks of this chain, in float64."""
        values = values.detach().double()
        if self.data_size == 1:
            return values
        total = values.to(self.device, copy=True)
        dist.all_reduce(total, group=self.data_group)
        return (total / self.data_size).to(values.device)

    def highest(self, value: int) -> int:
        """Return the highest value over the ranks of this chain; all of them must call it."""
        if self.data_size == 1:
            return value
        shared = torch.tensor(value, dtype=torch.int64, device=self.device)
        dist.all_reduce(shared, op=dist.ReduceOp.MAX, group=self.data_group)
        return int(shared)

    def lowest(self, value: int) -> int:
        """Return the lowest value over the ranks of this chain; all of them must call it."""
        return -self.highest(-value)

    def check_same(self, *parts: nn.Module | Stateful) -> None:
        """Check that the ranks of a chain are identical to the last bit; all of them must call it.

        Args:
            *parts: Modules, whose parameters are compared (buffers such as batch-norm statistics differ between ranks
                under ``DistributedDataParallel``), and samplers, priors and pruners, whose whole state is compared.
                Of sharded tensors, which differ between ranks, the shapes are compared.

        Raises:
            StateError: On all ranks, if they differ; the message names the first value that does.
        """
        if self.data_size == 1:
            return
        states = [dict(p.named_parameters()) if isinstance(p, nn.Module) else p.state_dict() for p in parts]
        own = {
            f"{name} of {type(part).__name__} (argument {position})": digest(name, value)
            for position, (part, state) in enumerate(zip(parts, states, strict=True), start=1)
            for name, value in walk("", state)
            if not name.endswith(f".{CHAIN}")  # it repeats numbers that have names of their own
        }
        # The last entry is the number of values, so that ranks with different numbers can be compared.
        length = torch.tensor(len(own), device=self.device)
        dist.all_reduce(length, op=dist.ReduceOp.MAX, group=self.data_group)
        low = torch.tensor([*own.values(), *[0] * (int(length) - len(own)), len(own)], device=self.device)
        high = low.clone()
        dist.all_reduce(low, op=dist.ReduceOp.MIN, group=self.data_group)
        dist.all_reduce(high, op=dist.ReduceOp.MAX, group=self.data_group)
        odd = (low != high).nonzero().flatten().tolist()
        if odd:
            name = list(own)[odd[0]] if odd[0] < len(own) else "their number"
            raise StateError(
                f"the {self.data_size} ranks of chain {self.chain} must be identical, but {len(odd)} of {len(own)} "
                f"values differ, first {name}: give all ranks of a chain the same seed (ranks.seed) and initial "
                "weights, and the likelihood group=ranks.data_group."
            )


def walk(path: str, value: Any) -> Iterator[tuple[str, Any]]:
    """Yield the tensors and numbers of a nested state with their paths."""
    if isinstance(value, Mapping):
        items = list(value.items())
    elif isinstance(value, list | tuple):
        items = list(enumerate(value))
    else:
        yield path, value
        return
    for key, item in items:
        yield from walk(f"{path}.{key}" if path else str(key), item)


def digest(name: str, value: Any) -> int:
    """Return 64 bits of a hash of the name and of every bit of the value."""
    digest = sha256(name.encode())
    if isinstance(value, Tensor):
        if is_sharded(value):
            value = torch.tensor(value.shape)
        digest.update(f"{value.dtype} {tuple(value.shape)}".encode())
        flat = value.detach().cpu().contiguous().reshape(-1)
        digest.update(flat.view(torch.uint8).numpy().data)
    else:
        digest.update(repr(value).encode())
    return int.from_bytes(digest.digest()[:8], "little", signed=True)


def gather_chains(posterior: Posterior, ranks: Ranks) -> list[Posterior] | None:
    """Collect the posteriors of all chains on the writer of chain 0; all ranks must call it.

    Each chain sends its index as JSON and its samples as safetensors; nothing is pickled. The samples of the other
    chains arrive in memory, those of chain 0 stay where they are.

    Args:
        posterior: Samples of this chain; those of each chain's writer are used.
        ranks: Position of this process.

    Returns:
        The posteriors in the order of the chains on the writer of chain 0, ``None`` on all other processes.

    Raises:
        ValueError: If the models of two chains differ.
    """
    if not ranks.is_writer:
        return None
    if ranks.chain != 0:
        _send(json.dumps(posterior.index()).encode(), ranks.writer(0), ranks.device)
        for index in range(len(posterior)):
            _send(save(posterior.tensors(index)), ranks.writer(0), ranks.device)
        return None
    return [posterior, *(_receive_posterior(posterior, ranks, chain) for chain in range(1, ranks.chains))]


def _receive_posterior(like: Posterior, ranks: Ranks, chain: int) -> Posterior:
    index = json.loads(_receive(ranks.writer(chain), ranks.device))
    samples = Samples()
    for record in index["samples"]:
        samples.write(record["step"], load(_receive(ranks.writer(chain), ranks.device)))
    return like.sibling(index, samples)


def _send(data: bytes, target: int, device: torch.device) -> None:
    dist.send(torch.tensor([len(data)], device=device), target)
    # A copy, since torch needs writable memory.
    dist.send(torch.frombuffer(bytearray(data), dtype=torch.uint8).to(device), target)


def _receive(source: int, device: torch.device) -> bytes:
    length = torch.empty(1, dtype=torch.int64, device=device)
    dist.recv(length, source)
    data: Tensor = torch.empty(int(length), dtype=torch.uint8, device=device)
    dist.recv(data, source)
    return data.cpu().numpy().tobytes()
