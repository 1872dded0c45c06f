"""A sampler, the group prior and the channel pruner together, on real data."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import spikeslab as ss
from spikeslab.paper.demo import DigitsCNN
from spikeslab.priors import GroupSpikeSlab
from spikeslab.pruning import ChannelPruner, channel_gates


def test_half_of_the_channels_go_and_the_digits_are_still_read() -> None:
    pytest.importorskip("sklearn")
    from spikeslab.paper.demo import load_digits

    data = load_digits()
    torch.manual_seed(0)
    model = DigitsCNN()
    prior = GroupSpikeSlab(
        channel_gates(model),
        v0=0.001,
        v1=1.0,
        rho=1.0,
        b=1.0,
        sigma_coupling="fixed",
        adapt=ss.SA(ss.polynomial(1.0, power=0.75, offset=100)),
    )
    sampler = ss.SGHMC(
        model.parameters(), lr=ss.cosine(0.1, total=170), num_data=len(data.x_train), temperature=0.01, prior=prior,
        weight_decay=1e-3, seed=0,
    )  # fmt: skip
    pruner = ChannelPruner(model, ss.cubic_sparsity(0.5, total=120))
    for step in range(170):  # ten epochs
        rows = torch.randint(len(data.x_train), (64,))
        sampler.zero_grad()
        nn.functional.cross_entropy(model(data.x_train[rows]), data.y_train[rows]).backward()
        sampler.step()
        pruner.step()
        if step == 120:
            pruner.freeze()
    assert pruner.living() == {"conv1.weight": 16, "conv2.weight": 32, "fc1.weight": 64}
    right = model(data.x_test).argmax(dim=1) == data.y_test
    assert float(right.float().mean()) > 0.93  # dense: 0.97 to 0.99
