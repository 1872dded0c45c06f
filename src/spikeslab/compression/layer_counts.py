"""Weights and non-zeros of each layer, and the bytes of a model in each format."""

from __future__ import annotations

import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from safetensors.torch import save
from torch import Tensor

from spikeslab.compression.sparse_format import VALUES, encode, same_memory
from spikeslab.errors import quote

DENSE, ZIPPED = "dense", "dense, zipped"
COMPACTED = "compacted"


@dataclass(frozen=True)
class LayerCount:
    """A parameter of two or more dimensions.

    Attributes:
        name: Its name.
        shape: Its shape.
        sparse: Whether it is one of the sparse layers.
        nonzeros: Weights that are not zero.
        empty_channels: Rows of the first dimension with nothing but zeros.
        positions: Where each weight is multiplied, in one example; ``None`` if that is not known.
    """

    name: str
    shape: tuple[int, ...]
    sparse: bool
    nonzeros: int
    empty_channels: int
    positions: int | None = None

    @property
    def weights(self) -> int:
        """Weights in all."""
        return torch.Size(self.shape).numel()

    @property
    def macs(self) -> int | None:
        """Multiply-adds of one example."""
        return None if self.positions is None else self.positions * self.weights

    @property
    def nonzero_macs(self) -> int | None:
        """Multiply-adds of one example if zeros are skipped."""
        return None if self.positions is None else self.positions * self.nonzeros


def count_layers(
    parameters: Mapping[str, Tensor], sparse: Sequence[str] | None = None, positions: Mapping[str, int] | None = None
) -> tuple[LayerCount, ...]:
    """Count the parameters of two or more dimensions.

    Args:
        parameters: Tensors by name; those of fewer dimensions are passed over.
        sparse: Names of the sparse layers; every one with a zero if not given.
        positions: What :func:`~spikeslab.compression.macs.count_positions` found.
    """
    layers = {name: tensor for name, tensor in parameters.items() if tensor.ndim >= 2}
    unknown = [name for name in sparse or () if name not in layers]
    if unknown:
        raise ValueError(f"weights must be names of weight matrices of the model, but got {quote(unknown)}.")
    counts = []
    for name, tensor in layers.items():
        nonzeros = int(tensor.count_nonzero())
        rows = int((tensor.flatten(1) != 0).any(dim=1).sum())
        chosen = nonzeros < tensor.numel() if sparse is None else name in sparse
        place = (positions or {}).get(name)
        counts.append(LayerCount(name, tuple(tensor.shape), chosen, nonzeros, len(tensor) - rows, place))
    return tuple(counts)


def unshared(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The tensors without those that are an earlier one under another name."""
    first: dict[object, str] = {}
    return {name: t for name, t in tensors.items() if first.setdefault(same_memory(name, t), name) == name}


def file_sizes(tensors: Mapping[str, Tensor], dense: Mapping[str, Tensor]) -> dict[str, int]:
    """Bytes of the dense safetensors file, plain and zipped, and of the sparse file with each kind of values."""
    content = dense_content(dense)
    sizes = {DENSE: len(content), ZIPPED: len(zlib.compress(content, 9))}
    return sizes | {f"sparse {values}": len(encode(tensors, values)) for values in VALUES}


def compacted_sizes(tensors: Mapping[str, Tensor]) -> dict[str, int]:
    """Bytes of the safetensors file of a compacted network, and of its sparse file without loss."""
    return {COMPACTED: len(dense_content(tensors)), f"{COMPACTED}, sparse fp32": len(encode(tensors, "fp32"))}


def dense_content(tensors: Mapping[str, Tensor]) -> bytes:
    """An ordinary safetensors file; tensors that share their memory are in it once."""
    return save({name: tensor.detach().contiguous() for name, tensor in unshared(tensors).items()})
