"""Run by torchrun with two ranks: a run of the loop in a folder for each rank, begun or continued."""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

import torch
from safetensors.torch import save_file
from torch import distributed as dist
from torch import nn
from torch.nn import functional as F

import spikeslab as ss
from spikeslab.errors import StateError
from spikeslab.parallel import Ranks
from spikeslab.training import Collect, Every, Interrupted, Prune, RunFolder, TensorBatches, Training

STEPS = 60


def main(out: Path, mode: str) -> None:
    """``mode`` is "whole", "stop" (a signal reaches the second rank), "kill", "resume", "uneven" or "empty"."""
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    ranks = Ranks.create()
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Dropout(0.2), nn.Linear(16, 3))
    forward = ranks.data_parallel(model)
    torch.manual_seed(1 + ranks.data_rank)  # other masks of dropout on each rank
    generator = torch.Generator().manual_seed(2)
    x = torch.randn(64, 6, generator=generator)
    y = (x[:, 0] > 0).long()
    weights = ss.select_weights(model, "3.weight")
    sampler = ss.SGHMC(model.parameters(), lr=0.05, num_data=64, prior=ss.SpikeSlab(weights, v0=0.01, v1=1.0), seed=3)
    callbacks = [
        Prune(ss.Pruner(weights, ss.cubic_sparsity(0.5, total=30))),
        Collect(ss.Posterior(model, burn_in=20, thin=10, sampler=sampler)),
    ]

    def loss(_: nn.Module, batch: tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
        if run.steps == 31 and ranks.data_rank == 1:
            if mode == "stop":
                os.kill(os.getpid(), signal.SIGTERM)
            if mode == "kill":
                os.kill(os.getpid(), signal.SIGKILL)
        return F.cross_entropy(forward(ranks.shard(batch[0])), ranks.shard(batch[1]))

    batches = TensorBatches(x, y, batch_size=16)
    if mode in ("uneven", "empty") and ranks.data_rank == 1:
        batches = TensorBatches(x[:48], y[:48], batch_size=16) if mode == "uneven" else []
    run = Training(model, sampler, batches, loss, callbacks=callbacks, ranks=ranks)
    if mode in ("uneven", "empty"):
        try:
            run.run(epochs=2, folder=out / f"rank-{ranks.data_rank}")
        except (StateError, ValueError) as error:
            print(error)
        dist.barrier()
        dist.destroy_process_group()
        return
    every = Every(seconds=0.01) if mode == "stop" else Every(steps=10)
    folder = RunFolder(out / f"rank-{ranks.data_rank}", resume=True, checkpoint_every=every)
    try:
        run.run(steps=STEPS, folder=folder)
    except Interrupted as error:
        assert mode == "stop"
        print(error)
        return
    ranks.check_same(model, sampler)
    save_file({name: tensor.contiguous() for name, tensor in model.state_dict().items()}, out / f"{ranks.data_rank}.st")
    dist.barrier()  # a rank that leaves early takes the connection of the other with it
    dist.destroy_process_group()


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2])
