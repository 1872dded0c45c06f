"""Sparse file format "spikeslab-sparse", version 1: a compressed bit-mask and the values that are not zero.

The file is a safetensors file, so nothing in it is ever executed. Its tensors are streams of bytes (dtype U8). A stream
is as long as its content, or shorter and then raw LZMA2 with ``FILTERS``:

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

A reader refuses a file that claims more than 32 MiB and 1000 bytes for each of its own before it makes anything of that
size. A writer therefore leaves the mask of such a network as it is, which bounds the file from below.

Two transforms help LZMA:

- The mask is one bit for each element. At a density d its entropy is H(d) = -d log2 d - (1-d) log2 (1-d) bits, which is
  0.41 at d = 1/12. LZMA comes within a few per cent of it with ``lc = lp = pb = 0``: in a random mask the bytes before
  a byte say nothing about it, and fewer contexts learn faster.
- Values are split into planes: byte k of every element is in plane k. The plane with the exponents of floats shrinks to
  less than half, while mantissas are noise.
"""

from __future__ import annotations

import hashlib
import json
import lzma
import math
from collections import defaultdict
from collections.abc import Mapping
from typing import Any, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors import SafetensorError
from safetensors.torch import load, save
from torch import Tensor

from spikeslab.errors import ArgumentValueError, Phrase, SpikeSlabError, check_choice

Bytes: TypeAlias = NDArray[np.uint8]

FORMAT, VERSION = "spikeslab-sparse", 1
VALUES = ("fp32", "fp16", "int8")
SCALES = "float32"
LEVELS = 127
# Part of the format: without a container, a decoder must know them. The dictionary bounds the memory of both sides.
FILTERS: list[dict[str, Any]] = [
    {"id": lzma.FILTER_LZMA2, "preset": 6, "dict_size": 1 << 20, "lc": 0, "lp": 0, "pb": 0}
]
FLOOR, RATIO = 1 << 25, 1000
"""A file may claim tensors of 32 MiB, and of 1000 bytes for each of its own: sparse networks stay far below that."""
LONG, SAMPLE, PLACES, WORTH = 1 << 18, 1 << 16, 16, 0.97
"""LZMA takes a third of a second for a megabyte of noise, so a long stream is packed only if a sample of it shrinks."""


DAMAGES = (
    SafetensorError, lzma.LZMAError, KeyError, TypeError, ValueError, RuntimeError, AttributeError, IndexError,
    RecursionError, MemoryError,
)  # fmt: skip
"""Errors of reading a file with a wrong content."""


class TensorFileError(SpikeSlabError, ValueError):
    """A file of tensors is damaged, or does not fit the model."""


def encode(tensors: Mapping[str, Tensor], values: str = "fp32") -> bytes:
    """Return the content of a file.

    Raises:
        ValueError: If a tensor holds NaN or is not dense.
    """
    check_choice("values", values, VALUES)
    listed: list[dict[str, Any]] = []
    masks: list[NDArray[np.bool_]] = []
    rows = defaultdict[str, list[Bytes]](list)
    seen: dict[object, str] = {}
    for name, tensor in tensors.items():
        _check(name, tensor)
        first = seen.setdefault(memory_key(name, tensor), name)
        if first != name:
            listed.append({"name": name, "same": first})
            continue
        stored, scales = _round(tensor.detach().cpu(), values)
        if scales is not None:
            rows[SCALES].append(to_rows(scales))
        items = to_rows(stored)
        filled: NDArray[np.bool_] = np.any(items, axis=1)
        entry = dict[str, Any](name=name, dtype=_name(tensor), shape=list(tensor.shape), stored=_name(stored))
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
    streams = {"index": squeeze(text), "mask": pack_masks(masks)}
    for dtype, items in values_of.items():
        streams |= {f"{dtype}.{k}": plane for k, plane in enumerate(split_planes(items))}
    if sum(tensor.nbytes for tensor in tensors.values()) > _allowed_bytes(sum(map(len, streams.values()))):
        streams["mask"] = pack_masks(masks, packed=False)  # or readers would take the file for a bomb
    head: dict[str, Any] = {"version": VERSION, "values": values, "size": len(text)}
    head["sha256"] = _checksum(head, streams)
    saved = {name: torch.from_numpy(np.frombuffer(data, np.uint8).copy()) for name, data in streams.items()}
    # One key of metadata: safetensors writes several in any order, and equal models should be equal files.
    return save(saved, {FORMAT: json.dumps(head)})


