"""Replicas of a temperature ladder, all in this process or one per chain of a torchrun world."""

from __future__ import annotations

from collections.abc import Sequence, Set

import torch
from torch import Tensor
from torch import distributed as dist

from spikeslab.errors import ArgumentValueError, Phrase, StateError, mark
from spikeslab.parallel.distributed import Ranks, digest
from spikeslab.samplers.base import Sampler


class Replicas:
    """Samplers of equal models, all in this process.

    Attributes:
        own: Samplers of this process by index.
        count: Number of samplers over all processes.
    """

    def __init__(self, samplers: Sequence[Sampler]) -> None:
        self.own = dict(enumerate(samplers))
        self.count = len(self.own)
        self._ranks = Ranks()
        self._check_equal({sampler.noise.seed for sampler in samplers}, {_describe(sampler) for sampler in samplers})

    def _check_equal(self, seeds: Set[int], kinds: Set[object]) -> None:
        if len(kinds) > 1:
            raise ArgumentValueError("samplers", "must be of equal models and num_data", Phrase("they differ"))
        if len(seeds) < self.count:
            got = Phrase("two have the same and would draw equal noise")
            raise ArgumentValueError("samplers", "must have different seeds", got, "use ranks.seed(base) on ranks")

    def energy(self, replica: int, losses: Tensor) -> Tensor:
        """Return U of a local replica per mini-batch: N times the loss plus prior and weight decay."""
        if losses.ndim > 1 or losses.shape == (1,):
            expectation = "must return one number for all data or at least two of mini-batches in one dimension"
            raise ArgumentValueError("loss", expectation, Phrase(f"got the shape {tuple(losses.shape)}"))
        sampler = self.own[replica]
        return int(sampler.param_groups[0]["num_data"]) * (self._ranks.mean(losses).reshape(-1) + sampler.penalty())

    def gather(self, terms: dict[int, Tensor]) -> dict[int, Tensor]:
        """Return the terms of all rungs, given those of this process."""
        _check_sizes({len(term) for term in terms.values()})
        return terms

    def exchange_weights(self, lows: list[int]) -> None:
        """Swap the weights of the replicas ``low`` and ``low + 1``."""
        for low in lows:
            for one, other in zip(_params(self.own[low]), _params(self.own[low + 1]), strict=True):
                kept = one.detach().clone()
                one.copy_(other)
                other.copy_(kept)


class RankReplicas(Replicas):
    """Replicas that each live on one chain of a torchrun world."""

    def __init__(self, samplers: Sequence[Sampler], ranks: Ranks, settings: object) -> None:
        if len(samplers) != 1:
            raise ArgumentValueError(
                "samplers", f"must be the one sampler of this process with {mark('ranks')}", len(samplers)
            )
        self.own = {ranks.chain: samplers[0]}
        self.count = ranks.chains
        self._ranks = ranks
        self._device = ranks.device
        own = [digest("", value) for value in (samplers[0].noise.seed, settings, _describe(samplers[0]))]
        everyone = self._gather_all(torch.tensor(own, device=self._device))
        seeds, ladders, kinds = (set(values) for values in zip(*(row.tolist() for row in everyone), strict=True))
        if len(ladders) > 1:
            raise StateError(f"the ladder must have the same settings on all chains, but this one has {settings}.")
        self._check_equal(seeds, kinds)

    def _gather_all(self, own: Tensor) -> list[Tensor]:
        """Return the tensors of all chains, in their order."""
        if self.count == 1:
            return [own]
        received = [torch.empty_like(own) for _ in range(self.count)]
        dist.all_gather(received, own, group=self._ranks.chain_group)
        return received

    def gather(self, terms: dict[int, Tensor]) -> dict[int, Tensor]:
        """Gather the terms of all chains on all chains."""
        ((rung, own),) = terms.items() or [(-1, torch.empty(0))]
        sizes = self._gather_all(torch.tensor([rung, len(own)], device=self._device))
        _check_sizes({int(size) for at, size in sizes if int(at) >= 0})
        padded = torch.zeros(max(int(size) for _, size in sizes), dtype=torch.float64, device=self._device)
        padded[: len(own)] = own
        everything = self._gather_all(padded)
        return {int(at): term for (at, _), term in zip(sizes, everything, strict=True) if int(at) >= 0}

    def exchange_weights(self, lows: list[int]) -> None:
        """Swap weights between ranks with the same position in their chains."""
        ((replica, sampler),) = self.own.items()
        step = 1 if replica in lows else -1 if replica - 1 in lows else 0
        if not step:
            return
        partner = (replica + step) * self._ranks.data_size + self._ranks.data_rank
        params = _params(sampler)
        leaving = [param.detach().contiguous().to(self._device) for param in params]
        arriving = [torch.empty_like(tensor) for tensor in leaving]
        requests = dist.batch_isend_irecv(
            [dist.P2POp(dist.isend, tensor, partner) for tensor in leaving]
            + [dist.P2POp(dist.irecv, tensor, partner) for tensor in arriving]
        )
        for request in requests:
            request.wait()
        for param, tensor in zip(params, arriving, strict=True):
            param.copy_(tensor)


def _params(sampler: Sampler) -> list[Tensor]:
    return [param for group in sampler.param_groups for param in group["params"]]


def _describe(sampler: Sampler) -> str:
    """Return a description that equal replicas share."""
    sizes = {int(group["num_data"]) for group in sampler.param_groups}
    if len(sizes) > 1:
        raise ArgumentValueError("num_data", "must be the same in all groups of a replica", sorted(sizes))
    return repr((sizes, [(str(param.dtype), tuple(param.shape)) for param in _params(sampler)]))


def _check_sizes(sizes: set[int]) -> None:
    if len(sizes) > 1:
        raise ArgumentValueError("loss", "must return as many numbers for all replicas", sorted(sizes))
