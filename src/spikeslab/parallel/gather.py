"""The samples of all chains on one process, sent as bytes: nothing is pickled, so nothing can be run by reading it.

A chain sends its index as JSON and each sample as a safetensors file in memory.
"""

from __future__ import annotations

import json

import torch
from safetensors.torch import load, save
from torch import Tensor
from torch import distributed as dist

from spikeslab.parallel.distributed import Ranks
from spikeslab.posterior import Posterior
from spikeslab.posterior.samples import MemorySamples


def gather_chains(posterior: Posterior, ranks: Ranks) -> list[Posterior] | None:
    """Bring the posteriors of all chains to the writer of chain 0; all ranks must call it.

    The samples of the other chains are in memory then; those of chain 0 stay where they are.

    Args:
        posterior: This chain's samples. Only those of each chain's writer count.
        ranks: Who is who.

    Returns:
        The posteriors in the order of the chains on the writer of chain 0, and ``None`` on all other processes.

    Raises:
        ValueError: If a chain is of another model.
    """
    if not ranks.is_writer:
        return None
    if ranks.chain != 0:
        _send_posterior(posterior, ranks.writer(0), ranks.device)
        return None
    received = [
        _receive_posterior(posterior, chain, ranks.writer(chain), ranks.device) for chain in range(1, ranks.chains)
    ]
    return [posterior, *received]


def _send_posterior(posterior: Posterior, target: int, device: torch.device) -> None:
    _send(json.dumps(posterior.index()).encode(), target, device)
    for index in range(len(posterior)):
        _send(save(posterior.tensors(index)), target, device)


def _receive_posterior(like: Posterior, chain: int, source: int, device: torch.device) -> Posterior:
    index = json.loads(_receive(source, device))
    samples = MemorySamples()
    for record in index["samples"]:
        samples.write(record["step"], load(_receive(source, device)))
    if index["shapes"] != like.index()["shapes"]:
        raise ValueError(f"all chains must be of one model, but the tensors of chain {chain} have other shapes.")
    return like.sibling(index, samples)


def _send(data: bytes, target: int, device: torch.device) -> None:
    dist.send(torch.tensor([len(data)], device=device), target)
    # A copy, since bytes are read-only and torch wants memory that is not.
    dist.send(torch.frombuffer(bytearray(data), dtype=torch.uint8).to(device), target)


def _receive(source: int, device: torch.device) -> bytes:
    length = torch.empty(1, dtype=torch.int64, device=device)
    dist.recv(length, source)
    data: Tensor = torch.empty(int(length), dtype=torch.uint8, device=device)
    dist.recv(data, source)
    return data.cpu().numpy().tobytes()
