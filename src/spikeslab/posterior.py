"""Samples of a network's weights, and what they predict together."""

from __future__ import annotations

import copy
import json
import os
import warnings
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from spikeslab.errors import SpikeSlabWarning, check_choice, check_count, quoted
from spikeslab.likelihoods import GaussianLikelihood
from spikeslab.samplers.base import Sampler

INDEX = "posterior.json"
VERSION = 1


@dataclass(frozen=True)
class Prediction:
    """A predictive mean and its variance, split by the law of total variance.

    Attributes:
        mean: Mean over the samples, of probabilities or of regression means.
        aleatoric: Mean over the samples of the variance that each predicts: the noise of the data.
        epistemic: Variance over the samples of what they predict: what more data would remove.
    """

    mean: Tensor
    aleatoric: Tensor
    epistemic: Tensor

    @property
    def variance(self) -> Tensor:
        """Total predictive variance."""
        return self.aleatoric + self.epistemic


def probabilities(outputs: Tensor) -> Tensor:
    """Softmax over dimension 1, the classes of ``F.cross_entropy``; right for logits and for log-probabilities."""
    return outputs.softmax(dim=1)


class Posterior:
    """Collects samples along a chain and averages their predictions.

    Predictions are averaged after the link (probabilities, not logits). Every sample keeps its own buffers, so batch
    normalisation uses the statistics that belong to its weights.

    >>> model = nn.Linear(2, 3)
    >>> posterior = Posterior(model, burn_in=1, thin=2)
    >>> for _ in range(5):
    ...     _ = posterior.collect()
    >>> len(posterior), posterior.predict(torch.zeros(4, 2)).shape
    (2, torch.Size([4, 3]))

    Args:
        model: The model that the sampler moves.
        burn_in: Steps before the first sample.
        thin: Steps between two samples; the first is at step ``burn_in + thin``.
        weights: ``"uniform"``, or ``"epsilon"`` for samples weighted by the step size at which they were taken
            (Welling and Teh), for a decreasing lr; the latter needs ``sampler``.
        likelihood: The likelihood of a regression: outputs are then means, and its sigma is kept with each sample.
        link: From the model's outputs to what is averaged; by default a softmax over dimension 1, or the outputs
            themselves where there is a likelihood.
        sampler: Where given, its steps are counted instead of the calls of :meth:`collect`.
        directory: Where given, samples live in this folder instead of in memory.
        max_samples: Where given, the oldest sample is dropped once there are more.
    """

    def __init__(
        self,
        model: nn.Module,
        burn_in: int = 0,
        thin: int = 1,
        *,
        weights: str = "uniform",
        likelihood: GaussianLikelihood | None = None,
        link: Callable[[Tensor], Tensor] | None = None,
        sampler: Sampler | None = None,
        directory: str | os.PathLike[str] | None = None,
        max_samples: int | None = None,
    ) -> None:
        self.model = model
        self.burn_in = check_count("burn_in", burn_in, minimum=0)
        self.thin = check_count("thin", thin)
        self.weighting = check_choice("weights", weights, ("uniform", "epsilon"))
        if weights == "epsilon" and sampler is None:
            raise ValueError("sampler must be given where weights='epsilon', but got None.")
        self.max_samples = None if max_samples is None else check_count("max_samples", max_samples)
        self.steps = 0
        self._likelihood = likelihood
        self._link = link or (probabilities if likelihood is None else lambda outputs: outputs)
        self._sampler = sampler
        self._entries: list[dict[str, Any]] = []
        self._memory: list[dict[str, Tensor]] = []
        self._directory = None if directory is None else Path(directory)
        if self._directory is not None:
            if (self._directory / INDEX).exists():
                raise FileExistsError(
                    f"directory must not hold a posterior yet, but {self._directory} does: load it with "
                    "Posterior.load, or choose another."
                )
            self._directory.mkdir(parents=True, exist_ok=True)
            self._write_index(self._directory)

    def __len__(self) -> int:
        return len(self._entries)

    @property
    def weights(self) -> Tensor:
        """Weight of each sample, summing to 1."""
        raw = torch.tensor([entry["weight"] for entry in self._entries], dtype=torch.float64)
        return raw / raw.sum()

    def collect(self) -> bool:
        """Count a step, and keep the model's weights and buffers if this step's turn has come.

        Returns:
            Whether a sample was kept.
        """
        step = self.steps + 1 if self._sampler is None else self._sampler.steps
        if step == self.steps:  # a GradScaler skipped the sampler's step
            return False
        self.steps = step
        if step <= self.burn_in or (step - self.burn_in) % self.thin:
            return False
        weight = 1.0
        if self.weighting == "epsilon" and self._sampler is not None:
            weight = float(self._sampler.param_groups[0]["lr"])
        entry = {"step": step, "weight": weight, "file": f"sample-{step:09d}.safetensors"}
        if self._likelihood is not None:
            entry["sigma"] = self._likelihood.sigma
        self._append(entry, _snapshot(self.model))
        return True

    def _append(self, entry: dict[str, Any], tensors: dict[str, Tensor]) -> None:
        self._entries.append(entry)
        if self._directory is None:
            self._memory.append(tensors)
        else:
            _write_tensors(tensors, self._directory / entry["file"])
        if self.max_samples is not None and len(self._entries) > self.max_samples:
            oldest = self._entries.pop(0)
            if self._directory is None:
                self._memory.pop(0)
            else:
                self._write_index(self._directory)
                (self._directory / oldest["file"]).unlink()
        elif self._directory is not None:
            self._write_index(self._directory)

    def tensors(self, index: int) -> dict[str, Tensor]:
        """Parameters and buffers of sample ``index``, by name."""
        if not -len(self) <= index < len(self):
            raise IndexError(f"index must be that of one of {len(self)} samples, but got {index}.")
        if self._directory is None:
            return self._memory[index]
        return _read_tensors(self._directory / self._entries[index]["file"])

    def sample(self, index: int) -> nn.Module:
        """A copy of the model with the weights and buffers of sample ``index``."""
        return self._with_tensors(self.tensors(index))

    @torch.no_grad()
    def mean_model(self) -> nn.Module:
        """A copy of the model with the weighted mean of all parameters and floating-point buffers.

        The mean of samples whose zeros differ is less sparse than they are: freeze the mask before collecting, or
        prune the mean again. Where the model has batch normalisation, recalibrate the mean on training data with
        :func:`recalibrate`. A warning says when zeros differ.
        """
        self._check_not_empty()
        mean = {name: torch.zeros_like(t, dtype=torch.float64) for name, t in self.tensors(0).items()}
        alive: dict[str, Tensor] = {}
        fewest_zeros = None
        for index, weight in enumerate(self.weights.tolist()):
            zeros = 0
            for name, tensor in self.tensors(index).items():
                mean[name].add_(tensor, alpha=weight)
                alive[name] = alive[name] | (tensor != 0) if name in alive else tensor != 0
                zeros += int((tensor == 0).sum())
            fewest_zeros = zeros if fewest_zeros is None else min(fewest_zeros, zeros)
        common = sum(int((~mask).sum()) for mask in alive.values())
        if fewest_zeros is not None and common < fewest_zeros:
            warnings.warn(
                f"the samples have different zeros, so their mean has {common} where each sample has at least "
                f"{fewest_zeros}: freeze the mask before collecting, or prune the mean again and recalibrate it.",
                SpikeSlabWarning,
                stacklevel=2,
            )
        last = self.tensors(-1)
        return self._with_tensors(
            {n: v.to(last[n].dtype) if last[n].is_floating_point() else last[n] for n, v in mean.items()}
        )

    def _with_tensors(self, tensors: dict[str, Tensor]) -> nn.Module:
        model = copy.deepcopy(self.model)
        model.zero_grad()
        with torch.no_grad():
            for name, own in _named_tensors(model):
                own.copy_(tensors[name])
        return model

    def predict(self, *inputs: Any, batch_size: int | None = None) -> Tensor:
        """Mean over the samples of the probabilities, or of the regression means.

        Args:
            *inputs: Arguments of the model, batched along their first dimension.
            batch_size: Where given, tensors are split into batches of this size to bound memory.
        """
        return self.predictive(*inputs, batch_size=batch_size).mean

    @torch.no_grad()
    def predictive(self, *inputs: Any, batch_size: int | None = None) -> Prediction:
        """Mean and variance of the prediction, split into aleatoric and epistemic; arguments as in :meth:`predict`.

        For classification the variance is that of each class's indicator, and sums to ``mean * (1 - mean)``.
        """
        self._check_not_empty()
        mean: Tensor | None = None
        square = aleatoric = torch.zeros(())
        for index, weight in enumerate(self.weights.tolist()):
            value = self._link(self._forward(index, inputs, batch_size))
            if mean is None:
                mean, square, aleatoric = (torch.zeros_like(value) for _ in range(3))
            # Welford's update keeps a small epistemic variance from cancelling.
            total = float(self.weights[: index + 1].sum())
            change = value - mean
            mean = mean + change * (weight / total)
            square = square + weight * change * (value - mean)
            sigma = self._entries[index].get("sigma")
            noise = value * (1.0 - value) if sigma is None else torch.full_like(value, sigma**2)
            aleatoric = aleatoric + weight * noise
        if mean is None:  # unreachable: there is at least one sample
            raise RuntimeError("the posterior is empty.")
        return Prediction(mean, aleatoric, square)

    def outputs(self, *inputs: Any, batch_size: int | None = None) -> Iterator[Tensor]:
        """What each sample predicts, after the link, one at a time; arguments as in :meth:`predict`."""
        self._check_not_empty()
        for index in range(len(self)):
            with torch.no_grad():
                yield self._link(self._forward(index, inputs, batch_size))

    def _forward(self, index: int, inputs: tuple[Any, ...], batch_size: int | None) -> Tensor:
        device = next(self.model.parameters()).device
        tensors = {name: tensor.to(device) for name, tensor in self.tensors(index).items()}
        training = {module: module.training for module in self.model.modules()}
        self.model.eval()
        try:
            return torch.cat(
                [torch.func.functional_call(self.model, tensors, batch) for batch in _batches(inputs, batch_size)]
            )
        finally:
            for module, mode in training.items():
                module.training = mode

    def recalibrate(self, batches: Iterable[Any]) -> None:
        """Replace each sample's batch-normalisation statistics by averages over ``batches`` of inputs.

        Args:
            batches: A list or loader (it is run through once for each sample) of inputs, or of tuples whose first
                entry is the input.
        """
        self._check_not_empty()
        for index in range(len(self)):
            model = self.sample(index)
            recalibrate(model, batches)
            if self._directory is None:
                self._memory[index] = _snapshot(model)
            else:
                _write_tensors(_snapshot(model), self._directory / self._entries[index]["file"])

    def save(self, directory: str | os.PathLike[str]) -> None:
        """Write all samples to a new folder: one safetensors file each, and an index in JSON."""
        target = Path(directory)
        if (target / INDEX).exists():
            raise FileExistsError(f"directory must not hold a posterior yet, but {target} does: choose another.")
        target.mkdir(parents=True, exist_ok=True)
        for index, entry in enumerate(self._entries):
            _write_tensors(self.tensors(index), target / entry["file"])
        self._write_index(target)

    @classmethod
    def load(cls, directory: str | os.PathLike[str], model: nn.Module, **options: Any) -> Posterior:
        """Read a folder written by :meth:`save` or by a posterior on disk; the samples stay on disk.

        Args:
            directory: The folder.
            model: A model with the same parameters and buffers.
            **options: Arguments of the constructor that are code, such as ``link``, ``likelihood`` or ``sampler``.
        """
        source = Path(directory)
        if not (source / INDEX).is_file():
            raise FileNotFoundError(f"directory must hold a posterior ({INDEX}), but {source} does not.")
        try:
            index = json.loads((source / INDEX).read_text())
        except ValueError as error:
            raise ValueError(f"{source / INDEX} must be a readable index, but got: {error}.") from error
        if index.get("version") != VERSION:
            raise ValueError(f"{source / INDEX} must be of version {VERSION}, but got {index.get('version')!r}.")
        own = {name: list(tensor.shape) for name, tensor in _named_tensors(model)}
        if index["shapes"] != own:
            odd = [n for n in {**index["shapes"], **own} if index["shapes"].get(n) != own.get(n)]
            raise ValueError(
                f"model must have the tensors that {source} was saved with, but it differs in {quoted(odd)}."
            )
        weighting = index["weights"] if "sampler" in options else "uniform"
        posterior = cls(model, index["burn_in"], index["thin"], weights=weighting, **options)
        posterior.weighting = index["weights"]
        posterior._entries = index["samples"]
        posterior.steps = index["steps"]
        posterior._directory = source
        return posterior

    def _write_index(self, directory: Path) -> None:
        index = {
            "version": VERSION,
            "burn_in": self.burn_in,
            "thin": self.thin,
            "weights": self.weighting,
            "steps": self.steps,
            "shapes": {name: list(tensor.shape) for name, tensor in _named_tensors(self.model)},
            "samples": self._entries,
        }
        temporary = directory / f"{INDEX}.tmp"
        temporary.write_text(json.dumps(index, indent=1))
        temporary.replace(directory / INDEX)

    def _check_not_empty(self) -> None:
        if not self._entries:
            raise RuntimeError(
                f"the posterior must hold a sample, but got none in {self.steps} steps: the first is taken at step "
                f"burn_in + thin = {self.burn_in + self.thin}."
            )


