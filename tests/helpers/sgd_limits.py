"""A network that a sampler and a torch optimizer train alike, and the comparison of their weights."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn


def network(dtype: torch.dtype = torch.float64) -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(5, 7), nn.Tanh(), nn.Linear(7, 2)).to(dtype)


def train(model: nn.Module, optimizer, steps: int = 100, after: Callable[[int], None] = lambda k: None) -> list[Tensor]:
    generator = torch.Generator().manual_seed(3)
    for step in range(steps):
        x = torch.randn(8, 5, generator=generator, dtype=torch.float64)
        optimizer.zero_grad()
        model(x).sub(x[:, :2].sin()).square().mean().backward()
        optimizer.step()
        after(step)
    return [param.detach().clone() for param in model.parameters()]


def assert_equal_to_rounding(ours: list[Tensor], theirs: list[Tensor]) -> None:
    torch.testing.assert_close(ours, theirs, rtol=1e-11, atol=1e-13)