def decode(content: bytes, file: str) -> dict[str, Tensor]:
    """Return the tensors in the content of a file; ``file`` is its name in errors."""
    head = read_header(content)
    if head is None:
        raise TensorFileError(f"{file} is not a file of save_sparse, or its first bytes are damaged.")
    if head.get("version") != VERSION:
        version = head.get("version")
        raise TensorFileError(f"{file} has version {version!r} of the format, but only {VERSION} can be read.")
    try:
        streams = {name: tensor.numpy().tobytes() for name, tensor in load(content).items()}
        return _read_tensors(head, streams, _allowed_bytes(len(content)))
    except DAMAGES as error:
        raise TensorFileError(f"{file} is damaged: its content does not match its checksum.") from error
    except OverflowError as error:
        raise TensorFileError(f"{file} is refused: it claims {error} for its {len(content):,} bytes.") from error


def read_header(content: bytes) -> dict[str, Any] | None:
    """Return the metadata in the first bytes of a file; ``None`` if it is not of this format."""
    try:
        length = int.from_bytes(content[:8], "little")
        head = json.loads(json.loads(content[8 : 8 + length])["__metadata__"][FORMAT])
    except (ValueError, KeyError, TypeError, RecursionError):
        return None
    return head if isinstance(head, dict) else None


def _allowed_bytes(length: int) -> int:
    return FLOOR + RATIO * length


def _check_size(name: str, size: object, limit: int) -> int:
    """Return a size that a file claims, before anything of that size is made."""
    if not isinstance(size, int) or isinstance(size, bool) or size < 0:
        raise ValueError(f"{name} has an impossible size")
    if size > limit:
        raise OverflowError(f"{size:,} bytes of {name}")
    return size


