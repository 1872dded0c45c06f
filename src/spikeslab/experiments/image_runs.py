"""One method on one image set: a run in a folder, from the first step to predictions of the test images.

The four methods of section 5.2: Vanilla and Dropout, trained with Adam; SGHMC, with the spike-and-slab prior of the
first fully connected layer frozen at its initial values; SGHMC-SA, which adapts it. 5,000 training images are held out
for all choices; the test images are predicted once, after the last step.
"""

from __future__ import annotations

import json
import warnings
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save
from torch import Tensor, nn
from torch.optim import Adam, Optimizer

from spikeslab.datasets.augmentation import PLAIN, Augment, Normalize
from spikeslab.datasets.images import LOADERS, Images
from spikeslab.errors import SpikeSlabWarning, check_choice
from spikeslab.experiments.image_recipes import Recipe
from spikeslab.files import write_atomically
from spikeslab.models import CNN, BatchNormCNN
from spikeslab.posterior import Posterior
from spikeslab.priors import SpikeSlab
from spikeslab.samplers import SGHMC
from spikeslab.selection import select_weights
from spikeslab.training import (
    Callback,
    Collect,
    Evaluate,
    Every,
    RunFolder,
    ShowProgress,
    TensorBatches,
    Training,
    cross_entropy,
    describe_classifier,
)

METHODS = ("vanilla", "dropout", "sghmc", "sghmc-sa")
HELD_OUT = 5000
PREDICTIONS, RESULT = "predictions.safetensors", "result.json"


@dataclass(frozen=True)
class ImageRun:
    """What is run.

    Attributes:
        dataset: ``"mnist"`` or ``"fashion"``.
        method: One of ``METHODS``.
        recipe: Settings of the method.
        epochs: Epochs.
        augment: Whether images are changed at random, and the network is the one with batch normalisation.
        seed: Seed of the start, the order of the images, dropout and the noise.
    """

    dataset: str
    method: str
    recipe: Recipe
    epochs: int
    augment: bool = False
    seed: int = 0

    def __post_init__(self) -> None:
        check_choice("dataset", self.dataset, ("mnist", "fashion"))
        check_choice("method", self.method, METHODS)

    @property
    def name(self) -> str:
        """Name of its folder."""
        return f"{self.method}-{self.recipe.name}{'-augmented' if self.augment else ''}-{self.epochs}-seed{self.seed}"

    @property
    def normalize(self) -> Normalize:
        """How images become numbers."""
        return Augment(self.dataset).normalize if self.augment else PLAIN

    def settings(self) -> dict[str, Any]:
        """What decides the result, for the record of the run."""
        return {**asdict(self), "held_out": HELD_OUT}


@dataclass(frozen=True)
class Network:
    """A network on its way, with what collects its samples; point estimates have no posterior."""

    model: nn.Module
    optimizer: Optimizer
    posterior: Posterior | None


def build(run: ImageRun, num_data: int, folder: Path | None) -> Network:
    """The network of a run at its start."""
    torch.manual_seed(run.seed)
    dropout = 0.5 if run.method == "dropout" else 0.0
    model: nn.Module = BatchNormCNN(hidden_dropout=dropout) if run.augment else CNN(dropout)
    model = model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    if run.method in ("vanilla", "dropout"):
        return Network(model, Adam(model.parameters(), lr=run.recipe.adam_lr), None)
    steps_per_epoch = num_data // run.recipe.batch_size
    weights = select_weights(model, "fc1.weight")
    with warnings.catch_warnings():  # the paper's spike is wider than its slab, as the docs say
        warnings.simplefilter("ignore", SpikeSlabWarning)
        prior = SpikeSlab(weights, **run.recipe.prior(adaptive=run.method == "sghmc-sa"))
    settings = run.recipe.sampler(num_data, run.epochs * steps_per_epoch)
    sampler = SGHMC(model.parameters(), prior=prior, seed=run.seed, **settings)
    burn_in, thin = run.recipe.thinning(run.epochs * steps_per_epoch)
    directory = None if folder is None else folder / "posterior"
    posterior = Posterior(model, burn_in, thin, sampler=sampler, directory=directory, exist_ok=True)
    return Network(model, sampler, posterior)