@torch.no_grad()
def recalibrate(model: nn.Module, batches: Iterable[Any]) -> None:
    """Re-estimate the statistics of batch normalisation as plain averages over ``batches``, for the present weights."""
    norms = [
        module
        for module in model.modules()
        if isinstance(module, nn.modules.batchnorm._BatchNorm) and module.track_running_stats
    ]
    modes = {module: module.training for module in model.modules()}
    momenta = [norm.momentum for norm in norms]
    model.eval()
    for norm in norms:
        norm.reset_running_stats()
        norm.momentum = None  # None is a cumulative average in torch
        norm.train()
    try:
        for batch in batches:
            model(batch[0] if isinstance(batch, (tuple, list)) else batch)
    finally:
        for norm, momentum in zip(norms, momenta, strict=True):
            norm.momentum = momentum
        for module, mode in modes.items():
            module.training = mode


def _named_tensors(model: nn.Module) -> Iterator[tuple[str, Tensor]]:
    """Parameters and buffers, a shared one once."""
    yield from model.named_parameters()
    yield from model.named_buffers()


def _snapshot(model: nn.Module) -> dict[str, Tensor]:
    return {name: tensor.detach().to("cpu", copy=True).contiguous() for name, tensor in _named_tensors(model)}


def _batches(inputs: tuple[Any, ...], size: int | None) -> Iterator[tuple[Any, ...]]:
    if size is None:
        yield inputs
        return
    rows = next(len(item) for item in inputs if isinstance(item, Tensor))
    for start in range(0, rows, check_count("batch_size", size)):
        yield tuple(item[start : start + size] if isinstance(item, Tensor) else item for item in inputs)


def _write_tensors(tensors: dict[str, Tensor], path: Path) -> None:
    temporary = path.with_suffix(".tmp")
    save_file(tensors, temporary)
    temporary.replace(path)


def _read_tensors(path: Path) -> dict[str, Tensor]:
    try:
        return load_file(path)
    except (SafetensorError, OSError) as error:
        raise ValueError(f"{path} must be a readable sample, but got: {error}.") from error
