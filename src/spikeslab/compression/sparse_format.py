"""The format of a sparse file, "spikeslab-sparse" version 1: a compressed bit-mask and the values that are not zero.

The file is a safetensors file, so nothing in it is ever executed. Its tensors are streams of bytes (dtype U8). A stream
is as long as its content, or shorter and then raw LZMA2 with the filters of ``streams.FILTERS``:

- ``index``: JSON with ``bits`` (bits of the mask), ``counts`` (stored values of each dtype) and ``tensors``, a list in
  the order of the state_dict. An entry has the ``name`` of a tensor and either ``same``, the name of an earlier one
  whose memory it shares, or ``dtype``, ``shape``, ``stored`` (the dtype of its stored values) and, where zeros are left
  out, ``kept`` (how many values are stored).
- ``mask``: a bit for each element of every tensor with ``kept``; the first element is the highest bit. It is set where
  the stored bytes are not all zero, so that -0.0 is a value and comes back as -0.0.
- ``DTYPE.0``, ``DTYPE.1``, ...: the stored values of that dtype; byte k, little-endian, of each stands in ``DTYPE.k``.
  The scales of an int8 tensor, one for each row, stand in float32 in its place.

Mask and values follow the order of the list. The metadata has one key, ``spikeslab-sparse``: JSON with ``version``,
``values``, ``size`` (bytes of the index) and ``sha256``, the checksum of these three and of every stream.

``values="fp32"`` keeps every value in its own dtype, to the bit. ``"fp16"`` and ``"int8"`` round floating tensors of
two or more dimensions; biases and the statistics of normalisation stay exact. fp16 leaves a tensor alone in which a
value would overflow. int8 stores q in [-127, 127] with w = s q, where s = max |w| / 127 over each row of the first
dimension, so that |w - s q| <= s/2. Small weights may become zero in both.
"""

from __future__ import annotations

import hashlib
import json
from collections import defaultdict
from collections.abc import Mapping
from lzma import LZMAError
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors import SafetensorError
from safetensors.torch import load, save
from torch import Tensor

from spikeslab.compression.streams import (
    Bytes,
    bits,
    elements,
    expand,
    from_bits,
    from_planes,
    planes,
    squeeze,
    tensor_of,
)
from spikeslab.errors import check_choice

FORMAT, VERSION = "spikeslab-sparse", 1
VALUES = ("fp32", "fp16", "int8")
SCALES = "float32"
LEVELS = 127


def encode(tensors: Mapping[str, Tensor], values: str = "fp32") -> bytes:
    """The content of the file; a tensor that holds NaN or is not dense is refused."""
    check_choice("values", values, VALUES)
    listed: list[dict[str, Any]] = []
    masks: list[NDArray[np.bool_]] = []
    rows = defaultdict[str, list[Bytes]](list)
    seen: dict[object, str] = {}
    for name, tensor in tensors.items():
        _check(name, tensor)
        first = seen.setdefault(same_memory(name, tensor), name)
        if first != name:
            listed.append({"name": name, "same": first})
            continue
        stored, scales = _rounded(tensor.detach().cpu(), values)
        if scales is not None:
            rows[SCALES].append(elements(scales))
        items = elements(stored)
        filled: NDArray[np.bool_] = np.any(items, axis=1)
        entry: dict[str, Any] = {
            "name": name,
            "dtype": _name(tensor),
            "shape": list(tensor.shape),
            "stored": _name(stored),
        }
        # A mask costs a bit for each element, and saves all bytes of a zero.
        if 8 * items.shape[1] * int((~filled).sum()) > len(items):
            entry["kept"] = int(filled.sum())
            masks.append(filled)
            items = items[filled]
        rows[_name(stored)].append(items)
        listed.append(entry)
    values_of = {dtype: np.concatenate(parts) for dtype, parts in rows.items()}
    index = {"bits": sum(map(len, masks)), "counts": {k: len(v) for k, v in values_of.items()}, "tensors": listed}
    text = json.dumps(index, separators=(",", ":")).encode()
    streams = {"index": squeeze(text), "mask": bits(masks)}
    for dtype, items in values_of.items():
        streams |= {f"{dtype}.{k}": plane for k, plane in enumerate(planes(items))}
    head: dict[str, Any] = {"version": VERSION, "values": values, "size": len(text)}
    head["sha256"] = _checksum(head, streams)
    saved = {name: torch.from_numpy(np.frombuffer(data, np.uint8).copy()) for name, data in streams.items()}
    # One key of metadata: safetensors writes several in any order, and equal models should be equal files.
    return save(saved, {FORMAT: json.dumps(head)})


