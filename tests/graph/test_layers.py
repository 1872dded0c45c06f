"""A layer that is made narrower keeps its memory format."""

from __future__ import annotations

import torch
from pruned_networks import kill, plain, randomise
from torch import nn

from spikeslab.compression import compact


def test_the_memory_format_stays() -> None:
    model = kill(randomise(plain(norm=True)), 0.5).to(memory_format=torch.channels_last)
    smaller = compact(model, torch.zeros(1, 3, 10, 10)).model
    assert all(smaller[index].weight.is_contiguous(memory_format=torch.channels_last) for index in (0, 3, 8))


def test_one_input_channel_keeps_the_memory_format_for_all_that_follows() -> None:
    model = nn.Sequential(nn.Conv2d(1, 8, 3), nn.ReLU(), nn.Conv2d(8, 4, 3))
    for last in (False, True):
        memory = torch.channels_last if last else torch.contiguous_format
        model = kill(randomise(model), 0.5).to(memory_format=memory)
        result = compact(model, torch.zeros(1, 1, 10, 10)).model(torch.randn(3, 1, 10, 10))
        assert result.is_contiguous(memory_format=torch.channels_last) == last
