"""Networks with dead channels, and the sizes of their files."""

from __future__ import annotations

import torch

from spikeslab.bench import BenchPlan
from spikeslab.bench import _networks as networks


def test_fewer_bits_make_smaller_files():
    sizes = {row["file"]: row["bytes"] for row in networks.run_files(BenchPlan(1)).tables["files"].rows}
    assert sizes["dense"] > 5 * sizes["sparse fp32"] > 5 * sizes["sparse fp16"] > 5 * sizes["sparse int8"]


def test_half_of_the_channels_are_dead():
    torch.manual_seed(0)
    model = networks._half_resnet(all_widths=False, shift_zero=True)
    dead = model.layer1[0].conv1.weight.flatten(1).abs().sum(dim=1) == 0
    assert int(dead.sum()) == 8
    assert not bool(model.layer1[0].bn1.bias[dead].any())
    assert bool(model.layer1[0].conv2.weight.flatten(1).any(dim=1).all())