def decode(content: bytes, file: str) -> dict[str, Tensor]:
    """The tensors of a file's content; ``file`` is its name in the sentence that refuses it."""
    head = header(content)
    if head is None:
        raise ValueError(f"{file} must be a file of save_sparse, but it is not, or its first bytes are damaged.")
    if head.get("version") != VERSION:
        raise ValueError(f"{file} must be of version {VERSION}, but got {head.get('version')!r}.")
    damaged = f"{file} is damaged: its content does not match its checksum."
    try:
        streams = {name: tensor.numpy().tobytes() for name, tensor in load(content).items()}
        intact = head.pop("sha256", None) == _checksum(head, streams)
        tensors = _tensors(json.loads(expand(streams["index"], head["size"])), streams) if intact else None
    except (SafetensorError, LZMAError, KeyError, TypeError, ValueError, RuntimeError, AttributeError) as error:
        raise ValueError(damaged) from error
    if tensors is None:
        raise ValueError(damaged)
    return tensors


def header(content: bytes) -> dict[str, Any] | None:
    """What the first bytes of a file say, if it is of this format."""
    try:
        length = int.from_bytes(content[:8], "little")
        head = json.loads(json.loads(content[8 : 8 + length])["__metadata__"][FORMAT])
    except (ValueError, KeyError, TypeError):
        return None
    return head if isinstance(head, dict) else None


def _tensors(index: dict[str, Any], streams: dict[str, bytes]) -> dict[str, Tensor]:
    mask = _Queue(from_bits(streams["mask"], index["bits"]))
    rows = {dtype: _Queue(_from_streams(streams, dtype, count)) for dtype, count in index["counts"].items()}
    tensors: dict[str, Tensor] = {}
    for entry in index["tensors"]:
        if "same" in entry:
            tensors[entry["name"]] = tensors[entry["same"]]
            continue
        dtype, stored, shape = _dtype(entry["dtype"]), _dtype(entry["stored"]), entry["shape"]
        scaled = stored == torch.int8 and dtype != torch.int8
        scales = rows[SCALES].take(shape[0]) if scaled else None
        size = int(np.prod(shape, dtype=np.int64))
        if "kept" in entry:
            items = np.zeros((size, stored.itemsize), np.uint8)
            items[mask.take(size)] = rows[entry["stored"]].take(entry["kept"])
        else:
            items = rows[entry["stored"]].take(size)
        tensor = tensor_of(items, stored, shape)
        if scales is not None:
            column = tensor_of(scales, torch.float32, [-1, *[1] * (len(shape) - 1)])
            tensor = tensor.float() * column
        tensors[entry["name"]] = tensor.to(dtype)
    return tensors


class _Queue:
    """Rows taken from the front."""

    def __init__(self, rows: NDArray[Any]) -> None:
        self._rows, self._next = rows, 0

    def take(self, count: int) -> NDArray[Any]:
        self._next += count
        return self._rows[self._next - count : self._next]


def _from_streams(streams: dict[str, bytes], dtype: str, count: int) -> Bytes:
    return from_planes([streams[f"{dtype}.{k}"] for k in range(_dtype(dtype).itemsize)], count)


def _rounded(tensor: Tensor, values: str) -> tuple[Tensor, Tensor | None]:
    """The values to store, and the scales of their rows if they are int8."""
    if values == "fp32" or not tensor.is_floating_point() or tensor.ndim < 2 or tensor.numel() == 0:
        return tensor, None
    if values == "fp16":
        half = tensor.half()
        exact = tensor.element_size() <= 2 or bool((half.isinf() & ~tensor.isinf()).any())
        return (tensor if exact else half), None
    single = tensor.float()
    if tensor.element_size() == 1 or not bool(single.isfinite().all()):
        return tensor, None
    scales = single.flatten(1).abs().amax(dim=1) / LEVELS
    scales[scales == 0] = 1.0
    column = scales.view(-1, *[1] * (tensor.ndim - 1))
    return (single / column).round().clamp(-LEVELS, LEVELS).to(torch.int8), scales


def _check(name: str, tensor: object) -> None:
    if not isinstance(tensor, Tensor) or tensor.layout != torch.strided or tensor.is_quantized or tensor.is_meta:
        raise ValueError(f"model must hold dense tensors, but {name!r} is something else.")
    # Some dtypes of one byte have no kernel for isnan.
    wide = tensor.float() if tensor.element_size() == 1 else tensor
    if bool(wide.isnan().any()):
        raise ValueError(f"model must hold numbers, but {name!r} holds NaN.")


def same_memory(name: str, tensor: Tensor) -> object:
    """Equal for tensors that are the same elements of the same memory; an empty one is like no other."""
    if tensor.numel() == 0:
        return name
    return tensor.data_ptr(), tensor.device, tensor.dtype, tensor.shape, tensor.stride()


def _name(tensor: Tensor) -> str:
    return str(tensor.dtype).removeprefix("torch.")


def _dtype(name: str) -> torch.dtype:
    dtype = getattr(torch, name)
    if not isinstance(dtype, torch.dtype):
        raise TypeError(f"dtype must be one of torch, but got {name!r}.")
    return dtype


def _checksum(head: Mapping[str, Any], streams: Mapping[str, bytes]) -> str:
    digest = hashlib.sha256(json.dumps(head, sort_keys=True).encode())
    for name, data in sorted(streams.items()):
        digest.update(f"\n{name}:{len(data)}\n".encode())
        digest.update(data)
    return digest.hexdigest()
