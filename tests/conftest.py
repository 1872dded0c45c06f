"""Seeds, one thread, and small things that many tests share."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from hypothesis import settings
from torch import Tensor, nn

import spikeslab as ss

# Reproducible: the same examples on every machine, and no deadline on a busy one.
settings.register_profile("spikeslab", derandomize=True, deadline=None, max_examples=25, database=None)
settings.load_profile("spikeslab")


@pytest.fixture(scope="session", autouse=True)
def _one_thread_from_the_start() -> None:
    torch.set_num_threads(1)


@pytest.fixture(autouse=True)
def _one_thread_and_a_seed() -> None:
    # Again for each test: what a test runs may have chosen another number, and threads that wait are slow.
    torch.set_num_threads(1)
    torch.manual_seed(0)


@pytest.fixture
def model() -> nn.Module:
    """Two sparse matrices, two biases."""
    return nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 3))


@pytest.fixture
def batch() -> tuple[Tensor, Tensor]:
    """Inputs and classes for ``model``."""
    return torch.randn(16, 6), torch.randint(3, (16,))


@pytest.fixture
def make_prior() -> Callable[..., ss.SpikeSlab]:
    """A prior with sound settings on the matrices of a model, any of them replaced."""

    def make(model: nn.Module, cls: type[ss.SpikeSlab] = ss.SpikeSlab, **settings: object) -> ss.SpikeSlab:
        options = {
            "v0": 0.02,
            "v1": 1.0,
            "adapt": ss.SA(ss.polynomial(1.0, power=0.75, offset=3)),
            "sigma_coupling": "conjugate",
        }
        return cls(ss.select_weights(model, "*weight"), **options | settings)

    return make
