"""A run with everything that has a state, small enough to be killed often."""

from __future__ import annotations

import functools
import random
import time
from pathlib import Path

import numpy as np
import torch
from torch import nn

import spikeslab as ss
from spikeslab.training import Collect, Evaluate, Every, Prune, RunFolder, TensorBatches, Training

EPOCHS, ROWS, BATCH = 40, 64, 8
STEPS = EPOCHS * ROWS // BATCH


def network() -> nn.Module:
    """Batch normalisation has buffers, dropout draws from the global generator."""
    return nn.Sequential(
        nn.Linear(6, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Dropout(0.2), nn.Linear(16, 16), nn.Tanh(), nn.Linear(16, 3)
    )


def data(seed: int = 1) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(ROWS, 6, generator=generator)
    return x, (x[:, 0] > 0).long() + (x[:, 1] > 0.5).long()


def training(folder: Path | None, *, batches=None, sampler_type=ss.SGHMC, fused: bool | None = None) -> Training:
    """The run, at its start."""
    torch.manual_seed(0)
    random.seed(0)
    np.random.seed(0)  # noqa: NPY002 - its state is part of the run's
    model = network()
    x, y = data()
    weights = ss.select_weights(model, "*4.weight")
    prior = ss.SpikeSlab(weights, v0=0.01, v1=1.0, sigma_coupling="conjugate", adapt=ss.SA(ss.polynomial(1.0, 0.75, 3)))
    sampler = sampler_type(
        model.parameters(),
        lr=ss.cosine(0.05, total=STEPS),
        num_data=ROWS,
        temperature=ss.schedules.geometric(0.1, 0.99),
        prior=prior,
        seed=5,
        fused=fused,
    )
    posterior = ss.Posterior(
        model,
        burn_in=20,
        thin=15,
        sampler=sampler,
        directory=None if folder is None else folder / "posterior",
        exist_ok=True,
        max_samples=6,
    )
    pruner = ss.Pruner(weights, ss.cubic_sparsity(0.8, total=STEPS // 2), freeze_at=STEPS // 2)

    def transform(x: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
        return x + 0.1 * torch.randn(x.shape, generator=generator)

    if batches is None:
        batches = TensorBatches(x, y, batch_size=BATCH, seed=3, transform=transform)
    callbacks = [
        Prune(pruner),
        Collect(posterior),
        Evaluate(lambda: {"norm": float(sum(p.detach().norm() for p in model.parameters()))}, Every(epochs=4)),
    ]
    return Training(model, sampler, batches, callbacks=callbacks)


def run_in(folder: Path, resume: bool | int = True, delay: float = 0.0, checkpoint_steps: int = 10) -> None:
    """Begin or continue the run; a delay after each step leaves time to be killed."""
    torch.set_num_threads(1)
    run = training(folder)
    if delay:
        inner = run.loss
        run.loss = functools.wraps(inner)(lambda model, batch: (time.sleep(delay), inner(model, batch))[1])
    place = RunFolder(folder, resume=resume, checkpoint_every=Every(steps=checkpoint_steps))
    run.run(epochs=EPOCHS, folder=place)


def same(a: object, b: object) -> bool:
    """Whether two states are equal to the last bit; time, also in the log, does not count."""
    if isinstance(a, torch.Tensor):
        return isinstance(b, torch.Tensor) and a.dtype == b.dtype and torch.equal(a, b)
    if isinstance(a, dict):
        return (
            isinstance(b, dict) and a.keys() == b.keys() and all(k in ("seconds", "log") or same(a[k], b[k]) for k in a)
        )
    if isinstance(a, (list, tuple)):
        return isinstance(b, (list, tuple)) and len(a) == len(b) and all(map(same, a, b))
    if isinstance(a, Path):
        return isinstance(b, Path) and a.read_bytes() == b.read_bytes()
    return a == b or (a != a and b != b)
