from __future__ import annotations

from itertools import islice

import pytest
import torch

from spikeslab.paper.linear.batches import minibatches


def test_an_epoch_holds_every_row_once() -> None:
    epoch = torch.cat(list(islice(minibatches(100, 50, seed=0), 2)))
    assert epoch.sort().values.tolist() == list(range(100))


def test_partial_batches_are_dropped_and_small_data_are_one_batch() -> None:
    assert {len(batch) for batch in islice(minibatches(10, 4, seed=0), 20)} == {4}
    assert len(next(minibatches(3, 50, seed=0))) == 3


def test_the_seed_decides() -> None:
    first, again, other = (next(minibatches(100, 50, seed)) for seed in (1, 1, 2))
    assert torch.equal(first, again)
    assert not torch.equal(first, other)


def test_bad_size() -> None:
    with pytest.raises(ValueError, match=r"^batch_size must be an integer >= 1, but got 0\.$"):
        next(minibatches(10, 0, seed=0))
