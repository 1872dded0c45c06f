"""Noise of :mod:`spikeslab.kernels.philox` in plain torch, on any device.

It is integer arithmetic and polynomials, with no random operation of torch: ``torch.compile`` has nothing to replace.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple, TypeAlias

import torch
from torch import Tensor

from spikeslab.kernels import philox
from spikeslab.kernels.philox import BLOCK_BYTES, COUNTERS, MASK32

Number: TypeAlias = int | Tensor

CHUNK = 1 << 16
"""Counters of one pass on the CPU, whose cache they fit into."""
_SIGN = 1 << 31


class Range(NamedTuple):
    """Consecutive elements of a parameter: its position, the number of the first and how many there are."""

    stream: int
    offset: int
    size: int


def draw_ranges(
    ranges: Sequence[Range],
    seed: int,
    step: int,
    dtype: torch.dtype,
    device: torch.device,
    draw: Callable[..., Tensor],
) -> list[Tensor]:
    """Return the normals of each range, float32 or float64.

    All ranges are drawn together: a step of many small tensors would otherwise be spent on calls.

    Args:
        ranges: What to draw.
        seed: Seed, below 2**64.
        step: Step, below 2**32.
        dtype: float32 or float64.
        device: Where to draw.
        draw: :func:`draw_blocks`, or that function compiled.
    """
    itemsize = dtype.itemsize
    blocks = [philox.count_blocks(offset, size, itemsize) for _, offset, size in ranges]
    firsts = [offset * itemsize // BLOCK_BYTES for _, offset, _ in ranges]
    counts = torch.tensor(blocks, device=device)
    starts = torch.tensor(firsts, device=device) - counts.cumsum(0) + counts
    number = torch.arange(sum(blocks), device=device) + starts.repeat_interleave(counts, output_size=sum(blocks))
    stream = torch.tensor([r.stream for r in ranges], device=device).repeat_interleave(counts, output_size=sum(blocks))
    length = BLOCK_BYTES // itemsize
    out = torch.empty(sum(blocks), length, dtype=dtype, device=device)
    # As tensors, because a compiler takes Python's numbers for constants.
    key = torch.tensor([seed & MASK32, seed >> 32, step], device=device).unbind()
    piece = CHUNK // COUNTERS if device.type == "cpu" else max(sum(blocks), 1)
    for part, numbers, streams in zip(out.split(piece), number.split(piece), stream.split(piece), strict=True):
        part.copy_(draw(numbers, streams, *key, dtype))
    parts = out.view(-1).split([count * length for count in blocks])
    return [part[r.offset % length :][: r.size] for part, r in zip(parts, ranges, strict=True)]


def draw_blocks(
    numbers: Tensor, streams: Tensor, low: Tensor, high: Tensor, step: Tensor, dtype: torch.dtype
) -> Tensor:
    """Return the normals of whole blocks, given their numbers and streams; ``low`` and ``high`` make up the seed."""
    counters = numbers.unsqueeze(1) * COUNTERS + torch.arange(COUNTERS, device=numbers.device)
    w0, w1, w2, w3 = words(counters, low, high, step, streams.unsqueeze(1), dtype)
    if dtype == torch.float32:
        radii, angles = (torch.stack(pair, -1).flatten(1) for pair in ((w1, w0), (w3, w2)))
        halves = _box_muller_f32(radii, angles)
    else:
        halves = _box_muller_f64(w0 << 32 | w1, w2 << 32 | w3)
    return torch.cat(halves, 1)


def normals_at(index: Tensor, seed: int, step: int, stream: int, dtype: torch.dtype) -> Tensor:
    """Return the normals of any elements, given by their numbers; twice or four times the work of a range."""
    size = BLOCK_BYTES // dtype.itemsize
    block, within = index // size, index % size
    pair = within % (size // 2)
    narrow = dtype == torch.float32
    counters = block * COUNTERS + (pair // 2 if narrow else pair)
    w0, w1, w2, w3 = words(counters, seed & MASK32, seed >> 32, step, stream, dtype)
    if narrow:
        odd = pair % 2 == 1
        cosine, sine = _box_muller_f32(torch.where(odd, w0, w1), torch.where(odd, w2, w3))
    else:
        cosine, sine = _box_muller_f64(w0 << 32 | w1, w2 << 32 | w3)
    return torch.where(within < size // 2, cosine, sine)


def words(
    counters: Tensor, low: Number, high: Number, step: Number, stream: Number, dtype: torch.dtype
) -> tuple[Tensor, ...]:
    """Return the four words of each counter, for numbers of a dtype; all are int64."""
    a, b = counters & MASK32, counters >> 32
    if dtype == torch.float64:
        b = b | philox.FLOAT64_DOMAIN
    c, d = torch.zeros_like(a) + step, torch.zeros_like(a) + stream
    x, y = low, high
    for _ in range(philox.ROUNDS):
        # A product fills 64 bits and may be negative as an int64: its halves are what counts, and only a and c need
        # their upper halves cleared.
        p, q = a * philox.M0, c * philox.M1
        a, b, c, d = ((q >> 32) ^ b ^ x) & MASK32, q, ((p >> 32) ^ d ^ y) & MASK32, p
        x, y = (x + philox.W0) & MASK32, (y + philox.W1) & MASK32
    return a, b & MASK32, c, d & MASK32


# As in the reference: the product of two float32 is exact in float64, and the sum is rounded once. So are square roots:
# those of torch are not always the nearest number.
def _rounded(value: Tensor) -> Tensor:
    return value.float().double()


def _fma(a: Tensor, b: Tensor | float, c: Tensor | float) -> Tensor:
    return _rounded(a * b + c)


def _box_muller_f32(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    def horner(coefficients: Sequence[float], value: Tensor) -> Tensor:
        total = _fma(value, coefficients[-1], coefficients[-2])
        for coefficient in coefficients[-3::-1]:
            total = _fma(total, value, coefficient)
        return total.float()

    above = x >= _SIGN
    scaled = (x & (_SIGN - 1)).float() + 0.5
    bits = scaled.view(torch.int32)
    mantissa = (bits & 0x007FFFFF | 0x3F000000).view(torch.float32)
    exponent = torch.where(above, 0, 158 - (bits >> 23))
    g = torch.where(above, scaled * -(2.0**-32), mantissa - 1.0).double()
    g2 = _rounded(g * g)
    l0, l1, l2, l3, l4, l5, l6, l7 = philox.LOG_F32
    low = _fma(_fma(g, l3, l2), g2, _fma(g, l1, l0))
    high = _fma(_fma(g, l7, l6), g2, _fma(g, l5, l4))
    log = _rounded(_fma(high, _rounded(g2 * g2), low) * g)
    radius = _fma(exponent.double(), philox.TWO_LOG2_F32, log).sqrt().float()
    doubled = y << 1 & MASK32
    v = (doubled - ((doubled & _SIGN) << 1)).float() * 2.0**-31
    v2 = v * v
    cosine, sine = horner(philox.COS_F32, v2.double()) * (1.0 - v2), horner(philox.SIN_F32, v2.double()) * v
    return torch.where(y >= _SIGN, -radius, radius) * cosine, radius * sine


def _box_muller_f64(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    # As if the product were exact: those of 24 bits are, and what the sum loses is added at the end.
    def fma(a: Tensor, b: Tensor, c: Tensor | float) -> Tensor:
        a1, b1 = _rounded(a), _rounded(b)
        product, rest = a1 * b1, a1 * (b - b1) + (a - a1) * b
        total = product + c
        part = total - product
        return total + ((product - (total - part)) + (c - part) + rest)

    def horner(coefficients: Sequence[float], value: Tensor) -> Tensor:
        total = torch.full_like(value, coefficients[-1])
        for coefficient in coefficients[-2::-1]:
            total = fma(value, total, coefficient)
        return total

    largest = (1 << 63) - 1
    above = x < 0
    scaled = ((x & largest) >> 11).double() + 0.5
    bits = scaled.view(torch.int64)
    mantissa = (bits & (1 << 52) - 1 | 1022 << 52).view(torch.float64)
    exponent = torch.where(above, 0, 1075 - (bits >> 52))
    g = torch.where(above, scaled * -(2.0**-53), mantissa - 1.0)
    s = g / (g + 2.0)
    log = s * -2.0 * horner(philox.ATANH_F64, s * s)
    square = fma(exponent.double(), torch.full_like(g, philox.TWO_LOG2), log)
    radius = square.sqrt()
    high = _rounded(radius)  # Newton's step, with the error of the root from exact products
    radius = radius + (square - high * high - (radius - high) * (radius + high)) / (radius + radius)
    v = ((y & largest) >> 11).double() * 2.0**-51 + (2.0**-52 - 1.0)
    v2 = v * v
    cosine, sine = horner(philox.COS_F64, v2) * (1.0 - v2), horner(philox.SIN_F64, v2) * v
    return torch.where(y < 0, -radius, radius) * cosine, radius * sine
