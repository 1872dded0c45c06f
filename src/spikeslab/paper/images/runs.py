"""Run of one method on MNIST or Fashion-MNIST, from the first step to predictions of the test images (section 5.2).

A run is made of independent chains of a sampler, or networks of an optimizer, each trained for the same number of
epochs in a folder of its own. Vanilla and Dropout are trained networks, SWA averages weights, and pSGLD, SGHMC and
SGHMC-SA average the predictions of samples. SGHMC-SA adapts the spike-and-slab prior of the first fully connected
layer. 5,000 training images are held out for all choices. The test images are predicted once, after the last step, and
so are foreign images, of which the network should be unsure.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.optim import Adam, Optimizer

from spikeslab.diagnostics import write_report
from spikeslab.errors import SpikeSlabWarning, check_choice
from spikeslab.files import read_record, write_atomically, write_record
from spikeslab.metrics import detection, entropy, mutual_information
from spikeslab.paper._runs import RESULT, check_settings, read_result, write_result
from spikeslab.paper.images.augmentation import NORMALIZE, PLAIN, STANDARDISE, Augment, Normalize
from spikeslab.paper.images.data import LOADERS, Images
from spikeslab.paper.images.networks import CNN, BatchNormCNN
from spikeslab.paper.images.presets import ImagePreset
from spikeslab.paper.images.references import LastLayerLaplace, Network, predict_mc_dropout
from spikeslab.posterior import Chains, Posterior, recalibrate
from spikeslab.posterior.eval_mode import eval_mode
from spikeslab.priors import SpikeSlab
from spikeslab.samplers import PSGLD, SGHMC
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
from spikeslab.training.run_folder import POSTERIOR
from spikeslab.weights import select_weights

OPTIMIZERS, SAMPLERS = ("vanilla", "dropout", "swa"), ("psgld", "sghmc", "sghmc-sa")
METHODS = OPTIMIZERS + SAMPLERS
HELD_OUT = 5000
OTHER = {"mnist": "fashion", "fashion": "mnist"}
HELD = "held_out"
LAYER = "fc1.weight"
"""Weights with the prior."""
NETWORK, RHO, CHAIN, PREDICTIONS = "network.safetensors", "rho.safetensors", "chain.json", "predictions.safetensors"
POINT, AVERAGE, ENSEMBLE, MC, LAPLACE, SPARSE = "point", "average", "ensemble", "mc", "laplace", "sparse"


@dataclass(frozen=True)
class ImageRun:
    """Run of one method with one seed: ``preset.chains`` chains or networks of ``preset.epochs`` epochs each.

    Augmented images have the network with batch normalisation. Without ``held_out`` training images nothing is
    evaluated before the end. ``precision`` is that of the loss in training; predictions are made in float32.
    """

    dataset: str
    method: str
    preset: ImagePreset
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
        """Name of the folder, with chains x epochs."""
        images = "-augmented" if self.augment else ""
        length = f"{self.preset.chains}x{self.preset.epochs}"
        return f"{self.method}-{self.preset.name}{images}-{length}-seed{self.seed}"

    def folder(self, out: Path) -> Path:
        """Return the folder below ``out``."""
        return out / self.name

    @property
    def normalize(self) -> Normalize:
        """Transform from bytes to the numbers that the network sees."""
        if self.preset.standardised:
            return STANDARDISE[self.dataset]
        return NORMALIZE[self.dataset] if self.augment else PLAIN

    def split(self, folder: Path) -> list[tuple[ImageRun, Path]]:
        """Return each chain as a run of its own, with its seed and its folder."""
        count, one = self.preset.chains, replace(self.preset, chains=1)
        return [
            (replace(self, preset=one, seed=count * self.seed + index), folder / f"chain-{index}")
            for index in range(count)
        ]

    def record(self) -> dict[str, Any]:
        """Return all that decides one chain; of the preset, what this method uses."""
        own = {name: value for name, value in vars(self).items() if name != "preset"}
        return own | {"preset": self.preset.name} | self.preset.record(self.method, augment=self.augment)

    def record_all(self) -> dict[str, Any]:
        """Return all that decides the result of all chains."""
        laplace = {"laplace_precision": self.preset.laplace_precision} if self.method == "vanilla" else {}
        return self.record() | {"chains": self.preset.chains} | laplace


class ImageNetwork(NamedTuple):
    """Network in training, with its optimizer and, for samplers and SWA, its posterior."""

    model: Network
    optimizer: Optimizer
    posterior: Posterior | None


class FinishedChain(NamedTuple):
    """Network of a finished chain and, for samplers, its samples; with a prior, the rho of its weights."""

    model: Network
    posterior: Posterior | None
    rho: Tensor | None


class Part(NamedTuple):
    """Images in bytes that are predicted after the last step; foreign images have no labels."""

    images: Tensor
    labels: Tensor | None = None


class PriorTrace(Callback):
    """Logs the share of the weights in the slab and the means of kappa0 and kappa1."""

    def __init__(self, prior: SpikeSlab) -> None:
        self.prior = prior

    def metrics(self) -> dict[str, Any]:
        """Return the numbers of the moment."""
        return {"prior": describe_prior(self.prior)}


def describe_prior(prior: SpikeSlab) -> dict[str, float]:
    """Return the share of weights with rho above 1/2, delta, and the means of kappa0 and kappa1."""
    kappa0, kappa1 = prior.kappa[LAYER]
    slab = float((prior.rho[LAYER] > 0.5).double().mean())
    means = {"kappa0": float(kappa0.mean()), "kappa1": float(kappa1.mean())}
    return {"slab": slab, "delta": prior.delta[LAYER], **means}


def build(run: ImageRun, num_data: int, folder: Path | None) -> ImageNetwork:
    """Return the network of a chain before its first step."""
    torch.manual_seed(run.seed)
    model, preset = _model(run), run.preset
    if run.method in ("vanilla", "dropout") and preset.adam_lr is not None:
        return ImageNetwork(model, Adam(model.parameters(), lr=preset.adam_lr), None)
    per_epoch = num_data // min(preset.batch_size, num_data)
    steps = preset.epochs * per_epoch
    shared: dict[str, Any] = {
        "lr": preset.learning_rate(run.method, steps, per_epoch),
        "num_data": preset.num_data or num_data,
        "weight_decay": preset.weight_decay,
        "seed": run.seed,
    }
    sampler: PSGLD | SGHMC
    if run.method == "psgld":
        sampler = PSGLD(model.parameters(), temperature=preset.psgld_temperature, **shared)
    else:
        temperature = {"sghmc": preset.plain_temperature, "sghmc-sa": preset.temperature}.get(run.method, 0.0)
        prior = _prior(run, model, shared["num_data"], steps)
        sampler = SGHMC(model.parameters(), momentum=0.9, temperature=temperature, prior=prior, **shared)
    if run.method in ("vanilla", "dropout"):
        return ImageNetwork(model, sampler, None)
    burn_in, thin = preset.thinning(run.method, steps, per_epoch)
    directory = None if folder is None else folder / POSTERIOR
    posterior = Posterior(model, burn_in, thin, sampler=sampler, directory=directory, exist_ok=True)
    return ImageNetwork(model, sampler, posterior)


def _prior(run: ImageRun, model: nn.Module, num_data: int, steps: int) -> SpikeSlab | None:
    adaptive = run.method == "sghmc-sa"
    if not adaptive and not (run.method == "sghmc" and run.preset.frozen_prior):
        return None
    weights = select_weights(model, LAYER)
    size = sum(weight.numel() for weight in weights.values())
    with warnings.catch_warnings():  # the paper's spike is wider than its slab, as the docs say
        warnings.simplefilter("ignore", SpikeSlabWarning)
        return SpikeSlab(weights, **run.preset.prior(adaptive, size, num_data, steps))


def _model(run: ImageRun) -> Network:
    dropout = 0.5 if run.method == "dropout" else 0.0
    pools = (0.1, 0.3) if run.preset.pool_dropout else (0.0, 0.0)
    model: Network = BatchNormCNN(pools, hidden_dropout=dropout) if run.augment else CNN(dropout)
    return model.to(memory_format=torch.channels_last)  # type: ignore[call-overload, no-any-return]


def train(
    run: ImageRun, folder: Path, data: Images, *, command: str = "", checkpoint_every: Every | None = None
) -> None:
    """Train one chain in its folder to the last step, or continue it; the test images are not used.

    A finished chain leaves ``network.safetensors``, its last weights or SWA's average, and ``chain.json``.
    """
    if _is_finished(run, folder):
        return
    x, y, x_held, y_held = data.hold_out(run.held_out)
    network = build(run, len(y), folder)
    transform = _augmentation(run) if run.augment else run.normalize
    batches = TensorBatches(x, y, batch_size=run.preset.batch_size, seed=run.seed, transform=transform)

    def evaluate() -> dict[str, Any]:
        return describe_classifier(predict(network.model, run.normalize, x_held), y_held)

    callbacks: list[Callback] = [Evaluate(evaluate)] if run.held_out else []
    if network.posterior is not None:
        callbacks.append(Collect(network.posterior))
    prior = getattr(network.optimizer, "prior", None)
    if isinstance(prior, SpikeSlab):
        callbacks.append(PriorTrace(prior))
    callbacks.append(ShowProgress(f"{run.dataset} {run.method} {run.seed}"))
    training = Training(
        network.model, network.optimizer, batches, cross_entropy, callbacks=callbacks, precision=run.precision
    )
    place = RunFolder(
        folder,
        resume=True,
        settings=run.record(),
        seed=run.seed,
        command=command,
        checkpoint_every=checkpoint_every or Every(seconds=60),
        write_report=write_report,
    )
    training.run(epochs=run.preset.epochs, folder=place)
    model: nn.Module = network.model
    if run.method == "swa" and network.posterior is not None:
        model = network.posterior.mean_model()
        recalibrate(model, (batch for batch, _ in batches))
    write_atomically(
        folder / NETWORK, encode_tensors({name: each.contiguous() for name, each in model.state_dict().items()})
    )
    found: dict[str, Any] = {"seconds": training.seconds, "threads": torch.get_num_threads()}
    if isinstance(prior, SpikeSlab):
        found["prior"] = describe_prior(prior)
        write_atomically(folder / RHO, encode_tensors({LAYER: prior.rho[LAYER].contiguous()}))
    write_record(folder / CHAIN, {"settings": run.record(), **found})


def _is_finished(run: ImageRun, folder: Path) -> bool:
    if not (folder / CHAIN).exists():
        return False
    check_settings(folder, read_record(folder / CHAIN, CheckpointError)["settings"], run.record())
    return True


def _augmentation(run: ImageRun) -> Augment:
    preset = run.preset
    return Augment(run.dataset, preset.erasing, preset.crop, preset.rotation, run.normalize)


def read_chain(run: ImageRun, folder: Path) -> FinishedChain:
    """Return the network of a finished chain and its samples; nothing is written."""
    model = _model(run)
    model.load_state_dict(read_tensors_file(folder / NETWORK, CheckpointError))
    posterior = Posterior.load(folder / POSTERIOR, _model(run)) if run.method in SAMPLERS else None
    rho = read_tensors_file(folder / RHO, CheckpointError)[LAYER] if run.method == "sghmc-sa" else None
    return FinishedChain(model, posterior, rho)


def read_network(run: ImageRun, folder: Path) -> tuple[Network, Chains | None]:
    """Return the first network of a finished run and, for samplers, the samples of all chains."""
    chains = [read_chain(chain, place) for chain, place in run.split(folder)]
    posteriors = [chain.posterior for chain in chains if chain.posterior is not None]
    return chains[0].model, Chains(posteriors) if posteriors else None


def read_run(run: ImageRun, folder: Path) -> dict[str, Any] | None:
    """Return what a finished run found, or ``None`` if it has not finished; raise if it has other settings."""
    result = read_result(folder)
    if result is not None:
        check_settings(folder, result["settings"], run.record_all())
    return result


def run_images(run: ImageRun, out: Path, data: Images, foreign: Mapping[str, Tensor], **options: Any) -> dict[str, Any]:
    """Do a run in its folder below ``out``, one chain after another, or continue it; a finished run is read.

    ``options`` are those of :func:`train`. Returns what :func:`finish` returns.
    """
    for chain, place in run.split(run.folder(out)):
        train(chain, place, data, **options)
    return finish(run, out, data, foreign)


def finish(run: ImageRun, out: Path, data: Images, foreign: Mapping[str, Tensor]) -> dict[str, Any]:
    """Predict with the finished chains of a run, and write and return the content of ``result.json``.

    It has the metrics of every kind of prediction on the held-out and the test images, how well these tell each set of
    ``foreign`` images apart, the seconds and threads of each chain, and the prior at the end.
    """
    folder = run.folder(out)
    found = read_run(run, folder)
    if found is not None:
        return found
    places = [place for _, place in run.split(folder)]
    chains = [read_chain(chain, place) for chain, place in run.split(folder)]
    x, y, x_held, y_held = data.hold_out(run.held_out)
    parts = {
        **({HELD: Part(x_held, y_held)} if run.held_out else {}),
        "test": Part(data.x_test, data.y_test),
        **{name: Part(images) for name, images in foreign.items()},
    }
    predictions = predict_parts(run, chains, parts)
    precisions = []
    if run.method == "vanilla":
        for index, chain in enumerate(chains):
            laplace = LastLayerLaplace(chain.model, run.normalize, x, y)
            precisions.append(run.preset.laplace_precision or laplace.choose_precision(x_held, y_held))
            for name, part in parts.items():
                each = laplace.predict(part.images, precisions[-1], seed=index)
                predictions[f"{name}.{LAPLACE}"] = _append(predictions.get(f"{name}.{LAPLACE}"), each)
    write_atomically(folder / PREDICTIONS, encode_tensors(predictions))
    records = [read_record(place / CHAIN, CheckpointError) for place in places]
    return write_result(
        folder,
        {
            "settings": run.record_all(),
            "samples": sum(len(chain.posterior) for chain in chains if chain.posterior is not None),
            "seconds": [record["seconds"] for record in records],
            "threads": [record["threads"] for record in records],
            "prior": [record["prior"] for record in records] if run.method == "sghmc-sa" else [],
            "laplace_precision": precisions,
            **describe(predictions, parts),
        },
    )


def _append(stack: Tensor | None, each: Tensor) -> Tensor:
    return each[None] if stack is None else torch.cat([stack, each[None]])


@torch.no_grad()
def predict(model: nn.Module, normalize: Normalize, images: Tensor, batch_size: int = 250) -> Tensor:
    """Return the probabilities of images in bytes, in evaluation mode; none is 0, so that every log is finite."""
    with eval_mode(model):
        parts = [model(normalize(batch)).softmax(dim=1) for batch in images.split(batch_size)]
    probabilities = torch.cat(parts)
    return probabilities.clamp(min=torch.finfo(probabilities.dtype).tiny)


def predict_parts(run: ImageRun, chains: Sequence[FinishedChain], parts: Mapping[str, Part]) -> dict[str, Tensor]:
    """Return stacks of probabilities, named ``part.kind``.

    The kinds are ``point``, the network of each chain; ``samples``, all samples; ``mc``, the average over dropout masks
    of each network; and for images with labels ``sparse``, the average of the samples without the weights of ``fc1``
    whose rho ended at 1/2 or below.
    """
    predictions = {}
    for name, part in parts.items():
        points = [predict(chain.model, run.normalize, part.images) for chain in chains]
        predictions[f"{name}.{POINT}"] = torch.stack(points)
        if run.method == "dropout":
            masked = [predict_mc_dropout(chain.model, run.normalize, part.images, run.seed) for chain in chains]
            predictions[f"{name}.{MC}"] = torch.stack(masked)
        if run.method in SAMPLERS:
            predictions[f"{name}.samples"] = _predict_samples(run, chains, part.images)
        if run.method == "sghmc-sa" and part.labels is not None:
            predictions[f"{name}.{SPARSE}"] = _predict_samples(run, chains, part.images, sparse=True).mean(0)[None]
    return predictions


def _predict_samples(run: ImageRun, chains: Sequence[FinishedChain], images: Tensor, *, sparse: bool = False) -> Tensor:
    found = []
    for chain in chains:
        posterior = chain.posterior
        for index in range(0 if posterior is None else len(posterior)):
            assert posterior is not None
            model = posterior.sample(index)
            if sparse and chain.rho is not None:
                with torch.no_grad():
                    model.get_parameter(LAYER).mul_(chain.rho > 0.5)
            found.append(predict(model, run.normalize, images))
    return torch.stack(found)


def read_predictions(folder: Path) -> dict[str, Tensor]:
    """Return what :func:`finish` predicted in a finished run.

    Raises:
        CheckpointError: If the file is missing or cannot be read.
    """
    path = folder / PREDICTIONS
    try:
        return read_tensors_file(path, CheckpointError)
    except CheckpointError as error:
        hint = f"Delete {folder / RESULT} and continue the run, which predicts again."
        raise CheckpointError(*error.args, hint) from error


def stack_kinds(predictions: Mapping[str, Tensor], part: str) -> dict[str, Tensor]:
    """Return the probabilities of a part by kind, each of shape (predictors, images, classes).

    ``average`` is the mean over all samples of all chains, ``ensemble`` that over the networks of an optimizer.
    """
    kinds = {POINT: predictions[f"{part}.{POINT}"]}
    if f"{part}.samples" in predictions:
        kinds[AVERAGE] = predictions[f"{part}.samples"].mean(dim=0)[None]
    elif len(kinds[POINT]) > 1:
        kinds[ENSEMBLE] = kinds[POINT].mean(dim=0)[None]
    return kinds | {
        kind: predictions[f"{part}.{kind}"] for kind in (MC, LAPLACE, SPARSE) if f"{part}.{kind}" in predictions
    }


def stack_members(predictions: Mapping[str, Tensor], part: str) -> Tensor:
    """Return the probabilities whose spread is the mutual information: all samples, or all networks."""
    return predictions.get(f"{part}.samples", predictions[f"{part}.{POINT}"])


def describe(predictions: Mapping[str, Tensor], parts: Mapping[str, Part]) -> dict[str, Any]:
    """Return the metrics of every part with labels, and of telling foreign images from test images, by kind.

    A kind has a list: the metrics of each network, or those of one average.
    """
    found: dict[str, Any] = {
        name: {
            kind: [describe_classifier(each, part.labels) for each in stack]
            for kind, stack in stack_kinds(predictions, name).items()
        }
        for name, part in parts.items()
        if part.labels is not None
    }
    own, foreign = stack_kinds(predictions, "test"), {}
    for name, part in parts.items():
        if part.labels is None:
            others = stack_kinds(predictions, name)
            foreign[name] = {
                kind: [
                    {"entropy": asdict(detection(entropy(one), entropy(other)))}
                    for one, other in zip(own[kind], stack, strict=True)
                ]
                for kind, stack in others.items()
            }
            spread = [mutual_information(stack_members(predictions, each)) for each in ("test", name)]
            for kind in (AVERAGE, ENSEMBLE):
                if kind in others:
                    foreign[name][kind][0]["mutual_information"] = asdict(detection(*spread))
    return found | {"foreign": foreign}


@lru_cache(maxsize=4)
def _load(loader: Any, data_dir: Path | None) -> Images:
    images: Images = loader(data_dir)
    return images


def load_images(dataset: str, data_dir: Path | None) -> Images:
    """Return the images of a data set; those loaded last are kept in memory."""
    return _load(LOADERS[dataset], data_dir)


def load_foreign(names: Sequence[str], data_dir: Path | None) -> dict[str, Tensor]:
    """Return the test images of other data sets by name; colour images become grey, 28 x 28 pixels."""
    return {name: to_grey(load_images(name, data_dir).x_test) for name in names}


def to_grey(images: Tensor) -> Tensor:
    """Return images in bytes as grey ones of 28 x 28 pixels, by luma and antialiased bilinear interpolation."""
    if images.shape[1] == 3:
        images = (images.float() * torch.tensor([0.299, 0.587, 0.114]).view(1, 3, 1, 1)).sum(dim=1, keepdim=True)
    if images.shape[2:] != (28, 28):
        images = F.interpolate(images.float(), (28, 28), mode="bilinear", antialias=True)
    return images if images.dtype == torch.uint8 else images.round().clamp(0, 255).to(torch.uint8)
