"""One table of operations: what is free without an example, compacting with an example removes."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from spikeslab.compression import compact
from spikeslab.graph.free_channels import free_channel_layers


class Between(nn.Module):
    """Two convolutions with an operation between them."""

    def __init__(self, operation) -> None:
        super().__init__()
        self.first, self.last = nn.Conv2d(1, 4, 3, padding=1), nn.Conv2d(4, 2, 3, padding=1)
        self.operation = operation

    def forward(self, x: Tensor) -> Tensor:
        return self.last(self.operation(self.first(x)))


KEEP_ZEROS = [
    nn.Identity(), nn.ReLU(), nn.Tanh(), nn.GELU(), nn.Hardswish(), nn.Dropout2d(), nn.MaxPool2d(2), nn.Upsample(9),
    nn.AvgPool2d(3, 1, 1), nn.AdaptiveAvgPool2d(3), F.celu, F.softsign, torch.abs, lambda x: x.contiguous(),
    lambda x: 2.0 * x, lambda x: x**2, lambda x: x.clamp(-1, 1), lambda x: F.dropout(x, training=False),
    lambda x: F.interpolate(x, scale_factor=2), lambda x: x[:, :, 1:, ::2], lambda x: x.mean(3).unsqueeze(-1),
    lambda x: x.amax((2, 3), keepdim=True), lambda x: F.max_pool2d(x, 2, 1),
]  # fmt: skip
SHIFT_ZEROS = [nn.Sigmoid(), nn.Softplus(), nn.LogSigmoid(), torch.exp, lambda x: x + 1.0, lambda x: 1.0 / (2.0 + x)]
MIX = [
    nn.PReLU(4), nn.Softmax(1), nn.GroupNorm(2, 4), nn.ChannelShuffle(2), lambda x: x.flip(1), lambda x: x.cumsum(1),
    lambda x: x - x.mean(1, keepdim=True), lambda x: x[:, [1, 0, 3, 2]],
]  # fmt: skip
MOVE = [
    lambda x: x.transpose(1, 2).transpose(1, 2), lambda x: x.permute(0, 2, 3, 1).permute(0, 3, 1, 2),
    lambda x: torch.cat([x.chunk(2, 1)[1], x.chunk(2, 1)[0]], 1), lambda x: F.pad(x, (1, 1)),
    lambda x: torch.cat([x[:, 2:], x[:, :2]], 1), lambda x: torch.cat([x.split(3, 1)[1], x.split([3, 1], 1)[0]], 1),
    lambda x: torch.cat([x.narrow(1, 1, 3), x[:, :1]], 1), lambda x: F.pad(x[:, :, ::2, ::2], (0, 0, 0, 0, 0, 0)),
]  # fmt: skip


def widths(operation) -> tuple[bool, int]:
    """Say if the channels are free, and how many are left once one of them is constant."""
    torch.manual_seed(0)
    model = Between(operation).double()
    free = bool(free_channel_layers(model))
    with torch.no_grad():
        model.first.weight[1], model.first.bias[1] = 0.0, 0.0
    x = torch.randn(2, 1, 8, 8).double()
    model.eval()
    small = compact(model, x).model
    torch.testing.assert_close(small(x), model(x))
    return free, small.first.out_channels


@pytest.mark.parametrize("operation", KEEP_ZEROS)
def test_zeros_stay_zero_and_can_be_removed(operation) -> None:
    assert widths(operation) == (True, 3)


@pytest.mark.parametrize("operation", SHIFT_ZEROS)
def test_zeros_that_become_another_constant_are_not_free(operation) -> None:
    assert widths(operation) == (False, 4)  # the constant is carried into the padding by its own channel


@pytest.mark.parametrize("operation", MIX)
def test_operations_between_channels_tie_them(operation) -> None:
    assert widths(operation) == (False, 4)


@pytest.mark.parametrize("operation", MOVE)
def test_channels_that_are_moved_about_can_be_removed_with_an_example(operation) -> None:
    assert widths(operation) == (False, 3)


@pytest.mark.parametrize(
    "operation",
    [
        lambda x: x.unflatten(1, (2, 2)).flatten(1, 2),
        lambda x: x.view(x.size(0), 2, 2, 64).reshape(-1, 4, 8, 8),
    ],
)
@pytest.mark.parametrize(("dead", "left"), [([0], 4), ([0, 1], 2), ([1, 2], 4)])
def test_channels_in_rows_go_row_by_row(operation, dead, left) -> None:
    torch.manual_seed(0)
    model = Between(operation).double().eval()
    with torch.no_grad():
        model.first.weight[dead], model.first.bias[dead] = 0.0, 0.0
    small, x = compact(model, torch.randn(2, 1, 8, 8).double()).model, torch.randn(3, 1, 8, 8).double()
    torch.testing.assert_close(small(x), model(x))
    assert small.first.out_channels == left
