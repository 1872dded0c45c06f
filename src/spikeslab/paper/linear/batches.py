"""Mini-batches of data that lie in memory: far faster for small models than a DataLoader."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from spikeslab.errors import check_count


def minibatches(rows: int, batch_size: int, seed: int) -> Iterator[Tensor]:
    """Row indices without end: every epoch is a new shuffle, cut into whole batches; a partial last one is dropped.

    >>> batches = minibatches(rows=5, batch_size=2, seed=0)
    >>> sorted(torch.cat([next(batches), next(batches)]).unique().shape)
    [4]

    Args:
        rows: Number of rows.
        batch_size: Rows in a batch; where there are fewer, all of them.
        seed: Seed of the shuffles; the global generator is left alone.
    """
    batch_size = min(check_count("batch_size", batch_size), check_count("rows", rows))
    generator = torch.Generator().manual_seed(seed)
    while True:
        for batch in torch.randperm(rows, generator=generator).split(batch_size):
            if len(batch) == batch_size:
                yield batch
