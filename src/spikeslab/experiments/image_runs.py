"""One method on one image set: a run in a folder, from the first step to predictions of the test images.

The four methods of section 5.2: Vanilla and Dropout, trained with Adam; SGHMC, with the spike-and-slab prior of the
first fully connected layer frozen at its initial values; SGHMC-SA, which adapts it. 5,000 training images are held out
for all choices; the test images are predicted once, after the last step, and so are those of the other data set, which
the network should be unsure of.
"""

from __future__ import annotations

import json
import warnings
from collections.abc import Mapping
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
from spikeslab.metrics import detection, entropy, mutual_information
from spikeslab.models import CNN, BatchNormCNN
from spikeslab.posterior import Posterior
from spikeslab.posterior.modes import evaluating
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
from spikeslab.training.folder import RECORD
from spikeslab.training.log import finite

ADAM = ("vanilla", "dropout")
METHODS = (*ADAM, "sghmc", "sghmc-sa")
HELD_OUT = 5000
FOREIGN = "foreign"
OTHER = {"mnist": "fashion", "fashion": "mnist"}
NETWORK, PREDICTIONS, RESULT = "network.safetensors", "predictions.safetensors", "result.json"


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
        held_out: Training images that are held out.
    """

    dataset: str
    method: str
    recipe: Recipe
    epochs: int
    augment: bool = False
    seed: int = 0
    held_out: int = HELD_OUT

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
        """What decides the result, for the record of the run: of the recipe, what this method uses."""
        return {**asdict(self), "recipe": self.recipe.settings(sampled=self.method not in ADAM)}


@dataclass(frozen=True)
class Part:
    """Images in bytes that are predicted after the last step, with their labels where these mean something."""

    images: Tensor
    labels: Tensor | None = None


@dataclass(frozen=True)
class Network:
    """A network on its way, with what collects its samples; point estimates have no posterior."""

    model: nn.Module
    optimizer: Optimizer
    posterior: Posterior | None


def build(run: ImageRun, num_data: int, folder: Path | None) -> Network:
    """The network of a run at its start."""
    torch.manual_seed(run.seed)
    model = _model(run)
    if run.method in ADAM:
        return Network(model, Adam(model.parameters(), lr=run.recipe.adam_lr), None)
    steps_per_epoch = num_data // min(run.recipe.batch_size, num_data)
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


def _model(run: ImageRun) -> nn.Module:
    dropout = 0.5 if run.method == "dropout" else 0.0
    model: nn.Module = BatchNormCNN(hidden_dropout=dropout) if run.augment else CNN(dropout)
    return model.to(memory_format=torch.channels_last)  # type: ignore[call-overload, no-any-return]


def read_network(run: ImageRun, folder: Path) -> tuple[nn.Module, Posterior | None]:
    """The last weights of a finished run in its folder, and its posterior where it has one; nothing is written."""
    model = _model(run)
    model.load_state_dict(load_file(folder / NETWORK))
    if run.method in ADAM:
        return model, None
    return model, Posterior.load(folder / "posterior", model)


def run_images(
    run: ImageRun,
    out: Path,
    data: Images,
    foreign: Tensor,
    *,
    command: str = "",
    progress: bool = True,
    checkpoint_every: Every | None = None,
    report: bool = True,
) -> dict[str, Any]:
    """Do a run in its folder below ``out``, or go on with it; a run that is done is read.

    Returns:
        What ``result.json`` holds: the metrics of the last weights and of the posterior average on the held-out and
        the test images, and how well they tell the ``foreign`` images from the test images.
    """
    folder = out / run.name
    if (folder / RESULT).exists():
        result: dict[str, Any] = json.loads((folder / RESULT).read_text(encoding="utf-8"))
        return result
    x, y, x_held, y_held = data.hold_out(run.held_out)
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
        report=report,
    )
    training.run(epochs=run.epochs, folder=place)
    parts = {
        "held_out": Part(x_held, y_held),
        "test": Part(data.x_test, data.y_test),
        FOREIGN: Part(foreign),
    }
    return _finish(run, folder, network, parts)


def _loss(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
    x, y = batch
    return cross_entropy(model, (x.contiguous(memory_format=torch.channels_last), y))


@torch.no_grad()
def predict(model: nn.Module, normalize: Normalize, images: Tensor, batch_size: int = 1000) -> Tensor:
    """Probabilities of images in bytes, in evaluation mode."""
    with evaluating(model):
        parts = [
            model(normalize(batch).contiguous(memory_format=torch.channels_last)).softmax(dim=1)
            for batch in images.split(batch_size)
        ]
    return torch.cat(parts)


def _finish(run: ImageRun, folder: Path, network: Network, parts: Mapping[str, Part]) -> dict[str, Any]:
    """Predict the images of every part, once, and write what was found."""
    tensors = {}
    for name, part in parts.items():
        tensors[f"{name}.point"] = predict(network.model, run.normalize, part.images)
        if network.posterior is not None:
            samples = [network.posterior.sample(index) for index in range(len(network.posterior))]
            tensors[f"{name}.samples"] = torch.stack([predict(each, run.normalize, part.images) for each in samples])
    result: dict[str, Any] = finite(
        {
            "settings": run.settings(),
            "samples": 0 if network.posterior is None else len(network.posterior),
            "seconds": json.loads((folder / RECORD).read_text(encoding="utf-8"))["seconds"],
            **describe(tensors, parts),
        }
    )
    write_atomically(folder / NETWORK, save({name: t.contiguous() for name, t in network.model.state_dict().items()}))
    write_atomically(folder / PREDICTIONS, save(tensors))
    write_atomically(folder / RESULT, json.dumps(result, indent=1).encode())
    return result


def describe(predictions: Mapping[str, Tensor], parts: Mapping[str, Part]) -> dict[str, Any]:
    """Metrics of the last weights (``point``) and of the posterior average on every part."""
    found: dict[str, Any] = {}
    for name, part in parts.items():
        if part.labels is not None:
            found[name] = {
                kind: describe_classifier(each, part.labels) for kind, each in kinds_of(predictions, name).items()
            }
    foreign = kinds_of(predictions, FOREIGN)
    found[FOREIGN] = {
        kind: {"entropy": asdict(detection(entropy(own), entropy(foreign[kind])))}
        for kind, own in kinds_of(predictions, "test").items()
    }
    if "test.samples" in predictions:
        spread = [mutual_information(predictions[f"{name}.samples"]) for name in ("test", FOREIGN)]
        found[FOREIGN]["average"]["mutual_information"] = asdict(detection(*spread))
    return found


def kinds_of(predictions: Mapping[str, Tensor], part: str) -> dict[str, Tensor]:
    """Probabilities of the images of a part: of the last weights and, where there are samples, of their average."""
    kinds = {"point": predictions[f"{part}.point"]}
    if f"{part}.samples" in predictions:
        kinds["average"] = predictions[f"{part}.samples"].mean(dim=0)
    return kinds


def read_predictions(folder: Path) -> dict[str, Tensor]:
    """Probabilities of all parts: ``part.point`` and ``part.samples``."""
    return load_file(folder / PREDICTIONS)


def load_images(dataset: str, data_dir: Path | None) -> tuple[Images, Tensor]:
    """The images of a data set by name, and the test images of the other one, which are foreign to it."""
    other = LOADERS[OTHER[dataset]](data_dir)
    return LOADERS[dataset](data_dir), other.x_test
