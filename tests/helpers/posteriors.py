"""Posteriors with samples that need no training."""

import torch
from torch import nn

import spikeslab as ss


def move(model: nn.Module, seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for param in model.parameters():
            param.copy_(torch.randn(param.shape, generator=generator))


def filled(model: nn.Module, samples: int = 4, **options) -> ss.Posterior:
    posterior = ss.Posterior(model, **options)
    for seed in range(samples):
        move(model, seed)
        posterior.collect()
    return posterior


def network() -> nn.Module:
    return nn.Sequential(nn.Linear(3, 5), nn.BatchNorm1d(5), nn.Tanh(), nn.Linear(5, 4))
