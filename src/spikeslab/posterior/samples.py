"""Storage of samples: in memory, or in a folder of safetensors files with an index in JSON."""

from __future__ import annotations

import json
import warnings
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, TypeAlias

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save
from torch import Tensor, nn

from spikeslab.errors import SpikeSlabWarning
from spikeslab.files import write_atomically

Tensors: TypeAlias = dict[str, Tensor]

INDEX = "posterior.json"
VERSION = 1


def named_tensors(model: nn.Module) -> Iterator[tuple[str, Tensor]]:
    """Yield parameters and buffers by name, a shared one once."""
    yield from model.named_parameters()
    yield from model.named_buffers()


def snapshot(model: nn.Module) -> Tensors:
    """Return copies of all parameters and buffers on the CPU."""
    return {name: tensor.detach().to("cpu", copy=True).contiguous() for name, tensor in named_tensors(model)}


class Samples(ABC):
    """Tensors of samples, by the step at which they were taken."""

    @abstractmethod
    def write(self, key: int, tensors: Tensors) -> None:
        """Keep a sample, or replace it."""

    @abstractmethod
    def read(self, key: int) -> Tensors:
        """Return a sample."""

    @abstractmethod
    def remove(self, key: int) -> None:
        """Delete a sample."""

    @abstractmethod
    def export(self, key: int) -> Tensors | Path:
        """Return a sample for a state: its tensors, or the file that holds them."""

    def adopt(self, key: int, source: Tensors | Path) -> None:
        """Keep a sample from :meth:`export` of any kind of storage."""
        self.write(key, load_file(source) if isinstance(source, Path) else source)

    def write_index(self, index: Callable[[], dict[str, Any]]) -> None:  # noqa: B027 - memory needs no index
        """Keep the description of the samples, given as a function because it grows with their number."""


class MemorySamples(Samples):
    """Samples in memory."""

    def __init__(self) -> None:
        self._tensors: dict[int, Tensors] = {}

    def write(self, key: int, tensors: Tensors) -> None:
        """Keep a sample, or replace it."""
        self._tensors[key] = tensors

    def read(self, key: int) -> Tensors:
        """Return a sample."""
        return self._tensors[key]

    def remove(self, key: int) -> None:
        """Delete a sample."""
        del self._tensors[key]

    def export(self, key: int) -> Tensors:
        """Return the tensors."""
        return self._tensors[key]


class DiskSamples(Samples):
    """Samples in a folder; every file is written under another name first, so that none is ever half written."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory

    @classmethod
    def create(cls, directory: Path, exist_ok: bool = False) -> DiskSamples:
        """Use a folder without a posterior, or with ``exist_ok`` also one that has samples already."""
        samples = cls(directory)
        if samples.exists() and not exist_ok:
            raise FileExistsError(
                f"{directory} holds a posterior already: load it with Posterior.load, or choose another directory."
            )
        directory.mkdir(parents=True, exist_ok=True)
        return samples

    def exists(self) -> bool:
        """Return True if the folder holds a posterior."""
        return (self.directory / INDEX).exists()

    def _path(self, key: int) -> Path:
        return self.directory / f"sample-{key:09d}.safetensors"

    def write(self, key: int, tensors: Tensors) -> None:
        """Keep a sample, or replace it."""
        write_atomically(self._path(key), save(tensors))

    def read(self, key: int) -> Tensors:
        """Return a sample."""
        try:
            return load_file(self._path(key))
        except (SafetensorError, OSError) as error:
            raise ValueError(f"{self._path(key)} must be a readable sample, but got: {error}.") from error

    def remove(self, key: int) -> None:
        """Delete a sample."""
        self._path(key).unlink(missing_ok=True)

    def export(self, key: int) -> Path:
        """Return the file."""
        return self._path(key)

    def write_index(self, index: Callable[[], dict[str, Any]]) -> None:
        """Write the description of the samples."""
        write_atomically(self.directory / INDEX, json.dumps({"version": VERSION, **index()}, indent=1).encode())

    def read_index(self) -> dict[str, Any]:
        """Read the description of the samples."""
        path = self.directory / INDEX
        if not path.is_file():
            raise FileNotFoundError(f"directory must hold a posterior ({INDEX}), but {self.directory} does not.")
        try:
            index: dict[str, Any] = json.loads(path.read_text())
        except ValueError as error:
            raise ValueError(f"{path} must be a readable index, but got: {error}.") from error
        if index.get("version") != VERSION:
            raise ValueError(f"{path} must be of version {VERSION}, but got {index.get('version')!r}.")
        return index


def mean_tensors(samples: Iterable[tuple[Tensors, float]], last: Tensors) -> Tensors:
    """Return the weighted mean of samples, computed in double precision; integer tensors are the last sample's.

    Warns if the samples have different zeros, since the mean then has fewer than each of them.

    Args:
        samples: Tensors by name, and the weight of each; the weights sum to 1.
        last: Tensors of the last sample.
    """
    mean = {name: torch.zeros_like(tensor, dtype=torch.float64) for name, tensor in last.items()}
    ever_alive = {name: torch.zeros_like(tensor, dtype=torch.bool) for name, tensor in last.items()}
    zeros = []
    for tensors, weight in samples:
        for name, tensor in tensors.items():
            mean[name].add_(tensor, alpha=weight)
            ever_alive[name] |= tensor != 0
        zeros.append(sum(int((tensor == 0).sum()) for tensor in tensors.values()))
    common = sum(int((~alive).sum()) for alive in ever_alive.values())
    if common < min(zeros):
        warnings.warn(
            f"The samples have different zeros: their mean has {common}, each sample at least {min(zeros)}. Freeze the "
            "mask before collecting, or prune the mean again and recalibrate it.",
            SpikeSlabWarning,
            stacklevel=4,  # who called mean_model, behind torch.no_grad's wrapper
        )
    return {
        name: mean[name].to(tensor.dtype) if tensor.is_floating_point() else tensor for name, tensor in last.items()
    }
