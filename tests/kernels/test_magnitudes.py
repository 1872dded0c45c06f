"""The kernels zero exactly the weights that torch's ranking would."""

from __future__ import annotations

import pytest
import torch

from spikeslab.functional.thresholds import smallest_overall

magnitudes = pytest.importorskip("spikeslab.kernels.magnitudes")


def _expected(weights: list[torch.Tensor], count: int, keep: list[int]) -> list[torch.Tensor]:
    masks = smallest_overall([weight.abs() for weight in weights], count, keep)
    return [weight.masked_fill(mask, 0.0) for weight, mask in zip(weights, masks, strict=True)]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("grid", [None, 50, 2])
@pytest.mark.parametrize("threads", [1, 2])
def test_exactly_the_smallest_go_and_of_equal_ones_the_first(
    dtype: torch.dtype, grid: int | None, threads: int
) -> None:
    torch.manual_seed(0)
    torch.set_num_threads(threads)
    done = 0
    for _ in range(30):
        weights = [torch.randn(int(size), dtype=dtype) for size in torch.randint(1, 90_000, (3,))]
        if grid is not None:  # many equal magnitudes
            weights = [(weight * grid).round() / grid for weight in weights]
        count = int(torch.randint(1, sum(map(len, weights)) - 3, ()))
        before = [weight.clone() for weight in weights]
        if magnitudes.zero_smallest_(weights, count, [1, 1, 1]):
            done += 1
            before = _expected(before, count, [1, 1, 1])
        assert all(map(torch.equal, weights, before))
    assert done >= (15 if grid == 2 else 29)  # a threshold of zero is left to torch


def test_a_sample_that_misleads_costs_time_only() -> None:
    weights = torch.linspace(1.0, 2.0, 64 * magnitudes.STRIDE * 128)
    weights[:: magnitudes.STRIDE] = 100.0  # the sample sees nothing else
    expected = _expected([weights], len(weights) // 2, [1])[0]
    assert magnitudes.zero_smallest_([weights], len(weights) // 2, [1])
    assert torch.equal(weights, expected)


def test_a_floor_that_decides_is_left_to_torch() -> None:
    small, large = torch.full((10,), 0.1), torch.arange(1.0, 101.0)
    assert not magnitudes.zero_smallest_([small, large], 30, [1, 1])
    assert small.count_nonzero() == 10
    assert large.count_nonzero() == 100


def test_nan_is_larger_than_all_numbers() -> None:
    weights = torch.tensor([float("nan"), -float("inf"), 2.0, -1.0])
    assert magnitudes.zero_smallest_([weights], 2, [1])
    assert weights.isnan()[0]
    assert weights[1:].tolist() == [-float("inf"), 0.0, 0.0]


def test_autograd_notices_that_weights_have_changed() -> None:
    weight = torch.randn(100, requires_grad=True)
    loss = weight.square().sum()
    magnitudes.zero_smallest_([weight], 50, [1])
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_marked_weights_become_zero_in_any_memory_format(dtype: torch.dtype) -> None:
    weight = torch.randn(8, 4, 3, 3, dtype=dtype).to(memory_format=torch.channels_last)
    mask = torch.rand(8, 4, 3, 3) < 0.5
    expected = weight.masked_fill(mask, 0.0)
    magnitudes.zero_marked_(weight, mask)
    assert torch.equal(weight, expected)
