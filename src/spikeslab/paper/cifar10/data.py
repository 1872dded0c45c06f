"""Batches of CIFAR-10, and the dense ResNet20 that a compression starts from.

Images stay bytes in memory until a batch of them is augmented and normalised.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor, nn

from spikeslab.compression.sparse_file import state_tensors
from spikeslab.diagnostics import write_report
from spikeslab.files import digest, write_atomically
from spikeslab.paper.cifar10.networks import resnet20
from spikeslab.paper.images.augmentation import NORMALIZE, Augment
from spikeslab.paper.images.data import Images
from spikeslab.samplers import SGHMC
from spikeslab.schedules import multistep
from spikeslab.states import encode_tensors, read_tensors_file
from spikeslab.training import CheckpointError, RunFolder, ShowProgress, TensorBatches, Training

PRETRAIN_LR, PRETRAIN_TAU, WEIGHT_DECAY, DROP, DROPS = 0.1, 20_000.0, 25.0, 0.1, (0.7, 0.9)
"""Dense run of the paper: lr of 2e-6 times 50,000, inverse temperature, weight decay of the summed loss, lr drops."""
PRETRAIN_BATCH = 1000
NETWORK = "dense.safetensors"


class OrderedBatches:
    """Batches of images in bytes to predict, in their order; the activations of 200 images stay in the cache."""

    def __init__(self, images: Tensor, labels: Tensor, batch_size: int = 200) -> None:
        self.images, self.labels, self.batch_size = images, labels, batch_size

    def __len__(self) -> int:
        return -(-len(self.labels) // self.batch_size)

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        normalize = NORMALIZE["cifar10"]
        for x, y in zip(self.images.split(self.batch_size), self.labels.split(self.batch_size), strict=True):
            yield normalize(x), y


def new_network() -> nn.Module:
    """Return an untrained ResNet20 with the channels last."""
    return resnet20().to(memory_format=torch.channels_last)  # type: ignore[call-overload, no-any-return]


@dataclass(frozen=True)
class Dense:
    """Trained network that a compression starts from, and the first digits of the SHA-256 of its file.

    ``seen_all`` is True if it was trained on all training images, held-out images included.
    """

    model: nn.Module
    digest: str
    seen_all: bool = True


def pretrain(
    data: Images,
    out: Path,
    *,
    epochs: int,
    batch_size: int | None = None,
    seed: int = 0,
    held_out: int = 0,
    command: str = "",
) -> Dense:
    """Train a dense network as the paper did, in a folder below ``out``, or continue it; a finished one is read.

    SGHMC with an lr of 0.1 that falls to a tenth after 70 and 90 % of the epochs, tau = 20,000, weight decay 25/N.
    """
    batch_size = batch_size or PRETRAIN_BATCH
    others = f"-held{held_out}" if held_out else ""
    folder = out / f"dense-{epochs}epochs-batch{batch_size}{others}-seed{seed}"
    model = new_network()
    if not (folder / NETWORK).exists():
        torch.manual_seed(seed)
        model = new_network()
        x, y = data.hold_out(held_out)[:2]
        batches = TensorBatches(x, y, batch_size=batch_size, seed=seed, transform=Augment("cifar10"))
        sampler = make_pretraining_sampler(model, len(y), epochs * len(batches), seed)
        settings = {"epochs": epochs, "batch_size": batch_size, "seed": seed, "held_out": held_out}
        place = RunFolder(folder, resume=True, settings=settings, seed=seed, command=command, write_report=write_report)
        Training(model, sampler, batches, callbacks=[ShowProgress("Dense")]).run(epochs=epochs, folder=place)
        write_atomically(folder / NETWORK, encode_tensors(state_tensors(model)))
    model.load_state_dict(read_tensors_file(folder / NETWORK, CheckpointError))
    return Dense(model.eval(), digest(folder / NETWORK)[:16], seen_all=not held_out)


def make_pretraining_sampler(model: nn.Module, num_data: int, steps: int, seed: int) -> SGHMC:
    """Return the sampler of the paper's dense run."""
    return SGHMC(
        model.parameters(),
        lr=multistep(PRETRAIN_LR, DROP, [max(1, round(share * steps)) for share in DROPS]),
        momentum=0.9,
        num_data=num_data,
        temperature=1.0 / PRETRAIN_TAU,
        weight_decay=WEIGHT_DECAY / num_data,
        seed=seed,
    )
