"""Folders of runs, made by hand, of which every number can be chosen."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest import mock

import torch
from torch import nn

import spikeslab as ss
from spikeslab.training.checkpoints import Checkpoints

STEPS, EVERY = 300, 10


def run_record(**changes: Any) -> dict[str, Any]:
    record = {
        "version": 1,
        "command": "spikeslab train --seed 3",
        "seed": 3,
        "versions": {"spikeslab": "0.1.0", "torch": "2.13.0"},
        "settings": {"lr": 0.1, "temperature": 0.01, "sparsity": 0.5},
        "num_data": 100,
        "status": "finished",
        "message": None,
        "steps": STEPS,
        "epochs": 3,
        "total_steps": STEPS,
        "seconds": 12.5,
    }
    return record | changes


def line(step: int) -> dict[str, Any]:
    """What a run without any problem reports at a step."""
    generator = torch.Generator().manual_seed(step)
    noise = float(torch.randn(1, generator=generator))
    return {
        "step": step,
        "epoch": step // 100,
        "seconds": step / 25,
        "loss": 0.2 + 2.0 * 0.97**step + 0.01 * noise,
        "lr": 0.1,
        "temperature": 0.01,
        "sparsity": min(0.5, step / 200),
        "sparsity_sparse": min(0.55, step / 180),
        "sigma": 1.0,
        "delta": {"fc1.weight": 0.2 + 0.3 * 0.95**step, "fc2.weight": 0.3},
        "omega_sum": step / 30,
        "kinetic_temperature": {"fc1.weight": 0.01 + 1e-4 * noise, "fc2.weight": 0.0099},
        "evaluation": {"accuracy": 0.9 + 0.05 * (step / STEPS), "nll": 0.3, "ece": 0.02},
    }


class Net(nn.Module):
    """Two layers, the first of them sparse, and batch normalisation."""

    def __init__(self) -> None:
        super().__init__()
        self.fc1 = nn.Linear(20, 30)
        self.norm = nn.BatchNorm1d(30)
        self.fc2 = nn.Linear(30, 3)


def write_run(
    folder: Path,
    *,
    change: Callable[[dict[str, Any]], object] = lambda record: None,
    chains: int = 4,
    draws: int = 40,
    centre: Callable[[int, int], float] = lambda chain, draw: 0.0,
    mask: Callable[[int, int], int] = lambda chain, draw: 0,
    checkpoint: bool = True,
    evaluation: dict[str, Any] | None = None,
    **run: Any,
) -> Path:
    """Write the folder of a run.

    Args:
        folder: A new folder.
        change: Changes a line of the metrics in place; a line with ``record.clear()`` is left out.
        chains: Chains of the posterior; 0 leaves it out.
        draws: Samples of each.
        centre: Mean of all weights of a sample, so that chains can be apart or drift.
        mask: Shift of the mask of zeros of a sample.
        checkpoint: Whether there is one.
        evaluation: Contents of ``evaluation.json``.
        **run: Entries of ``run.json``.
    """
    folder.mkdir(parents=True)
    (folder / "run.json").write_text(json.dumps(run_record(**run)))
    records = [line(step) for step in range(EVERY, STEPS + 1, EVERY)]
    for record in records:
        change(record)
    (folder / "metrics.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records if record))
    if evaluation is not None:
        (folder / "evaluation.json").write_text(json.dumps(evaluation))
    generator = torch.Generator().manual_seed(0)
    with mock.patch("spikeslab.files.flush"):  # a test need not survive a power cut, and hundreds of samples are slow
        _write_chains(folder, chains, draws, centre, mask, generator)
    if checkpoint:
        _write_checkpoint(folder)
    return folder


def _write_chains(folder, chains, draws, centre, mask, generator) -> None:
    for chain in range(chains):
        model = Net()
        directory = folder / "posterior" / (f"chain-{chain}" if chains > 1 else "")
        posterior = ss.Posterior(model, burn_in=STEPS - draws, directory=directory)
        posterior.steps = STEPS - draws
        for draw in range(draws):
            with torch.no_grad():
                for param in model.parameters():
                    param.copy_(centre(chain, draw) + torch.randn(param.shape, generator=generator))
                kept = torch.arange(model.fc1.weight.numel()).roll(mask(chain, draw)).view_as(model.fc1.weight) % 2
                model.fc1.weight.mul_(kept)
            posterior.collect()


def _write_checkpoint(folder: Path) -> None:
    model = Net()
    prior = ss.SpikeSlab(ss.select_weights(model, "fc1.weight"), v0=0.01, v1=1.0)
    sampler = ss.SGHMC(model.parameters(), lr=0.1, num_data=100, prior=prior, seed=0)
    for param in model.parameters():
        param.grad = torch.zeros_like(param)
    sampler.step()
    pruner = ss.Pruner(prior.weights, 0.5)
    pruner.step()
    state = {
        "model": model.state_dict(),
        "sampler": sampler.state_dict(),
        "callbacks": {"pruner": pruner.state_dict()},
    }
    Checkpoints(folder / "checkpoints").save(STEPS, state)


RELIABILITY = {
    "confidence": [None, 0.5, 0.9],
    "accuracy": [None, 0.4, 0.95],
    "count": [0, 20, 80],
}
EVALUATION = {"accuracy": 0.93, "nll": 0.25, "ece": 0.06, "brier": 0.1, "rows": 100, "reliability": RELIABILITY}