def run_images(
    run: ImageRun,
    out: Path,
    data: Images,
    *,
    command: str = "",
    progress: bool = True,
    checkpoint_every: Every | None = None,
) -> dict[str, Any]:
    """Do a run in its folder below ``out``, or go on with it; a run that is done is read.

    Returns:
        What ``result.json`` holds: the metrics of the last weights and of the posterior average, on the held-out images
        and on the test images.
    """
    folder = out / run.name
    if (folder / RESULT).exists():
        result: dict[str, Any] = json.loads((folder / RESULT).read_text(encoding="utf-8"))
        return result
    x, y, x_held, y_held = data.hold_out(HELD_OUT)
    network = build(run, len(y), folder)
    transform = Augment(run.dataset) if run.augment else run.normalize
    batches = TensorBatches(x, y, batch_size=run.recipe.batch_size, seed=run.seed, transform=transform)

    def evaluate() -> dict[str, Any]:
        return describe_classifier(predict(network.model, run.normalize, x_held), y_held)

    callbacks: list[Callback] = [Evaluate(evaluate)]
    if network.posterior is not None:
        callbacks.append(Collect(network.posterior))
    if progress:
        callbacks.append(ShowProgress(f"{run.dataset} {run.method}"))
    training = Training(network.model, network.optimizer, batches, _loss, callbacks=callbacks)
    place = RunFolder(
        folder,
        resume=True,
        settings=run.settings(),
        seed=run.seed,
        command=command,
        checkpoint_every=checkpoint_every or Every(seconds=60),
    )
    training.run(epochs=run.epochs, folder=place)
    return _finish(run, folder, network, data, x_held, y_held)


def _loss(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
    x, y = batch
    return cross_entropy(model, (x.contiguous(memory_format=torch.channels_last), y))


@torch.no_grad()
def predict(model: nn.Module, normalize: Normalize, images: Tensor, batch_size: int = 1000) -> Tensor:
    """Probabilities of images in bytes, in evaluation mode."""
    training = model.training
    model.eval()
    try:
        parts = [
            model(normalize(batch).contiguous(memory_format=torch.channels_last)).softmax(dim=1)
            for batch in images.split(batch_size)
        ]
    finally:
        model.train(training)
    return torch.cat(parts)


def _finish(
    run: ImageRun, folder: Path, network: Network, data: Images, x_held: Tensor, y_held: Tensor
) -> dict[str, Any]:
    """Predict the held-out and the test images, once."""
    result: dict[str, Any] = {"settings": run.settings()}
    tensors = {}
    for part, images, labels in (("held_out", x_held, y_held), ("test", data.x_test, data.y_test)):
        point = predict(network.model, run.normalize, images)
        tensors[f"{part}.point"] = point
        result[part] = {"point": describe_classifier(point, labels)}
        if network.posterior is not None:
            members = torch.stack(
                [
                    predict(network.posterior.sample(index), run.normalize, images)
                    for index in range(len(network.posterior))
                ]
            )
            tensors[f"{part}.samples"] = members
            average = members.mean(dim=0)
            result[part]["average"] = describe_classifier(average, labels)
    result["samples"] = 0 if network.posterior is None else len(network.posterior)
    write_atomically(folder / PREDICTIONS, save(tensors))
    write_atomically(folder / RESULT, json.dumps(result, indent=1).encode())
    return result


def read_predictions(folder: Path) -> dict[str, Tensor]:
    """Probabilities of the held-out and test images: ``part.point`` and ``part.samples``."""
    return load_file(folder / PREDICTIONS)


def load_images(dataset: str, data_dir: Path | None) -> Images:
    """The images of a data set by name."""
    return LOADERS[dataset](data_dir)
