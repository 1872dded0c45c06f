"""Multiply-adds against counts by hand."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from spikeslab.compression._op_counter import count_layers, count_positions
from spikeslab.paper.cifar10.networks import resnet20
from spikeslab.paper.images.networks import CNN


def macs(model: nn.Module, example: Tensor) -> int:
    layers = count_layers(dict(model.named_parameters()), positions=count_positions(model, example))
    return sum(layer.macs for layer in layers)


def test_the_cnn_of_mnist() -> None:
    by_hand = 32 * 25 * 28 * 28 + 64 * 32 * 25 * 14 * 14 + 3136 * 200 + 200 * 10
    assert macs(CNN(), torch.zeros(1, 1, 28, 28)) == by_hand == 11_291_600


def test_resnet20() -> None:
    stem = 3 * 16 * 9 * 32**2
    blocks = 6 * 16 * 16 * 9 * 32**2 + 5 * 32 * 32 * 9 * 16**2 + 5 * 64 * 64 * 9 * 8**2
    halving = 16 * 32 * 9 * 16**2 + 32 * 64 * 9 * 8**2
    shortcuts = 16 * 32 * 16**2 + 32 * 64 * 8**2
    assert macs(resnet20(), torch.zeros(2, 3, 32, 32)) == stem + blocks + halving + shortcuts + 640 == 40_813_184


@pytest.mark.parametrize(
    ("layer", "shape", "by_hand"),
    [
        (nn.Linear(4, 3), (5, 4), 12),
        (nn.Linear(4, 3), (5, 7, 4), 7 * 12),
        (nn.Conv1d(4, 6, 3, stride=2, groups=2), (5, 4, 9), 4 * 6 * 2 * 3),
        (nn.Conv2d(4, 4, 3, padding=1, groups=4), (5, 4, 6, 6), 36 * 4 * 9),
        (nn.ConvTranspose2d(4, 6, 2, stride=2), (5, 4, 3, 3), 9 * 4 * 6 * 4),
        (nn.Conv3d(1, 2, 2), (5, 1, 3, 3, 3), 8 * 2 * 8),
    ],
)
def test_kinds_of_layers(layer: nn.Module, shape: tuple[int, ...], by_hand: int) -> None:
    assert macs(layer, torch.zeros(shape)) == by_hand


def test_a_layer_called_twice_or_a_weight_shared_counts_twice() -> None:
    layer = nn.Linear(4, 4)
    assert macs(nn.Sequential(layer, nn.ReLU(), layer), torch.zeros(3, 4)) == 32
    other = nn.Linear(4, 4)
    other.weight = layer.weight
    assert macs(nn.Sequential(layer, other), torch.zeros(3, 4)) == 32


def test_the_model_is_left_as_it_was() -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4)).train()
    before = model[1].running_mean.clone()
    count_positions(model, torch.ones(3, 4))
    assert model.training
    assert not model[0]._forward_hooks
    assert torch.equal(model[1].running_mean, before)
