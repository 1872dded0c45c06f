"""Folders that several commands work in."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from recipes import NETWORK_RECIPE, RECIPE
from safetensors.torch import save_file
from torch import nn

import spikeslab as ss
from spikeslab.compression import save_sparse


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The present folder, with a recipe in it."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "recipe.py").write_text(RECIPE)
    return tmp_path


@pytest.fixture
def stored(tmp_path: Path) -> Path:
    """A folder as ``compress(...).save(folder)`` writes it, as far as commands read it."""
    model = nn.Sequential(nn.Linear(6, 20), nn.BatchNorm1d(20), nn.ReLU(), nn.Linear(20, 3))
    with torch.no_grad():
        model[0].weight[:4] = 0.0
    ss.Pruner([model[0].weight], 0.75).step()
    folder = tmp_path / "model"
    folder.mkdir()
    save_file(model.state_dict(), folder / "model.safetensors")
    save_sparse(model, folder / "sparse.safetensors")
    (folder / "recipe.py").write_text(NETWORK_RECIPE)
    (folder / "sizes.py").write_text("HIDDEN = 20")
    return folder
