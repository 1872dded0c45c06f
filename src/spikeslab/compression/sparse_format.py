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

A zero costs next to nothing in a file and four bytes in memory, so a small file may claim any size. A reader adds up
what it would make (tensors, unpacked streams, the index as Python objects) before it makes any of it, and refuses more
than the length of the file and 128 MiB unless the caller allows it. Streams are unpacked and tensors filled in pieces,
so nothing comes on top.

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
from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors.torch import save
from torch import Tensor

from spikeslab.errors import ArgumentValueError, Phrase, SpikeSlabError, check_choice, mark

Bytes: TypeAlias = NDArray[np.uint8]
Buffer: TypeAlias = bytes | bytearray | memoryview

FORMAT, VERSION = "spikeslab-sparse", 1
VALUES = ("fp32", "fp16", "int8")
SCALES = "float32"
LEVELS = 127
# Part of the format: without a container, a decoder must know them. The dictionary bounds the memory of both sides.
FILTERS: list[dict[str, Any]] = [
    {"id": lzma.FILTER_LZMA2, "preset": 6, "dict_size": 1 << 20, "lc": 0, "lp": 0, "pb": 0}
]
FLOOR = 1 << 27
"""Bytes that reading a file may take beyond two times its length, unless the caller allows more."""
PIECE = 1 << 16
"""Bytes of a stream, or elements of a tensor, that are handled at once; larger pieces are no faster."""
HEADER = 1 << 20
"""Longest header in bytes; that of this format has a line for each stream."""
OBJECTS = 32
"""Bytes of Python objects that a byte of JSON becomes at most."""
LONG, SAMPLE, PLACES, WORTH = 1 << 18, 1 << 16, 16, 0.97
"""LZMA takes a third of a second for a megabyte of noise, so a long stream is packed only if a sample of it shrinks."""


