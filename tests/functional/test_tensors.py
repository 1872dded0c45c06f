"""Layouts of tensors, and sums with a factor."""

from __future__ import annotations

import pytest
import torch

from spikeslab.functional.tensors import add_ratio_, add_scaled_, align, is_dense


def test_a_tensor_is_copied_only_if_it_lies_otherwise_in_memory() -> None:
    like = torch.zeros(2, 3, 4, 5).to(memory_format=torch.channels_last)
    same, other = torch.rand(2, 3, 4, 5).to(memory_format=torch.channels_last), torch.rand(2, 3, 4, 5)
    assert align(same, like) is same
    copy = align(other, like)
    assert copy.stride() == like.stride()
    assert torch.equal(copy, other)
    assert is_dense(like)
    assert not is_dense(like[:, :2])


@pytest.mark.parametrize("foreach", [False, True])
@pytest.mark.parametrize("factor", [-0.5, torch.tensor(-0.5)])
def test_all_paths_of_a_sum_agree(factor: float | torch.Tensor, foreach: bool) -> None:
    values, scales = [torch.randn(3), torch.randn(2, 2)], [torch.rand(3) + 1.0, torch.rand(2, 2) + 1.0]
    outs = [torch.ones_like(value) for value in values]
    add_scaled_(outs, values, factor, foreach=foreach)
    torch.testing.assert_close(outs, [1.0 - 0.5 * value for value in values])
    outs = [torch.ones_like(value) for value in values]
    add_ratio_(outs, values, scales, factor, foreach=foreach)
    torch.testing.assert_close(outs, [1.0 - 0.5 * value / scale for value, scale in zip(values, scales, strict=True)])
