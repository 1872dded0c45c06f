"""A recipe for ``spikeslab compress``: a multilayer perceptron on a table of 569 tumours with 30 numbers each.

    spikeslab compress examples/recipes/tabular_mlp.py --sparsity 0.9 --epochs 30 --out out/tabular

The table comes with scikit-learn, so nothing is downloaded. Put your own columns into ``table``.
"""

from __future__ import annotations

import torch
from sklearn.datasets import load_breast_cancer
from sklearn.model_selection import train_test_split
from torch import Tensor, nn
from torch.nn import functional as F

from spikeslab.training import TensorBatches

HIDDEN = 256


def table() -> dict[str, tuple[Tensor, Tensor]]:
    """Rows and classes to train on (60 %), to validate on and to test on once (20 % each)."""
    x, y = load_breast_cancer(return_X_y=True)
    x, x_test, y, y_test = train_test_split(x, y, test_size=0.2, random_state=0, stratify=y)
    x, x_val, y, y_val = train_test_split(x, y, test_size=0.25, random_state=0, stratify=y)
    mean, deviation = x.mean(axis=0), x.std(axis=0)  # of the training rows only
    parts = {"train": (x, y), "val": (x_val, y_val), "test": (x_test, y_test)}
    return {
        name: (torch.tensor((rows - mean) / deviation, dtype=torch.float32), torch.tensor(classes))
        for name, (rows, classes) in parts.items()
    }


def model() -> nn.Module:
    """The dense network, trained here within a second; yours would load a file."""
    torch.manual_seed(0)
    network = nn.Sequential(
        nn.Linear(30, HIDDEN), nn.ReLU(), nn.Linear(HIDDEN, HIDDEN), nn.ReLU(), nn.Linear(HIDDEN, HIDDEN), nn.ReLU(),
        nn.Linear(HIDDEN, 2),
    )  # fmt: skip
    optimizer = torch.optim.SGD(network.parameters(), lr=0.05, momentum=0.9, weight_decay=1e-3)
    batches = train_data()
    for epoch in range(20):
        for x, y in batches.epoch(epoch):
            optimizer.zero_grad()
            F.cross_entropy(network(x), y).backward()
            optimizer.step()
    return network


def train_data() -> TensorBatches:
    """Batches to train on, in a new order in every epoch."""
    return TensorBatches(*table()["train"], batch_size=32)


def val_data() -> list[tuple[Tensor, Tensor]]:
    """All rows for the accuracy after every epoch, in one batch."""
    return [table()["val"]]


def test_data() -> list[tuple[Tensor, Tensor]]:
    """All rows that are looked at once, when all is done."""
    return [table()["test"]]