DAMAGES = (
    lzma.LZMAError, KeyError, TypeError, ValueError, RuntimeError, AttributeError, IndexError,
    RecursionError, MemoryError, OverflowError,
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
    head: dict[str, Any] = {"version": VERSION, "values": values, "size": len(text)}
    head["sha256"] = _checksum(head, streams)
    saved = {name: torch.from_numpy(np.frombuffer(data, np.uint8).copy()) for name, data in streams.items()}
    # One key of metadata: safetensors writes several in any order, and equal models should be equal files.
    return save(saved, {FORMAT: json.dumps(head)})


def decode(content: bytes, file: str, max_bytes: float | None = None) -> dict[str, Tensor]:
    """Return the tensors in the content of a file.

    Args:
        content: The content.
        file: Name of the file in errors.
        max_bytes: Memory that reading may take beside the content; by default its length and ``FLOOR``.
    """
    head = read_header(content)
    if head is None:
        raise TensorFileError(f"{file} is not a file of save_sparse, or its first bytes are damaged.")
    if head.get("version") != VERSION:
        version = head.get("version")
        raise TensorFileError(f"{file} has version {version!r} of the format, but only {VERSION} can be read.")
    try:
        return _read_tensors(head, _read_streams(content), default_limit(content) if max_bytes is None else max_bytes)
    except DAMAGES as error:
        raise TensorFileError(f"{file} is damaged: its content does not match its checksum.") from error
    except _TooLargeError as error:
        raise TensorFileError(
            f"{file} is refused: it has {len(content):,} bytes, and reading it takes {error.size:,} more, as a network "
            f"of zeros does, or a file made to fill the memory. If you trust it, allow them with "
            f"{mark('max_bytes', error.size)}."
        ) from error


def default_limit(content: bytes) -> int:
    """Return the memory that reading a file may take beside its content if nothing else is known of it."""
    return FLOOR + len(content)


class _TooLargeError(Exception):
    """Raised when reading a file would take ``size`` bytes, more than allowed."""

    def __init__(self, size: int) -> None:
        super().__init__(size)
        self.size = size


def read_header(content: bytes) -> dict[str, Any] | None:
    """Return the metadata in the first bytes of a file; ``None`` if it is not of this format."""
    try:
        head = json.loads(_read_entries(content)["__metadata__"][FORMAT])
    except (ValueError, KeyError, TypeError, RecursionError):
        return None
    return head if isinstance(head, dict) else None


def _read_entries(content: bytes) -> dict[str, Any]:
    """Return the header of a safetensors file, which for this format is short."""
    length = int.from_bytes(content[:8], "little")
    if length > HEADER:
        raise ValueError("the header is too long")
    entries: dict[str, Any] = json.loads(content[8 : 8 + length])
    return entries


def _read_streams(content: bytes) -> dict[str, memoryview]:
    """Return the streams as parts of the content, where safetensors would copy them."""
    entries = _read_entries(content)
    data = memoryview(content)[8 + int.from_bytes(content[:8], "little") :]
    streams, end = {}, 0
    del entries["__metadata__"]
    for name, entry in sorted(entries.items(), key=lambda item: item[1]["data_offsets"]):
        begin, behind = entry["data_offsets"]
        if entry["dtype"] != "U8" or begin != end or entry["shape"] != [behind - begin] or behind > len(data):
            raise ValueError(f"the stream {name} is not where it should be")
        streams[name], end = data[begin:behind], behind
    if end != len(data):
        raise ValueError("the streams are not the whole file")
    return streams


def _read_tensors(head: dict[str, Any], streams: Mapping[str, memoryview], limit: float) -> dict[str, Tensor]:
    if head.pop("sha256") != _checksum(head, streams):
        raise ValueError("sha256 does not match")
    size = _check_sizes(head["size"])
    _check_limit(OBJECTS * size, limit)
    index = json.loads(bytes(expand(streams["index"], size)))
    _check_limit(OBJECTS * size + _count_bytes(index, streams), limit)
    mask = _Bits(streams["mask"], index["bits"])
    rows = {
        name: _Rows([streams[f"{name}.{k}"] for k in range(_dtype(name).itemsize)], count)
        for name, count in index["counts"].items()
    }
    tensors: dict[str, Tensor] = {}
    for entry in index["tensors"]:
        same = entry.get("same")
        tensors[entry["name"]] = _read_tensor(entry, mask, rows) if same is None else tensors[same]
    return tensors


def _read_tensor(entry: Mapping[str, Any], mask: _Bits, rows: Mapping[str, _Rows]) -> Tensor:
    """Return a tensor, filled in pieces, so that it takes little more than its own memory."""
    dtype, stored, shape = _dtype(entry["dtype"]), _dtype(entry["stored"]), entry["shape"]
    size, kept, values = math.prod(shape), 0, rows[entry["stored"]]
    scales = None
    if stored == torch.int8 and dtype != torch.int8:
        scales = from_rows(rows[SCALES].take(shape[0]), torch.float32, [-1])
    tensor = torch.empty(size, dtype=dtype)
    for start in range(0, size, PIECE):
        stop = min(start + PIECE, size)
        if "kept" in entry:
            items, filled = np.zeros((stop - start, stored.itemsize), np.uint8), mask.take(stop - start)
            kept += (count := int(filled.sum()))
            items[filled] = values.take(count)
        else:
            items = values.take(stop - start)
        if stored == dtype:
            to_rows(tensor[start:stop])[:] = items
            continue
        piece = from_rows(items, stored, [-1])
        if scales is not None:
            piece = piece.float() * scales[torch.arange(start, stop) // (size // shape[0])]
        tensor[start:stop] = piece
    if kept != entry.get("kept", 0):
        raise ValueError(f"{entry['name']} has another number of values than it says")
    return tensor.reshape(shape)


def _check_sizes(*sizes: object) -> int:
    """Return the product of sizes that a file claims if each is an integer >= 0."""
    for size in sizes:
        if not isinstance(size, int) or isinstance(size, bool) or size < 0:
            raise ValueError(f"{size!r} is not a size")
    return math.prod(sizes)  # type: ignore[arg-type]


def _check_limit(size: int, limit: float) -> None:
    if size > limit:
        raise _TooLargeError(size)


def _count_bytes(index: Mapping[str, Any], streams: Mapping[str, memoryview]) -> int:
    """Return the bytes that reading makes: tensors, and streams that are longer than in the file."""
    claims = {"mask": -(-_check_sizes(index["bits"]) // 8)}
    for name, count in index["counts"].items():
        claims |= {f"{name}.{k}": _check_sizes(count) for k in range(_dtype(name).itemsize)}
    unpacked = sum(size for name, size in claims.items() if size != len(streams[name]))
    own = [entry for entry in index["tensors"] if "same" not in entry]
    return unpacked + sum(_check_sizes(*entry["shape"]) * _dtype(entry["dtype"]).itemsize for entry in own)


class _Rows:
    """Stored values of a dtype, taken from the front as rows of their bytes."""

    def __init__(self, streams: list[memoryview], count: int) -> None:
        self._planes, self._count, self._next = [expand(stream, count) for stream in streams], count, 0

    def take(self, count: int) -> Bytes:
        start, self._next = self._next, self._next + count
        if self._next > self._count:
            raise ValueError("there are too few values")
        return join_planes([memoryview(plane)[start : self._next] for plane in self._planes], count)


class _Bits:
    """Bits of the mask, taken from the front."""

    def __init__(self, stream: memoryview, count: int) -> None:
        self._bytes, self._count, self._next = expand(stream, -(-count // 8)), count, 0

    def take(self, count: int) -> NDArray[np.bool_]:
        start, self._next = self._next, self._next + count
        if self._next > self._count:
            raise ValueError("the mask is too short")
        first = start // 8
        skipped = start - 8 * first
        return unpack_masks(memoryview(self._bytes)[first : -(-self._next // 8)], skipped + count)[skipped:]


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


def _checksum(head: Mapping[str, Any], streams: Mapping[str, Buffer]) -> str:
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


def expand(data: Buffer, size: int) -> Buffer:
    """Undo :func:`squeeze` of ``size`` bytes, in pieces.

    >>> expand(squeeze(bytes(1000)), 1000) == bytes(1000)
    True
    """
    if len(data) == size:
        return data
    decoder = lzma.LZMADecompressor(format=lzma.FORMAT_RAW, filters=FILTERS)
    source, plain, filled = memoryview(data), bytearray(size), 0
    while not decoder.eof and filled <= size and (source or not decoder.needs_input):
        given = source[:PIECE] if decoder.needs_input else b""
        source = source[len(given) :]
        piece = decoder.decompress(given, max_length=min(PIECE, size + 1 - filled))
        plain[filled : filled + len(piece)] = piece
        filled += len(piece)
    if filled != size:
        raise ValueError(f"a stream must hold {size} bytes, but holds {filled} or more.")
    return plain


def to_rows(tensor: Tensor) -> Bytes:
    """Return the bytes of each element as a row, for any dtype."""
    flat = tensor.detach().cpu().contiguous().reshape(-1)
    return flat.view(torch.uint8).numpy().reshape(flat.numel(), flat.element_size())


def from_rows(rows: Bytes, dtype: torch.dtype, shape: list[int]) -> Tensor:
    """Undo :func:`to_rows`."""
    return torch.from_numpy(rows.reshape(-1)).view(dtype).reshape(shape)


def split_planes(rows: Bytes) -> list[bytes]:
    """Return byte k of all elements, squeezed, for each k."""
    return [squeeze(np.ascontiguousarray(plane).tobytes()) for plane in rows.T]


def join_planes(streams: Sequence[Buffer], count: int) -> Bytes:
    """Undo :func:`split_planes` of ``count`` rows."""
    return np.stack([np.frombuffer(expand(stream, count), np.uint8) for stream in streams], axis=1)


def pack_masks(masks: list[NDArray[np.bool_]]) -> bytes:
    """Return flat masks one after the other, one bit for each element, squeezed."""
    return squeeze(np.packbits(np.concatenate([np.empty(0, np.bool_), *masks])).tobytes())


def unpack_masks(stream: Buffer, count: int) -> NDArray[np.bool_]:
    """Undo :func:`pack_masks` of ``count`` elements in all."""
    packed = np.frombuffer(expand(stream, (count + 7) // 8), np.uint8)
    return np.unpackbits(packed, count=count).view(np.bool_)
