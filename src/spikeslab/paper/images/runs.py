"""One method on one image set: a run in a folder, from the first step to predictions of the test images.

The four methods of section 5.2: Vanilla and Dropout, trained with Adam; SGHMC, with the spike-and-slab prior of the
first fully connected layer frozen at its initial values; SGHMC-SA, which adapts it. A recipe may share the epochs of
the samplers out among several chains, which start apart and are averaged together. 5,000 training images are held out
for all choices; the test images are predicted once, after the last step, and so are those of the other data set, which
the network should be unsure of.
"""

from __future__ import annotations

import json
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save
from torch import Tensor, nn
from torch.optim import Adam, Optimizer

from spikeslab.diagnostics import write_report
from spikeslab.errors import SpikeSlabWarning, check_choice
from spikeslab.files import write_atomically
from spikeslab.paper.images.augmentation import PLAIN, Augment, Normalize
from spikeslab.paper.images.data import LOADERS, Images
from spikeslab.paper.images.networks import CNN, BatchNormCNN
from spikeslab.paper.images.predictions import FOREIGN, HELD, PREDICTIONS, Part, describe, predict
from spikeslab.paper.images.presets import Recipe
from spikeslab.posterior import Chains, Posterior
from spikeslab.priors import SpikeSlab
from spikeslab.samplers import SGHMC
from spikeslab.training import (
    Callback,
    CheckpointError,
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
from spikeslab.training.folder import RECORD, changed_settings, in_json
from spikeslab.training.log import finite
from spikeslab.training.precision import FLOAT32, PRECISIONS
from spikeslab.weights import select_weights

ADAM = ("vanilla", "dropout")
METHODS = (*ADAM, "sghmc", "sghmc-sa")
HELD_OUT = 5000
OTHER = {"mnist": "fashion", "fashion": "mnist"}
NETWORK, RESULT = "network.safetensors", "result.json"
DEFAULTS = {"precision": FLOAT32}
"""Settings of runs that were made before there was a choice."""


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
        held_out: Training images that are held out; with 0 all are trained on, and nothing is judged on the way.
        precision: That of the loss in training; all predictions are made in float32.
    """

    dataset: str
    method: str
    recipe: Recipe
    epochs: int
    augment: bool = False
    seed: int = 0
    held_out: int = HELD_OUT
    precision: str = FLOAT32

    def __post_init__(self) -> None:
        check_choice("dataset", self.dataset, ("mnist", "fashion"))
        check_choice("method", self.method, METHODS)
        check_choice("precision", self.precision, PRECISIONS)

    @property
    def name(self) -> str:
        """Name of its folder."""
        return f"{self.method}-{self.recipe.name}{'-augmented' if self.augment else ''}-{self.epochs}-seed{self.seed}"

    @property
    def normalize(self) -> Normalize:
        """How images become numbers."""
        return Augment(self.dataset).normalize if self.augment else PLAIN

    @property
    def chains(self) -> int:
        """Number of its chains; a point estimate is one."""
        return 1 if self.method in ADAM else min(self.recipe.chains, self.epochs)

    def of_chains(self, folder: Path) -> list[tuple[ImageRun, Path]]:
        """Its chains as runs of their own with their folders: they share its epochs and have their own seeds."""
        one, count = replace(self, recipe=replace(self.recipe, chains=1)), self.chains
        if count == 1:
            return [(one, folder)]
        return [
            (
                replace(one, epochs=(self.epochs + index) // count, seed=count * self.seed + index),
                folder / f"chain-{index}",
            )
            for index in range(count)
        ]

    def settings(self) -> dict[str, Any]:
        """What decides the result, for the record of the run: of the recipe, what this method uses."""
        chains = {"chains": self.chains} if self.chains > 1 else {}
        return {**asdict(self), "recipe": self.recipe.settings(sampled=self.method not in ADAM), **chains}


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
        size = sum(weight.numel() for weight in weights.values())
        prior = SpikeSlab(weights, **run.recipe.prior(run.method == "sghmc-sa", size))
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


def read_network(run: ImageRun, folder: Path) -> tuple[nn.Module, Chains | None]:
    """The last weights of a finished run in its folder, and its samples where it has some; nothing is written."""
    model = _model(run)
    model.load_state_dict(load_file(folder / NETWORK))
    if run.method in ADAM:
        return model, None
    return model, Chains([Posterior.load(place / "posterior", model) for _, place in run.of_chains(folder)])


def read_result(run: ImageRun, folder: Path) -> dict[str, Any] | None:
    """What a finished run found, or ``None`` if it has not finished.

    Raises:
        CheckpointError: If it was done with other settings.
    """
    path = folder / RESULT
    if not path.exists():
        return None
    result: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    changes = changed_settings(_flat(DEFAULTS | result["settings"]), _flat(in_json(run.settings())))
    if changes:
        raise CheckpointError(f"settings must be those with which {folder} was made, but {changes}.")
    return result


def _flat(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Settings by their names, those of the recipe among the others."""
    return {**settings["recipe"], **{name: value for name, value in settings.items() if name != "recipe"}}


def train(
    run: ImageRun,
    folder: Path,
    data: Images,
    *,
    command: str = "",
    progress: bool = True,
    checkpoint_every: Every | None = None,
    report: bool = True,
) -> Network:
    """Train one chain in its folder to the last step, or go on with it; the test images are not looked at."""
    x, y, x_held, y_held = data.hold_out(run.held_out)
    network = build(run, len(y), folder)
    transform = Augment(run.dataset) if run.augment else run.normalize
    batches = TensorBatches(x, y, batch_size=run.recipe.batch_size, seed=run.seed, transform=transform)

    def evaluate() -> dict[str, Any]:
        return describe_classifier(predict(network.model, run.normalize, x_held), y_held)

    callbacks: list[Callback] = [Evaluate(evaluate)] if run.held_out else []
    if network.posterior is not None:
        callbacks.append(Collect(network.posterior))
    if progress:
        callbacks.append(ShowProgress(f"{run.dataset} {run.method}"))
    training = Training(network.model, network.optimizer, batches, _loss, callbacks=callbacks, precision=run.precision)
    place = RunFolder(
        folder,
        resume=True,
        settings=run.settings(),
        defaults=DEFAULTS,
        seed=run.seed,
        command=command,
        checkpoint_every=checkpoint_every or Every(seconds=60),
        report=write_report if report else None,
    )
    training.run(epochs=run.epochs, folder=place)
    return network


def run_images(run: ImageRun, out: Path, data: Images, foreign: Tensor, **options: Any) -> dict[str, Any]:
    """Do a run in its folder below ``out``, or go on with it; a run that is done is read.

    Args:
        run: What is run.
        out: Folder of the folder of the run.
        data: The images.
        foreign: Images of another kind.
        options: Those of :func:`train`.

    Returns:
        What ``result.json`` holds: the metrics of the last weights and of the posterior average on the held-out and
        the test images, and how well they tell the ``foreign`` images from the test images.

    Raises:
        CheckpointError: If the folder holds a run with other settings.
    """
    folder = out / run.name
    found = read_result(run, folder)
    if found is not None:
        return found
    chains = run.of_chains(folder)
    networks = [train(chain, place, data, **options) for chain, place in chains]
    _, _, x_held, y_held = data.hold_out(run.held_out)
    parts = {
        **({HELD: Part(x_held, y_held)} if run.held_out else {}),
        "test": Part(data.x_test, data.y_test),
        FOREIGN: Part(foreign),
    }
    tensors = predict_parts(run, networks, parts)
    records = [json.loads((place / RECORD).read_text(encoding="utf-8")) for _, place in chains]
    result: dict[str, Any] = finite(
        {
            "settings": run.settings(),
            "samples": sum(len(network.posterior) for network in networks if network.posterior is not None),
            "seconds": sum(record["seconds"] for record in records),
            **describe(tensors, parts),
        }
    )
    weights = {name: tensor.contiguous() for name, tensor in networks[-1].model.state_dict().items()}
    write_atomically(folder / NETWORK, save(weights))
    write_atomically(folder / PREDICTIONS, save(tensors))
    write_atomically(folder / RESULT, json.dumps(result, indent=1).encode())
    return result


def _loss(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
    x, y = batch
    return cross_entropy(model, (x.contiguous(memory_format=torch.channels_last), y))


def predict_parts(run: ImageRun, networks: Sequence[Network], parts: Mapping[str, Part]) -> dict[str, Tensor]:
    """Probabilities of the images of every part by the last weights, and by the samples of all chains."""
    tensors = {}
    posteriors = [network.posterior for network in networks if network.posterior is not None]
    for name, part in parts.items():
        tensors[f"{name}.point"] = predict(networks[-1].model, run.normalize, part.images)
        if posteriors:
            samples = (each.sample(index) for each in posteriors for index in range(len(each)))
            tensors[f"{name}.samples"] = torch.stack([predict(each, run.normalize, part.images) for each in samples])
    return tensors


def load_images(dataset: str, data_dir: Path | None) -> tuple[Images, Tensor]:
    """The images of a data set by name, and the test images of the other one, which are foreign to it."""
    other = LOADERS[OTHER[dataset]](data_dir)
    return LOADERS[dataset](data_dir), other.x_test
