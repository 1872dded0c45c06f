"""Run of one method on MNIST or Fashion-MNIST, from the first step to predictions of the test images (section 5.2).

Vanilla and Dropout are trained with Adam. SGHMC has a spike-and-slab prior on the first fully connected layer whose
latents keep their initial values; SGHMC-SA adapts them. Several chains may share the epochs of a sampler: they start
apart and are averaged together. 5,000 training images are held out for all choices. The test images are predicted once,
after the last step, and so are those of the other data set, of which the network should be unsure.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.optim import Adam, Optimizer

from spikeslab.diagnostics import write_report
from spikeslab.errors import SpikeSlabWarning, check_choice
from spikeslab.files import write_atomically
from spikeslab.metrics import detection, entropy, mutual_information
from spikeslab.paper.images.augmentation import PLAIN, Augment, Normalize
from spikeslab.paper.images.data import LOADERS, Images
from spikeslab.paper.images.networks import CNN, BatchNormCNN
from spikeslab.paper.images.presets import ImagePreset
from spikeslab.paper.runs import RESULT, check_settings, read_result, run_folder, upgrade, write_result
from spikeslab.posterior import Chains, Posterior
from spikeslab.posterior.eval_mode import eval_mode
from spikeslab.priors import SpikeSlab
from spikeslab.samplers import SGHMC
from spikeslab.states import encode_tensors, read_tensors_file
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
from spikeslab.training.loop import FLOAT32, PRECISIONS
from spikeslab.training.run_folder import POSTERIOR, RECORD_FILE, read_run_record
from spikeslab.weights import select_weights

ADAM = ("vanilla", "dropout")
METHODS = (*ADAM, "sghmc", "sghmc-sa")
HELD_OUT = 5000
OTHER = {"mnist": "fashion", "fashion": "mnist"}
HELD, FOREIGN = "held_out", "foreign"
NETWORK, PREDICTIONS = "network.safetensors", "predictions.safetensors"
DEFAULTS = {"precision": FLOAT32}
"""Settings of runs that were made before there was a choice."""


@dataclass(frozen=True)
class ImageRun:
    """Run of one method with one seed; its chains share the epochs.

    Augmented images have the network with batch normalisation. Without ``held_out`` training images nothing is
    evaluated before the end. ``precision`` is that of the loss in training; predictions are made in float32.
    """

    dataset: str
    method: str
    preset: ImagePreset
    epochs: int
    augment: bool = False
    seed: int = 0
    held_out: int = HELD_OUT
    precision: str = FLOAT32

    def __post_init__(self) -> None:
        check_choice("dataset", self.dataset, tuple(OTHER))
        check_choice("method", self.method, METHODS)
        check_choice("precision", self.precision, PRECISIONS)

    @property
    def name(self) -> str:
        """Name of the folder."""
        return f"{self.method}-{self.preset.name}{'-augmented' if self.augment else ''}-{self.epochs}-seed{self.seed}"

    def folder(self, out: Path) -> Path:
        """Return the folder below ``out``."""
        return run_folder(out, self.name, finished=False)

    @property
    def normalize(self) -> Normalize:
        """Transform from bytes to the numbers that the network sees."""
        return Augment(self.dataset).normalize if self.augment else PLAIN

    @property
    def chains(self) -> int:
        """Number of chains; a point estimate is one."""
        return 1 if self.method in ADAM else min(self.preset.chains, self.epochs)

    def split(self, folder: Path) -> list[tuple[ImageRun, Path]]:
        """Return each chain as a run of its own, with its share of the epochs, its seed and its folder."""
        one, count = replace(self, preset=replace(self.preset, chains=1)), self.chains
        if count == 1:
            return [(one, folder)]
        shares = [((self.epochs + index) // count, count * self.seed + index) for index in range(count)]
        runs = [replace(one, epochs=epochs, seed=seed) for epochs, seed in shares]
        return [(run, folder / f"chain-{index}") for index, run in enumerate(runs)]

    def record(self) -> dict[str, Any]:
        """Return all that decides the result; of the preset, what this method uses."""
        chains = {"chains": self.chains} if self.chains > 1 else {}
        return {**asdict(self), "preset": self.preset.record(sampled=self.method not in ADAM), **chains}


class ImageNetwork(NamedTuple):
    """Network in training, with its optimizer and, for samplers, its posterior."""

    model: nn.Module
    optimizer: Optimizer
    posterior: Posterior | None


class Part(NamedTuple):
    """Images in bytes that are predicted after the last step; foreign images have no labels."""

    images: Tensor
    labels: Tensor | None = None


def build(run: ImageRun, num_data: int, folder: Path | None) -> ImageNetwork:
    """Return the network of a run before its first step."""
    torch.manual_seed(run.seed)
    model = _model(run)
    if run.method in ADAM:
        return ImageNetwork(model, Adam(model.parameters(), lr=run.preset.adam_lr), None)
    steps = run.epochs * (num_data // min(run.preset.batch_size, num_data))
    weights = select_weights(model, "fc1.weight")
    with warnings.catch_warnings():  # the paper's spike is wider than its slab, as the docs say
        warnings.simplefilter("ignore", SpikeSlabWarning)
        size = sum(weight.numel() for weight in weights.values())
        prior = SpikeSlab(weights, **run.preset.prior(run.method == "sghmc-sa", size))
    sampler = SGHMC(
        model.parameters(),
        lr=run.preset.learning_rate(steps),
        momentum=0.9,
        num_data=num_data,
        temperature=run.preset.temperature,
        weight_decay=run.preset.weight_decay,
        prior=prior,
        seed=run.seed,
    )
    burn_in, thin = run.preset.thinning(steps)
    directory = None if folder is None else folder / POSTERIOR
    posterior = Posterior(model, burn_in, thin, sampler=sampler, directory=directory, exist_ok=True)
    return ImageNetwork(model, sampler, posterior)


def _model(run: ImageRun) -> nn.Module:
    dropout = 0.5 if run.method == "dropout" else 0.0
    model: nn.Module = BatchNormCNN(hidden_dropout=dropout) if run.augment else CNN(dropout)
    return model.to(memory_format=torch.channels_last)  # type: ignore[call-overload, no-any-return]


def read_network(run: ImageRun, folder: Path) -> tuple[nn.Module, Chains | None]:
    """Return the last weights of a finished run and, for samplers, its samples; nothing is written."""
    model = _model(run)
    model.load_state_dict(read_tensors_file(folder / NETWORK, CheckpointError))
    if run.method in ADAM:
        return model, None
    return model, Chains([Posterior.load(place / POSTERIOR, model) for _, place in run.split(folder)])


def read_run(run: ImageRun, folder: Path) -> dict[str, Any] | None:
    """Return what a finished run found, or ``None`` if it has not finished; raise if it has other settings."""
    result = read_result(folder)
    if result is not None:
        check_settings(folder, _flatten(DEFAULTS | result["settings"]), _flatten(run.record()))
    return result


def _flatten(record: Mapping[str, Any]) -> dict[str, Any]:
    return {**record["preset"], **{name: value for name, value in record.items() if name != "preset"}}


def train(
    run: ImageRun, folder: Path, data: Images, *, command: str = "", checkpoint_every: Every | None = None
) -> ImageNetwork:
    """Train one chain in its folder to the last step, or continue it; the test images are not used."""
    x, y, x_held, y_held = data.hold_out(run.held_out)
    network = build(run, len(y), folder)
    transform = Augment(run.dataset) if run.augment else run.normalize
    batches = TensorBatches(x, y, batch_size=run.preset.batch_size, seed=run.seed, transform=transform)

    def evaluate() -> dict[str, Any]:
        return describe_classifier(predict(network.model, run.normalize, x_held), y_held)

    callbacks: list[Callback] = [Evaluate(evaluate)] if run.held_out else []
    if network.posterior is not None:
        callbacks.append(Collect(network.posterior))
    callbacks.append(ShowProgress(f"{run.dataset} {run.method}"))
    training = Training(
        network.model, network.optimizer, batches, cross_entropy, callbacks=callbacks, precision=run.precision
    )
    place = RunFolder(
        folder,
        resume=True,
        settings=run.record(),
        upgrade=lambda settings: DEFAULTS | upgrade(settings),
        seed=run.seed,
        command=command,
        checkpoint_every=checkpoint_every or Every(seconds=60),
        write_report=write_report,
    )
    training.run(epochs=run.epochs, folder=place)
    return network


def run_images(run: ImageRun, out: Path, data: Images, foreign: Tensor, **options: Any) -> dict[str, Any]:
    """Do a run in its folder below ``out``, or continue it; a finished run is read.

    ``options`` are those of :func:`train`. Returns the content of ``result.json``: metrics of the last weights and of
    the posterior average on the held-out and the test images, and how well they tell ``foreign`` images apart.
    """
    folder = run.folder(out)
    found = read_run(run, folder)
    if found is not None:
        return found
    chains = run.split(folder)
    networks = [train(chain, place, data, **options) for chain, place in chains]
    _, _, x_held, y_held = data.hold_out(run.held_out)
    parts = {
        **({HELD: Part(x_held, y_held)} if run.held_out else {}),
        "test": Part(data.x_test, data.y_test),
        FOREIGN: Part(foreign),
    }
    predictions = predict_parts(run, networks, parts)
    records = [read_run_record(place / RECORD_FILE, CheckpointError) for _, place in chains]
    weights = {name: tensor.contiguous() for name, tensor in networks[-1].model.state_dict().items()}
    write_atomically(folder / NETWORK, encode_tensors(weights))
    write_atomically(folder / PREDICTIONS, encode_tensors(predictions))
    return write_result(
        folder,
        {
            "settings": run.record(),
            "samples": sum(len(network.posterior) for network in networks if network.posterior is not None),
            "seconds": sum(record["seconds"] for record in records),
            **describe(predictions, parts),
        },
    )


@torch.no_grad()
def predict(model: nn.Module, normalize: Normalize, images: Tensor, batch_size: int = 250) -> Tensor:
    """Return the probabilities of images in bytes, in evaluation mode; none is 0, so that every log is finite."""
    with eval_mode(model):
        parts = [model(normalize(batch)).softmax(dim=1) for batch in images.split(batch_size)]
    probabilities = torch.cat(parts)
    return probabilities.clamp(min=torch.finfo(probabilities.dtype).tiny)


def predict_parts(run: ImageRun, networks: Sequence[ImageNetwork], parts: Mapping[str, Part]) -> dict[str, Tensor]:
    """Return ``part.point``, the probabilities of the last weights, and ``part.samples``, those of all samples."""
    predictions = {}
    posteriors = [network.posterior for network in networks if network.posterior is not None]
    for name, part in parts.items():
        predictions[f"{name}.point"] = predict(networks[-1].model, run.normalize, part.images)
        if posteriors:
            samples = (each.sample(index) for each in posteriors for index in range(len(each)))
            found = [predict(each, run.normalize, part.images) for each in samples]
            predictions[f"{name}.samples"] = torch.stack(found)
    return predictions


def read_predictions(folder: Path) -> dict[str, Tensor]:
    """Return what :func:`predict_parts` found in a finished run.

    Raises:
        CheckpointError: If the file is missing or cannot be read.
    """
    path = folder / PREDICTIONS
    try:
        return read_tensors_file(path, CheckpointError)
    except CheckpointError as error:
        hint = f"Delete {folder / RESULT} and continue the run, which predicts again."
        raise CheckpointError(*error.args, hint) from error


def average_samples(predictions: Mapping[str, Tensor], part: str) -> dict[str, Tensor]:
    """Return the probabilities of a part by kind: ``"point"`` and, where there are samples, their ``"average"``."""
    kinds = {"point": predictions[f"{part}.point"]}
    if f"{part}.samples" in predictions:
        kinds["average"] = predictions[f"{part}.samples"].mean(dim=0)
    return kinds


def describe(predictions: Mapping[str, Tensor], parts: Mapping[str, Part]) -> dict[str, Any]:
    """Return the metrics of every part with labels, and of telling foreign images from test images, by kind."""
    found: dict[str, Any] = {
        name: {
            kind: describe_classifier(each, part.labels) for kind, each in average_samples(predictions, name).items()
        }
        for name, part in parts.items()
        if part.labels is not None
    }
    foreign = average_samples(predictions, FOREIGN)
    found[FOREIGN] = {
        kind: {"entropy": asdict(detection(entropy(own), entropy(foreign[kind])))}
        for kind, own in average_samples(predictions, "test").items()
    }
    if "test.samples" in predictions:
        spread = [mutual_information(predictions[f"{name}.samples"]) for name in ("test", FOREIGN)]
        found[FOREIGN]["average"]["mutual_information"] = asdict(detection(*spread))
    return found


def load_images(dataset: str, data_dir: Path | None) -> tuple[Images, Tensor]:
    """Return the images of a data set, and the test images of the other one, which are foreign to it."""
    other = LOADERS[OTHER[dataset]](data_dir)
    return LOADERS[dataset](data_dir), other.x_test
