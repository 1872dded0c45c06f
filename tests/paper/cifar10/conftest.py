"""A dense network that has seen nothing."""

from __future__ import annotations

import pytest
import torch

from spikeslab.paper.cifar10.data import Dense, new_network


@pytest.fixture(scope="module")
def dense() -> Dense:
    torch.manual_seed(0)
    return Dense(new_network().eval(), "0123")