def _read_tensors(head: dict[str, Any], streams: dict[str, bytes], limit: int) -> dict[str, Tensor]:
    if head.pop("sha256") != _checksum(head, streams):
        raise ValueError("sha256 does not match")
    index = json.loads(expand(streams["index"], _check_size("the index", head["size"], limit // 10)))
    _check_claims(index, limit)
    mask = _Queue(unpack_masks(streams["mask"], index["bits"]))
    rows = {}
    for name, count in index["counts"].items():
        planes = [streams[f"{name}.{k}"] for k in range(_dtype(name).itemsize)]
        rows[name] = _Queue(join_planes(planes, count))
    tensors: dict[str, Tensor] = {}
    for entry in index["tensors"]:
        if "same" in entry:
            tensors[entry["name"]] = tensors[entry["same"]]
            continue
        dtype, stored, shape = _dtype(entry["dtype"]), _dtype(entry["stored"]), entry["shape"]
        scaled = stored == torch.int8 and dtype != torch.int8
        scales = rows[SCALES].take(shape[0]) if scaled else None
        size = math.prod(shape)
        if "kept" in entry:
            items = np.zeros((size, stored.itemsize), np.uint8)
            items[mask.take(size)] = rows[entry["stored"]].take(entry["kept"])
        else:
            items = rows[entry["stored"]].take(size)
        tensor = from_rows(items, stored, shape)
        if scales is not None:
            tensor = tensor.float() * from_rows(scales, torch.float32, [-1, *[1] * (len(shape) - 1)])
        tensors[entry["name"]] = tensor.to(dtype)
    return tensors


def _check_claims(index: Mapping[str, Any], limit: int) -> None:
    """Raise if the tensors that an index claims are larger than a file of this length may hold."""
    _check_size("the mask", index["bits"], limit)
    for name, count in index["counts"].items():
        _check_size(name, count * _dtype(name).itemsize, limit)
    total = 0
    for entry in index["tensors"]:
        if "same" not in entry:
            sizes = [_check_size(entry["name"], size, limit) for size in entry["shape"]]
            total += math.prod(sizes) * max(_dtype(entry["dtype"]).itemsize, _dtype(entry["stored"]).itemsize)
            _check_size("tensors", total, limit)


class _Queue:
    """Array whose rows are taken from the front."""

    def __init__(self, rows: NDArray[Any]) -> None:
        self._rows, self._next = rows, 0

    def take(self, count: int) -> NDArray[Any]:
        self._next += count
        if not 0 <= count <= self._next <= len(self._rows):
            raise ValueError("a stream is too short")
        return self._rows[self._next - count : self._next]


def _round(tensor: Tensor, values: str) -> tuple[Tensor, Tensor | None]:
    """Return the values to store, and the scales of their rows if they are int8."""
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
        raise ArgumentValueError("model", "must hold dense tensors", Phrase(f"{name!r} is something else"))
    # Some dtypes of one byte have no kernel for isnan.
    wide = tensor.float() if tensor.element_size() == 1 else tensor
    if bool(wide.isnan().any()):
        raise ArgumentValueError("model", "must hold numbers", Phrase(f"{name!r} holds NaN"))


def memory_key(name: str, tensor: Tensor) -> object:
    """Return a key that is equal for tensors with the same elements in the same memory, and unique if empty."""
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


def squeeze(data: bytes) -> bytes:
    """Compress with LZMA, or return the bytes as they are if that is not shorter.

    >>> len(squeeze(bytes(1000))) < 20, squeeze(b"ab")
    (True, b'ab')
    """
    if len(data) > LONG:
        starts = [k * len(data) // PLACES for k in range(PLACES)]
        sample = b"".join(data[start : start + SAMPLE // PLACES] for start in starts)
        if len(_pack(sample)) > WORTH * SAMPLE:
            return data
    packed = _pack(data)
    return packed if len(packed) < len(data) else data


def _pack(data: bytes) -> bytes:
    return lzma.compress(data, format=lzma.FORMAT_RAW, filters=FILTERS)


def expand(data: bytes, size: int) -> bytes:
    """Undo :func:`squeeze` of ``size`` bytes.

    >>> expand(squeeze(bytes(1000)), 1000) == bytes(1000)
    True
    """
    if len(data) == size:
        return data
    decoder = lzma.LZMADecompressor(format=lzma.FORMAT_RAW, filters=FILTERS)
    plain = decoder.decompress(data, max_length=size + 1)
    if len(plain) != size:
        raise ValueError(f"a stream must hold {size} bytes, but holds {len(plain)} or more.")
    return plain


def to_rows(tensor: Tensor) -> Bytes:
    """Return the bytes of each element as a row, for any dtype."""
    flat = tensor.detach().cpu().contiguous().reshape(-1)
    return flat.view(torch.uint8).numpy().reshape(flat.numel(), flat.element_size())


def from_rows(rows: Bytes, dtype: torch.dtype, shape: list[int]) -> Tensor:
    """Undo :func:`to_rows`."""
    flat = torch.from_numpy(np.array(rows, order="C").reshape(-1))
    return flat.view(dtype).reshape(shape)


def split_planes(rows: Bytes) -> list[bytes]:
    """Return byte k of all elements, squeezed, for each k."""
    return [squeeze(np.ascontiguousarray(plane).tobytes()) for plane in rows.T]


def join_planes(streams: list[bytes], count: int) -> Bytes:
    """Undo :func:`split_planes` of ``count`` rows."""
    return np.stack([np.frombuffer(expand(stream, count), np.uint8) for stream in streams], axis=1)


def pack_masks(masks: list[NDArray[np.bool_]], packed: bool = True) -> bytes:
    """Return flat masks one after the other, one bit for each element, by default squeezed."""
    bits = np.packbits(np.concatenate([np.empty(0, np.bool_), *masks])).tobytes()
    return squeeze(bits) if packed else bits


def unpack_masks(stream: bytes, count: int) -> NDArray[np.bool_]:
    """Undo :func:`pack_masks` of ``count`` elements in all."""
    packed = np.frombuffer(expand(stream, (count + 7) // 8), np.uint8)
    return np.unpackbits(packed, count=count).view(np.bool_)
