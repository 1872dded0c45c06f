"""Networks of the study: data, dense training, and the loss where it is not the default of ``compress``."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from spikeslab.bench.compression.grid import ENCODER, LENET, LSTM, MLP, RESNET20, TRANSFORMER
from spikeslab.bench.compression.text import (
    CHARACTERS,
    CharEncoder,
    CharLSTM,
    CharTransformer,
    mask_characters,
    next_characters,
    read_tokens,
)
from spikeslab.bench.cost import build_lenet
from spikeslab.compression.sparse_file import state_tensors
from spikeslab.errors import SpikeSlabError, mark
from spikeslab.files import write_atomically
from spikeslab.paper.cifar10.data import new_network
from spikeslab.paper.data_files import VARIABLE, DataError, data_folder
from spikeslab.paper.images.augmentation import NORMALIZE, STANDARDISE, Augment
from spikeslab.paper.images.data import load_cifar10, load_fashion
from spikeslab.posterior.eval_mode import eval_mode
from spikeslab.states import encode_tensors, read_tensors_file
from spikeslab.training import TensorBatches
from spikeslab.training.batches import repeat_epochs
from spikeslab.training.loop import BFLOAT16, FLOAT32, Loss
from spikeslab.training.randomness import preserve_randomness, seed_everything

Batch = tuple[Tensor, Tensor]

IMAGES, HELD_OUT_IMAGES = 12_000, slice(50_000, 60_000)
CIFAR_HELD_OUT = 5000
TABLE, TABLE_TARGET, DROPPED = "bikesharing_hour.csv", "cnt", ("casual", "registered", "instant", "dteday")
TEXT, TEXT_ROWS = "tinyshakespeare.txt", 32
"""File of the text, and rows of a training batch."""
RESNET_FILE = "resnet20_dense.safetensors"
CHUNK = 500
"""Rows that are predicted at a time."""
DENSE_FOLDER = "dense"
QUICK_ROWS = 128


@dataclass(frozen=True)
class StudyData:
    """Training batches, and batches of held-out and of test rows in their order."""

    train: TensorBatches
    held_out: list[Batch]
    test: list[Batch]


@dataclass(frozen=True)
class StudyNetwork:
    """Network of the study.

    Attributes:
        title: Name in tables and figures.
        build: Return the untrained network.
        load: Return the data of a seed; the path is the folder of data sets.
        fake: Return small random data of a seed, for a quick look.
        score: Number that decides: ``"accuracy"``, ``"rmse"`` or ``"nll"``.
        epochs: Epochs of every compression.
        dense_epochs: Epochs of the dense training.
        dense_lr: Highest lr of the dense training, which falls along a cosine.
        adam: If True, rivals and the dense training use AdamW in place of SGD with momentum.
        dense_file: File of a dense network that is trained already.
        loss: Loss that ``compress`` is given; ``None`` leaves it the default.
        precision: Precision in which every method computes its loss.
    """

    title: str
    build: Callable[[], nn.Module]
    load: Callable[[Path | None, int], StudyData]
    fake: Callable[[int], StudyData]
    score: str
    epochs: int
    dense_epochs: int = 10
    dense_lr: float = 0.05
    adam: bool = False
    dense_file: str | None = None
    loss: Loss | None = None
    precision: str = FLOAT32

    @property
    def training_loss(self) -> Loss:
        """Loss that the rivals train with."""
        return self.loss or (regression_loss if self.score == "rmse" else token_loss)

    def quick(self) -> StudyNetwork:
        """Return the same network with two epochs on random data."""
        return replace(self, load=lambda _, seed: self.fake(seed), epochs=2, dense_epochs=1, dense_file=None)


def token_loss(model: nn.Module, batch: Batch) -> Tensor:
    """Return the mean cross-entropy; classes are dimension 1 of the outputs, with positions behind it."""
    x, y = batch
    return F.cross_entropy(model(x), y)


def regression_loss(model: nn.Module, batch: Batch) -> Tensor:
    """Return the mean squared error of outputs of shape (rows, 1)."""
    x, y = batch
    return F.mse_loss(model(x).squeeze(1), y)


def build_perceptron(inputs: int = 12, hidden: int = 100) -> nn.Module:
    """Return a perceptron with two hidden layers and one output."""
    layers = [nn.Linear(inputs, hidden), nn.ReLU(), nn.Linear(hidden, hidden), nn.ReLU(), nn.Linear(hidden, 1)]
    return nn.Sequential(*layers)


def in_order(x: Tensor, y: Tensor) -> list[Batch]:
    """Return rows in batches of at most :data:`CHUNK`, in their order."""
    return list(zip(x.split(CHUNK), y.split(CHUNK), strict=True))


def find_file(name: str, data_dir: Path | None, below: str) -> Path:
    """Return the path of a file in the folder of data sets, or in the folder ``below`` of it.

    Raises:
        DataError: If there is no such file.
    """
    folder = data_folder(data_dir)
    for path in () if folder is None else (folder / name, folder / below / name):
        if path.is_file():
            return path
    where = f"{mark('data_dir')} (or {VARIABLE}) must name a folder" if folder is None else f"{folder} must be a folder"
    raise DataError(f"{where} with {name}, but there is none.")


def load_lenet_data(data_dir: Path | None, seed: int) -> StudyData:
    """Load Fashion-MNIST: 12,000 training images, the last 10,000 held out, and the test images."""
    images, standardise = load_fashion(data_dir), STANDARDISE["fashion"]
    x, y = images.x_train[:IMAGES], images.y_train[:IMAGES]
    return StudyData(
        TensorBatches(standardise(x), y, batch_size=64, seed=seed),
        in_order(standardise(images.x_train[HELD_OUT_IMAGES]), images.y_train[HELD_OUT_IMAGES]),
        in_order(standardise(images.x_test), images.y_test),
    )


def load_table_data(data_dir: Path | None, seed: int) -> StudyData:
    """Load the hourly bike rentals: a fifth to test, a tenth of the rest held out, scaled by the training rows."""
    from sklearn.model_selection import train_test_split

    path = find_file(TABLE, data_dir, "tables")
    names = path.read_text().partition("\n")[0].strip().split(",")
    used = [index for index, name in enumerate(names) if name not in DROPPED]
    table = np.loadtxt(path, delimiter=",", skiprows=1, usecols=used)
    target = [names[index] for index in used].index(TABLE_TARGET)
    rest, test = train_test_split(np.arange(len(table)), test_size=0.2, random_state=seed)
    train, held_out = train_test_split(rest, test_size=0.1, random_state=seed)
    mean, std = table[train].mean(axis=0), table[train].std(axis=0)
    scaled = torch.from_numpy((table - mean) / std).float()
    x, y = scaled[:, [index for index in range(len(used)) if index != target]], scaled[:, target]
    parts = (torch.from_numpy(rows) for rows in (train, held_out, test))
    own, *others = ((x[rows], y[rows]) for rows in parts)
    return StudyData(TensorBatches(*own, batch_size=64, seed=seed), *(in_order(*part) for part in others))


def load_text_data(data_dir: Path | None, seed: int) -> StudyData:
    """Load Shakespeare in rows of 64 characters: 85 % to train, 5 % held out, the last 10 % to test."""
    return _split_tokens(read_tokens(find_file(TEXT, data_dir, "text")), (0.85, 0.9), seed)


def load_masked_text(data_dir: Path | None, seed: int) -> StudyData:
    """Load the same rows with a tenth and a half of the characters masked; these are the targets."""
    return _mask(load_text_data(data_dir, seed), seed)


def _split_tokens(tokens: Tensor, ends: tuple[float, float], seed: int) -> StudyData:
    first, second = (round(end * len(tokens)) for end in ends)
    train, *others = (next_characters(part) for part in (tokens[:first], tokens[first:second], tokens[second:]))
    return StudyData(TensorBatches(*train, batch_size=TEXT_ROWS, seed=seed), *(in_order(*part) for part in others))


def _mask(data: StudyData, seed: int) -> StudyData:
    x, _ = data.train.tensors
    parts = [x, *(torch.cat([rows for rows, _ in batches]) for batches in (data.held_out, data.test))]
    train, *others = (mask_characters(part, seed + number) for number, part in enumerate(parts))
    return StudyData(TensorBatches(*train, batch_size=TEXT_ROWS, seed=seed), *(in_order(*part) for part in others))


def load_resnet_data(data_dir: Path | None, seed: int) -> StudyData:
    """Load CIFAR-10: 45,000 training images with crops and flips, 5,000 held out, and the test images.

    The dense network was trained on the held-out images too, so these only rank settings.
    """
    images, normalize = load_cifar10(data_dir), NORMALIZE["cifar10"]
    x, y, x_held, y_held = images.hold_out(CIFAR_HELD_OUT)
    return StudyData(
        TensorBatches(x, y, batch_size=128, seed=seed, transform=Augment("cifar10", erasing=False)),
        in_order(normalize(x_held), y_held),
        in_order(normalize(images.x_test), images.y_test),
    )


def _fake_images(*shape: int) -> Callable[[int], StudyData]:
    def fake(seed: int) -> StudyData:
        generator = torch.Generator().manual_seed(seed)
        y = torch.arange(3 * QUICK_ROWS) % 10
        x = torch.randn(len(y), *shape, generator=generator) + y.view(-1, 1, 1, 1) / 5.0
        return _thirds(x, y, seed)

    return fake


def _fake_table(seed: int) -> StudyData:
    x = torch.randn(3 * QUICK_ROWS, 12, generator=torch.Generator().manual_seed(seed))
    return _thirds(x, x[:, 0] * x[:, 1], seed)


def _thirds(x: Tensor, y: Tensor, seed: int) -> StudyData:
    own, *others = zip(x.split(QUICK_ROWS), y.split(QUICK_ROWS), strict=True)
    return StudyData(TensorBatches(*own, batch_size=16, seed=seed), *(in_order(*part) for part in others))


def _fake_text(seed: int) -> StudyData:
    steps = torch.randint(1, 4, (20 * QUICK_ROWS * 4,), generator=torch.Generator().manual_seed(seed))
    return _split_tokens(steps.cumsum(0) % CHARACTERS, (0.8, 0.9), seed)


STUDY_NETWORKS = {
    LENET: StudyNetwork(
        "LeNet-5, Fashion-MNIST", build_lenet, load_lenet_data, _fake_images(1, 28, 28), "accuracy", epochs=10
    ),
    MLP: StudyNetwork(
        "perceptron, bike rentals",
        build_perceptron,
        load_table_data,
        _fake_table,
        "rmse",
        epochs=20,
        dense_epochs=40,
    ),
    TRANSFORMER: StudyNetwork(
        "transformer, Shakespeare",
        CharTransformer,
        load_text_data,
        _fake_text,
        "nll",
        epochs=3,
        dense_epochs=6,
        dense_lr=3e-3,
        adam=True,
        loss=token_loss,
    ),
    ENCODER: StudyNetwork(
        "encoder, masked Shakespeare",
        CharEncoder,
        load_masked_text,
        lambda seed: _mask(_fake_text(seed), seed),
        "nll",
        epochs=3,
        dense_epochs=12,
        dense_lr=1e-3,
        adam=True,
        loss=token_loss,
    ),
    LSTM: StudyNetwork(
        "LSTM, Shakespeare",
        CharLSTM,
        load_text_data,
        _fake_text,
        "nll",
        epochs=3,
        dense_epochs=6,
        dense_lr=3e-3,
        adam=True,
        loss=token_loss,
    ),
    RESNET20: StudyNetwork(
        "ResNet20, CIFAR-10",
        new_network,
        load_resnet_data,
        _fake_images(3, 32, 32),
        "accuracy",
        epochs=10,
        dense_file=RESNET_FILE,
        precision=BFLOAT16,
    ),
}


@lru_cache(maxsize=1)
def load_problem(name: str, data_dir: Path | None, seed: int, quick: bool) -> tuple[StudyNetwork, StudyData]:
    """Return a network and its data of a seed; those of the last call are kept."""
    network = STUDY_NETWORKS[name].quick() if quick else STUDY_NETWORKS[name]
    return network, network.load(data_dir, seed)


def cosine_factor(step: int, steps: int) -> float:
    """Return the lr of a step from 0 on, as a share of the highest, along half a cosine to zero."""
    return 0.5 * (1.0 + math.cos(math.pi * step / steps))


def make_optimizer(network: StudyNetwork, parameters: object, lr: float, weight_decay: float) -> torch.optim.Optimizer:
    """Return SGD with momentum or AdamW, whichever trains the network."""
    if network.adam:
        return torch.optim.AdamW(parameters, lr=lr, weight_decay=weight_decay)  # type: ignore[arg-type]
    return torch.optim.SGD(parameters, lr=lr, momentum=0.9, weight_decay=weight_decay)  # type: ignore[arg-type]


def train_dense(network: StudyNetwork, data: StudyData, seed: int) -> nn.Module:
    """Train a network with a warm-up and a cosine."""
    with preserve_randomness():
        seed_everything(seed)
        model = network.build().train()
        steps = network.dense_epochs * len(data.train)
        optimizer = make_optimizer(network, model.parameters(), network.dense_lr, 0.01 if network.adam else 5e-4)
        for step, batch in enumerate(itertools.islice(repeat_epochs(data.train), steps)):
            lr = network.dense_lr * min(1.0, (step + 1) / (0.05 * steps)) * cosine_factor(step, steps)
            for group in optimizer.param_groups:
                group["lr"] = lr
            optimizer.zero_grad()
            network.training_loss(model, batch).backward()
            optimizer.step()
    return model.eval()


def dense_network(name: str, data_dir: Path | None, seed: int, quick: bool, folder: Path) -> nn.Module:
    """Return the dense network of a seed, from its file if there is one; a network that is trained here is kept.

    Raises:
        DataError: If the file is missing or damaged.
    """
    network, data = load_problem(name, data_dir, seed, quick)
    path = folder / DENSE_FOLDER / f"{name}-seed{seed}.safetensors"
    if network.dense_file is not None:
        path = find_file(network.dense_file, data_dir, "cifar10")
    elif not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(path, encode_tensors(state_tensors(train_dense(network, data, seed))))
    model = network.build()
    model.load_state_dict(read_tensors_file(path, DataError))
    return model.eval()


def find_missing_data(name: str, data_dir: Path | None, seed: int) -> str | None:
    """Return why the data of a network cannot be read, in one sentence, or ``None`` if they can."""
    network = STUDY_NETWORKS[name]
    try:
        if network.dense_file is not None:
            find_file(network.dense_file, data_dir, "cifar10")
        load_problem(name, data_dir, seed, quick=False)
    except SpikeSlabError as error:
        return str(error)
    except ImportError as error:
        return f"{error.name or 'A package'} is not installed."
    return None


@torch.no_grad()
def predict(forward: Callable[[Tensor], Tensor], model: nn.Module, batches: list[Batch]) -> Tensor:
    """Return the outputs on all rows, with the model in evaluation mode."""
    with eval_mode(model):
        return torch.cat([forward(x) for x, _ in batches])
