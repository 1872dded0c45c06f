import random

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader, Dataset, IterableDataset, TensorDataset

from spikeslab.training import DataOrder, TensorBatches
from spikeslab.training.batches import mix
from spikeslab.training.randomness import get_randomness, restore_randomness


class Noisy(Dataset):
    """Rows with noise from all three global generators, as augmentations draw it."""

    def __len__(self) -> int:
        return 10

    def __getitem__(self, index: int) -> torch.Tensor:
        return torch.tensor([index, float(torch.rand(())), np.random.rand(), random.random()])  # noqa: NPY002


def test_every_row_is_in_an_epoch_once_and_the_order_changes() -> None:
    batches = TensorBatches(torch.arange(10), batch_size=3, seed=0, drop_last=False)
    first, second = (torch.cat([x for (x,) in batches.epoch(epoch)]).tolist() for epoch in (0, 1))
    assert sorted(first) == sorted(second) == list(range(10))
    assert first != second
    assert len(batches) == 4
    assert len(TensorBatches(torch.arange(10), batch_size=3)) == 3


def test_epochs_differ_and_what_has_no_number_is_the_first() -> None:
    batches = TensorBatches(torch.arange(10), batch_size=4, seed=0)
    first, again = ([x.tolist() for (x,) in batches] for _ in range(2))
    assert first == again == [x.tolist() for (x,) in batches.epoch(0)]
    assert first != [x.tolist() for (x,) in batches.epoch(1)]


def test_the_transform_is_a_function_of_seed_epoch_and_batch() -> None:
    def noise(x: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
        return torch.rand(x.shape, generator=generator)

    def batches(seed: int) -> TensorBatches:
        return TensorBatches(torch.zeros(8), torch.arange(8), batch_size=4, seed=seed, transform=noise)

    whole = list(batches(1).epoch(5))
    (tail,) = batches(1).epoch(5, start=1)
    assert torch.equal(tail[0], whole[1][0])
    assert torch.equal(tail[1], whole[1][1])
    others = [whole[0][0], next(batches(2).epoch(5))[0], next(batches(1).epoch(6))[0]]
    assert not any(torch.equal(tail[0], other) for other in others)


def test_mixing_tells_all_small_numbers_apart() -> None:
    seeds = {mix(a, b, c) for a in range(20) for b in range(20) for c in range(20)}
    assert len(seeds) == 8000
    assert all(0 <= seed < 2**63 for seed in seeds)


@pytest.mark.parametrize("make", ["tensors", "loader", "loader with a generator", "loader with workers", "list"])
@pytest.mark.parametrize("taken", [0, 2, 4, 5, 7])
def test_an_order_continues_where_it_was(make: str, taken: int) -> None:
    def order() -> DataOrder:
        if make == "tensors":
            return DataOrder(TensorBatches(torch.arange(10), batch_size=2))
        if make == "list":
            return DataOrder([torch.tensor([i]) for i in range(5)])
        generator = torch.Generator().manual_seed(4) if "generator" in make else None
        workers = 1 if "workers" in make else 0
        return DataOrder(DataLoader(Noisy(), batch_size=2, shuffle=True, generator=generator, num_workers=workers))

    def take(source: DataOrder, count: int) -> list[torch.Tensor]:
        batches = []
        for _ in range(count):
            batch = source.next()
            batches.append(batch if isinstance(batch, torch.Tensor) else batch[0])
            torch.rand(3)  # the model draws too
        return batches

    if make == "loader with workers" and taken not in (2, 5):
        pytest.skip("starting workers takes long")
    torch.manual_seed(7)
    random.seed(7)
    np.random.seed(7)  # noqa: NPY002
    first = order()
    take(first, taken)
    state, global_state = first.state_dict(), get_randomness()
    expected = take(first, 6)
    torch.manual_seed(99)
    second = order()
    restore_randomness(global_state)
    second.load_state_dict(state)
    assert all(map(torch.equal, take(second, 6), expected))
    assert (second.epoch, second.position) == (first.epoch, first.position) == divmod(taken + 6, 5)


def test_a_distributed_sampler_is_told_of_the_epoch() -> None:
    class Sampler(torch.utils.data.SequentialSampler):
        epochs: list[int] = []  # noqa: RUF012

        def set_epoch(self, epoch: int) -> None:
            self.epochs.append(epoch)

    dataset = TensorDataset(torch.arange(4))
    order = DataOrder(DataLoader(dataset, batch_size=2, sampler=Sampler(dataset)))
    for _ in range(5):
        order.next()
    assert Sampler.epochs == [0, 1, 2]


def test_a_stream_has_no_length() -> None:
    class Stream(IterableDataset):
        def __iter__(self):
            return iter(range(3))

    order = DataOrder(DataLoader(Stream()))
    assert order.length is None
    assert [int(order.next()) for _ in range(4)] == [0, 1, 2, 0]


def test_bad_data_are_refused() -> None:
    for call, error, message in (
        (lambda: DataOrder(iter([1])), TypeError, r"^data must be .* iterated repeatedly, but got an iterator"),
        (DataOrder([]).next, ValueError, r"^data must hold at least one batch, but got none\.$"),
        (
            lambda: TensorBatches(torch.zeros(2), torch.zeros(3), batch_size=1),
            ValueError,
            r"^tensors must have the same number of rows, .* but got \[2, 3\]\.$",
        ),
    ):
        with pytest.raises(error, match=message):
            call()
