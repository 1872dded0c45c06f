"""Chain of a model whose forward pass is compiled: sampler, prior, pruner and posterior around it."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import nn

import spikeslab as ss

X, Y = torch.randn(32, 6, generator=torch.Generator().manual_seed(0)), torch.arange(32) % 3


def network() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 3))


def plain(model: nn.Module) -> nn.Module:
    return model


def wrapped(model: nn.Module) -> nn.Module:
    torch._dynamo.reset()
    return torch.compile(model, backend="aot_eager")


def in_place(model: nn.Module) -> nn.Module:
    torch._dynamo.reset()
    model.compile(backend="aot_eager")
    return model


class CompiledChain:
    """Everything that a run has, around one model."""

    def __init__(self, compiled=plain) -> None:
        self.model = compiled(network())
        weights = ss.select_weights(self.model, "[03].weight")
        prior = ss.SpikeSlab(weights, v0=0.01, v1=1.0)
        self.sampler = ss.SGHMC(self.model.parameters(), lr=0.01, num_data=32, prior=prior, seed=0)
        self.pruner = ss.Pruner(weights, 0.5)
        self.posterior = ss.Posterior(self.model, thin=2)

    def run(self, steps: int) -> CompiledChain:
        for _ in range(steps):
            self.sampler.zero_grad()
            F.cross_entropy(self.model(X), Y).backward()
            self.sampler.step()
            self.pruner.step()
            self.posterior.collect()
        return self
