"""Recipes that run in a moment: for ``spikeslab compress``, and for commands that read its folder."""

from __future__ import annotations

from pathlib import Path

RECIPE = """
import torch
from torch import nn
from spikeslab.training import TensorBatches

def model():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 16), nn.ReLU(), nn.Linear(16, 16), nn.ReLU(), nn.Linear(16, 2))

def rows(seed):
    x = torch.randn(64, 4, generator=torch.Generator().manual_seed(seed))
    return x, (x[:, 0] > 0).long()

def train_data():
    return TensorBatches(*rows(1), batch_size=16)

def val_data():
    return [rows(2)]
"""

NETWORK_RECIPE = """
import torch
from torch import nn
from sizes import HIDDEN

def model():
    return nn.Sequential(nn.Linear(6, HIDDEN), nn.BatchNorm1d(HIDDEN), nn.ReLU(), nn.Linear(HIDDEN, 3))

def val_data():
    return [(torch.randn(4, 6), torch.zeros(4))]
"""


def read_files(folder: Path) -> dict[str, bytes]:
    """Return the content of all files in a folder, by their paths."""
    return {str(path): path.read_bytes() for path in folder.rglob("*") if path.is_file() and path.suffix != ".pyc"}
