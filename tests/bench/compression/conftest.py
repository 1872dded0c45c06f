"""Tiny networks on data made here, in the places of the study's networks."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from spikeslab.bench.compression import networks
from spikeslab.bench.compression.networks import StudyData, StudyNetwork, in_order
from spikeslab.bench.compression.text import CharTransformer
from spikeslab.training import TensorBatches


def perceptron(outputs: int) -> nn.Module:
    layers = [nn.Linear(4, 16), nn.ReLU(), nn.Linear(16, 16), nn.ReLU(), nn.Linear(16, outputs)]
    return nn.Sequential(*layers)


def split(x: torch.Tensor, y: torch.Tensor, seed: int) -> StudyData:
    train, *others = zip(x.split(48), y.split(48), strict=True)
    return StudyData(TensorBatches(*train, batch_size=16, seed=seed), *(in_order(*part) for part in others))


def labels_of(seed: int) -> StudyData:
    x = torch.randn(144, 4, generator=torch.Generator().manual_seed(seed))
    return split(x, (x[:, 0] > 0).long(), seed)


def numbers_of(seed: int) -> StudyData:
    x = torch.randn(144, 4, generator=torch.Generator().manual_seed(seed))
    return split(x, x[:, 0] - x[:, 1], seed)


def tokens_of(seed: int) -> StudyData:
    steps = torch.randint(1, 3, (144, 9), generator=torch.Generator().manual_seed(seed)).cumsum(1) % 5
    return split(steps[:, :-1], steps[:, 1:], seed)


TINY = {
    "lenet": StudyNetwork(
        "tiny classifier", lambda: perceptron(2), lambda _, seed: labels_of(seed), labels_of, "accuracy", 4
    ),
    "mlp": StudyNetwork(
        "tiny regression", lambda: perceptron(1), lambda _, seed: numbers_of(seed), numbers_of, "rmse", 4
    ),
    "transformer": StudyNetwork(
        "tiny transformer",
        lambda: CharTransformer(5, layers=2, width=16, heads=2, context=8),
        lambda _, seed: tokens_of(seed),
        tokens_of,
        "nll",
        4,
        dense_lr=3e-3,
        adam=True,
        loss=networks.token_loss,
    ),
}


@pytest.fixture(autouse=True)
def tiny(monkeypatch):
    """Replace three networks of the study by tiny ones."""
    networks.load_problem.cache_clear()
    for name, network in TINY.items():
        monkeypatch.setitem(networks.STUDY_NETWORKS, name, network)
    yield TINY
    networks.load_problem.cache_clear()
