"""Tensors as short streams of bytes, without loss.

Two transforms make room for LZMA, which then does the rest:

- A mask is one bit for each element. At a density d its entropy is H(d) = -d log2 d - (1-d) log2 (1-d) bits, which is
  0.41 at d = 1/12. LZMA comes within a few per cent of it with ``lc = lp = pb = 0``: what precedes a byte of a random
  mask says nothing about it, and fewer contexts learn faster.
- Values are split into planes: byte k of every element stands in plane k. The plane with the exponents of floats
  shrinks to less than half, while mantissas are noise, which must not stand in between.
"""

from __future__ import annotations

import lzma
from typing import Any, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

Bytes: TypeAlias = NDArray[np.uint8]

# Part of the format: without a container, a decoder must know them. The dictionary bounds the memory of both sides.
FILTERS: list[dict[str, Any]] = [
    {"id": lzma.FILTER_LZMA2, "preset": 6, "dict_size": 1 << 20, "lc": 0, "lp": 0, "pb": 0}
]
LONG, SAMPLE, WORTH = 1 << 18, 1 << 16, 0.97
"""LZMA takes a third of a second for a megabyte of noise, so a long stream is packed only if a sample of it shrinks."""


def squeeze(data: bytes) -> bytes:
    """LZMA, or the bytes as they are where that is not shorter.

    >>> len(squeeze(bytes(1000))) < 20, squeeze(b"ab")
    (True, b'ab')
    """
    if len(data) > LONG and len(_packed(_sample(data))) > WORTH * SAMPLE:
        return data
    packed = _packed(data)
    return packed if len(packed) < len(data) else data


def _packed(data: bytes) -> bytes:
    return lzma.compress(data, format=lzma.FORMAT_RAW, filters=FILTERS)


def _sample(data: bytes) -> bytes:
    """``SAMPLE`` bytes from 16 places."""
    size = SAMPLE // 16
    return b"".join(data[k * len(data) // 16 : k * len(data) // 16 + size] for k in range(16))


def expand(data: bytes, size: int) -> bytes:
    """What :func:`squeeze` got, which was ``size`` bytes long.

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


def elements(tensor: Tensor) -> Bytes:
    """The bytes of each element as a row, of any dtype."""
    flat = tensor.detach().cpu().contiguous().reshape(-1)
    return flat.view(torch.uint8).numpy().reshape(flat.numel(), flat.element_size())


def tensor_of(rows: Bytes, dtype: torch.dtype, shape: list[int]) -> Tensor:
    """The tensor whose :func:`elements` are ``rows``."""
    flat = torch.from_numpy(np.array(rows, order="C").reshape(-1))
    return flat.view(dtype).reshape(shape)


def planes(rows: Bytes) -> list[bytes]:
    """Byte k of all elements, squeezed, for each k."""
    return [squeeze(np.ascontiguousarray(plane).tobytes()) for plane in rows.T]


def from_planes(streams: list[bytes], count: int) -> Bytes:
    """The rows of ``count`` elements whose :func:`planes` are ``streams``."""
    return np.stack([np.frombuffer(expand(stream, count), np.uint8) for stream in streams], axis=1)


def bits(masks: list[NDArray[np.bool_]]) -> bytes:
    """Flat masks one after the other, one bit for each element, squeezed."""
    return squeeze(np.packbits(np.concatenate([np.empty(0, np.bool_), *masks])).tobytes())


def from_bits(stream: bytes, count: int) -> NDArray[np.bool_]:
    """The ``count`` elements of the masks whose :func:`bits` are ``stream``."""
    packed = np.frombuffer(expand(stream, (count + 7) // 8), np.uint8)
    return np.unpackbits(packed, count=count).astype(np.bool_)
