"""A network with batch normalisation and easy data, small enough to be compressed in a tenth of a second."""

from __future__ import annotations

import torch
from torch import Tensor, nn

import spikeslab as ss
from spikeslab.compression import Compressed, Settings, compress
from spikeslab.compression.problem import Problem
from spikeslab.compression.settings import Timeline
from spikeslab.training import TensorBatches

ROWS = 96


def network() -> nn.Module:
    """418 parameters, 352 of them in the weights of three layers, 256 of these in the second."""
    with torch.random.fork_rng():
        torch.manual_seed(3)
        return nn.Sequential(
            nn.Linear(4, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Linear(16, 16), nn.ReLU(), nn.Linear(16, 2)
        )


def data(seed: int = 1) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(ROWS, 4, generator=generator)
    return x, (x[:, 0] + x[:, 1] > 0).long()


def batches() -> TensorBatches:
    return TensorBatches(*data(), batch_size=16, seed=2)


def compress_small(model: nn.Module | None = None, train: object = None, **arguments: object) -> Compressed:
    options = {"sparsity": 0.5, "epochs": 4, "samples": 3, "progress": False, "report": False}
    options |= {} if "settings" in arguments else {"lr": 0.05}  # no search: it takes longer than the run
    options |= arguments
    return compress(network() if model is None else model, batches() if train is None else train, **options)


def compress_channels(model: nn.Module | None = None, train: object = None, **arguments: object) -> Compressed:
    return compress_small(model, train, **{"structure": "channels"} | arguments)


def problem(model: nn.Module, settings: Settings | None = None, steps: int = 60, num_data: int = ROWS) -> Problem:
    settings = settings or Settings()
    weights = ss.select_weights(model, "3.weight")
    return Problem(model, weights, 0.5, model, settings, Timeline(settings, steps), num_data, seed=0)


def tensors(model: nn.Module) -> dict[str, Tensor]:
    return {name: tensor.clone() for name, tensor in model.state_dict().items()}


def equal(a: dict[str, Tensor], b: dict[str, Tensor]) -> bool:
    return a.keys() == b.keys() and all(torch.equal(a[name], b[name]) for name in a)


def dead(tensors: dict[str, torch.Tensor], name: str) -> torch.Tensor:
    return ~tensors[name].flatten(1).any(1)


def frozen(*parts: str) -> nn.Module:
    model = network()
    for part in parts:
        model.get_submodule(part).requires_grad_(False)
    return model
