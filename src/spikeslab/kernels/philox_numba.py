"""Noise of :mod:`spikeslab.kernels.philox` as compiled loops, vectorised and multi-threaded.

A block is always computed as a whole, by loops of constant length that LLVM turns into SIMD code. Every fused
multiply-add is written as one (`fma`, correctly rounded everywhere) and no fast-math flag is set. So the values do not
depend on how a compiler contracts or vectorises these loops and are the same on all machines with IEEE arithmetic; one
without an FMA instruction has it from the C library, slowly.
"""

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import torch
from numba import njit, types
from numba.extending import overload

from spikeslab.kernels import philox
from spikeslab.kernels._intrinsics import bits_of, float_of, fma
from spikeslab.kernels._threads import run as run_in_threads
from spikeslab.kernels.compiling import compile_cached
from spikeslab.kernels.philox import ATANH_F64, BLOCK_BYTES, COS_F64, COUNTERS, ROUNDS, SIN_F64, TWO_LOG2

_HALF = COUNTERS // 2
_BLOCK_F32 = BLOCK_BYTES // 4
_BLOCK_F64 = BLOCK_BYTES // 8
_PAIRS_F32 = _BLOCK_F32 // 2
_PAIRS_F64 = _BLOCK_F64 // 2

_M0, _M1, _W0, _W1 = (np.uint64(number) for number in (philox.M0, philox.M1, philox.W0, philox.W1))
_LOW, _U32 = np.uint64(philox.MASK32), np.uint64(32)
_F64_DOMAIN = np.uint64(philox.FLOAT64_DOMAIN)

_L0, _L1, _L2, _L3, _L4, _L5, _L6, _L7 = map(np.float32, philox.LOG_F32)
_S0, _S1, _S2, _S3, _S4 = map(np.float32, philox.SIN_F32)
_C0, _C1, _C2, _C3 = map(np.float32, philox.COS_F32)

_HALF_F32, _ONE_F32 = np.float32(0.5), np.float32(1.0)
_TWO_LOG2_F32 = np.float32(philox.TWO_LOG2)
_2_POW_M31 = np.float32(2.0**-31)
_I0, _I1, _EXPONENT_SHIFT_F32 = np.int32(0), np.int32(1), np.int32(23)
_NOT_SIGN_F32, _SIGN_F32 = np.int32(0x7FFFFFFF), np.int32(-0x80000000)
_MANTISSA_F32, _EXPONENT_OF_HALF_F32 = np.int32(0x007FFFFF), np.int32(0x3F000000)
# Biased exponent of 2^32 * 1/2, and what multiplies a float32 by -2^-32 when added to its bits.
_TOP_F32, _TIMES_MINUS_2_POW_M32 = np.int32(158), np.int32(0x80000000 - (32 << 23))

_2_POW_52, _2_POW_M51, _2_POW_M52, _2_POW_M53 = 2.0**52, 2.0**-51, 2.0**-52, 2.0**-53
_U1, _U12, _U52, _U63 = np.uint64(1), np.uint64(12), np.uint64(52), np.uint64(63)
_U0, _SIGN_F64 = np.uint64(0), np.uint64(1 << 63)
_MANTISSA_F64, _EXPONENT_OF_HALF_F64 = np.uint64((1 << 52) - 1), np.uint64(1022 << 52)
# The bits of 2^52, whose last bit is worth 1: an integer below 2^52 put there needs no conversion.
_BITS_OF_2_POW_52 = np.uint64(1075 << 52)


@njit(nogil=True)
def _philox_words(words: Any, c0: Any, c1: Any, c2: Any, c3: Any, k0: Any, k1: Any) -> None:
    """Write the Philox words of counters (c0 + j, c1, c2, c3), j below 256, into 512 uint64.

    Words 0 and 1 of counter j go to words[j], 2 and 3 to words[256 + j], the even one in the high half.
    """
    # The words live in the low halves of uint64s, as AVX2's and NEON's 32 x 32 -> 64 bit multiplications want
    # them; what stands in the high halves is never read, so it needs no clearing. Two counters in turns: one
    # alone leaves the multipliers waiting for each other.
    for j in range(_HALF):
        a, b, c, d = c0 + np.uint64(j), c1, c2, c3
        e, f, g, h = (c0 + np.uint64(j)) + np.uint64(_HALF), c1, c2, c3
        x, y = k0, k1
        for _ in range(ROUNDS - 1):
            p, q = (a & _LOW) * _M0, (c & _LOW) * _M1
            r, s = (e & _LOW) * _M0, (g & _LOW) * _M1
            a, b, c, d = (q >> _U32) ^ (b ^ x), q, (p >> _U32) ^ (d ^ y), p
            e, f, g, h = (s >> _U32) ^ (f ^ x), s, (r >> _U32) ^ (h ^ y), r
            x, y = (x + _W0) & _LOW, (y + _W1) & _LOW
        # In the last round the low half of the product is a word already in its place.
        words[j] = (c & _LOW) * _M1 ^ ((b ^ x) << _U32)
        words[COUNTERS + j] = (a & _LOW) * _M0 ^ ((d ^ y) << _U32)
        words[_HALF + j] = (g & _LOW) * _M1 ^ ((f ^ x) << _U32)
        words[COUNTERS + _HALF + j] = (e & _LOW) * _M0 ^ ((h ^ y) << _U32)


@njit(nogil=True)
def _box_muller_f32(out: Any) -> None:
    """Turn the 1024 words in out (as bits) into normals: words i and 512 + i are radius and angle of two.

    The radius word's top bit says on which side of 1/2 the uniform u lies, the others how far from the end, 0
    or 1, of that side. So -log u is accurate at both ends: u is at least 2^-33 (6.76 sigma) and so is 1 - u.
    """
    words = out.view(np.int32)
    # Two loops, the first of which leaves the squared radius: the processor overlaps more elements of a short one.
    for i in range(_PAIRS_F32):
        x = words[i]
        # 2^32 u below one half, 2^32 (1 - u) above.
        bits = bits_of(np.float32(np.int32(x & _NOT_SIGN_F32)) + _HALF_F32)
        if x < _I0:
            exponent = _I0
            g = float_of(np.int32(bits + _TIMES_MINUS_2_POW_M32))
        else:
            exponent = np.int32(_TOP_F32 - np.int32(bits >> _EXPONENT_SHIFT_F32))
            g = float_of(np.int32(np.int32(bits & _MANTISSA_F32) | _EXPONENT_OF_HALF_F32)) - _ONE_F32
        # u = 2^-exponent (1 + g) with g in [-1/2, 0]: both terms of -2 log u are positive, nothing cancels.
        # Estrin's scheme: a shorter chain of dependent operations than Horner's.
        g2 = g * g
        low = fma(fma(_L3, g, _L2), g2, fma(_L1, g, _L0))
        high = fma(fma(_L7, g, _L6), g2, fma(_L5, g, _L4))
        out[i] = fma(np.float32(exponent), _TWO_LOG2_F32, fma(high, g2 * g2, low) * g)
    for i in range(_PAIRS_F32):
        y = words[_PAIRS_F32 + i]
        radius = np.sqrt(out[i])
        # The top bit is the sign of the cosine; the others make the angle pi v / 2 in [-pi/2, pi/2).
        v = np.float32(np.int32(y << _I1)) * _2_POW_M31
        v2 = v * v
        sine = fma(fma(fma(fma(_S4, v2, _S3), v2, _S2), v2, _S1), v2, _S0) * v
        cosine = fma(fma(fma(_C3, v2, _C2), v2, _C1), v2, _C0) * (_ONE_F32 - v2)
        out[i] = float_of(np.int32(bits_of(radius) ^ np.int32(y & _SIGN_F32))) * cosine
        out[_PAIRS_F32 + i] = radius * sine


@njit
def _horner(coefficients: Any, x: Any) -> Any:
    value = coefficients[-1]
    for k in range(len(coefficients) - 2, -1, -1):
        value = fma(value, x, coefficients[k])
    return value


# numpy's error model: Python's test for a zero divisor would keep the loop from becoming SIMD code.
@njit(nogil=True, error_model="numpy")
def _box_muller_f64(out: Any) -> None:
    """Turn the 512 64-bit words in out (as bits) into normals, as _box_muller_f32 with 53-bit uniforms."""
    words = out.view(np.uint64)
    for i in range(_PAIRS_F64):
        x = words[i]
        y = words[_PAIRS_F64 + i]
        # 2^53 u below one half, 2^53 (1 - u) above.
        scaled = (float_of((x << _U1) >> _U12 | _BITS_OF_2_POW_52) - _2_POW_52) + 0.5
        bits = bits_of(scaled)
        if x >> _U63 != _U0:
            exponent = 0.0
            g = -_2_POW_M53 * scaled
        else:
            exponent = (1075.0 + _2_POW_52) - float_of(bits >> _U52 | _BITS_OF_2_POW_52)
            g = float_of(bits & _MANTISSA_F64 | _EXPONENT_OF_HALF_F64) - 1.0
        # log(1 + g) = 2 artanh(s)
        s = g / (2.0 + g)
        radius = np.sqrt(fma(exponent, TWO_LOG2, -2.0 * s * _horner(ATANH_F64, s * s)))
        v = fma(float_of((y << _U1) >> _U12 | _BITS_OF_2_POW_52) - _2_POW_52, _2_POW_M51, _2_POW_M52 - 1.0)
        v2 = v * v
        sine = _horner(SIN_F64, v2) * v
        cosine = _horner(COS_F64, v2) * (1.0 - v2)
        out[i] = float_of(bits_of(radius) ^ (y & _SIGN_F64)) * cosine
        out[_PAIRS_F64 + i] = radius * sine


@njit(nogil=True)
def _normal_block_f32(out: Any, seed: Any, step: Any, stream: Any, block: Any) -> None:
    first = block * np.uint64(COUNTERS)
    _philox_words(out.view(np.uint64), first & _LOW, first >> _U32, step, stream, seed & _LOW, seed >> _U32)
    _box_muller_f32(out)


@njit(nogil=True)
def _normal_block_f64(out: Any, seed: Any, step: Any, stream: Any, block: Any) -> None:
    first = block * np.uint64(COUNTERS)
    c1 = (first >> _U32) | _F64_DOMAIN
    _philox_words(out.view(np.uint64), first & _LOW, c1, step, stream, seed & _LOW, seed >> _U32)
    _box_muller_f64(out)


def normal_block(out: Any, seed: Any, step: Any, stream: Any, block: Any) -> None:
    """Fill one whole block with normals; to be called from a numba kernel.

    The block holds the elements from `block * out.size` on of the tensor that fill_normal would write.

    Args:
        out: The block, an array of `BLOCK_BYTES` bytes (1024 float32 or 512 float64, not checked) aligned to
            8 bytes as np.empty's are. A kernel allocates one per thread and uses it for all its blocks.
        seed: The seed, uint64.
        step: The step, uint64 below 2^32.
        stream: The stream, uint64 below 2^32.
        block: The number of the block, uint64.
    """
    _BLOCKS[out.dtype](out, *(np.uint64(v) for v in (seed, step, stream, block)))


@overload(normal_block, strict=False)  # a lambda has no annotations
def _normal_block_overload(out: Any, seed: Any, step: Any, stream: Any, block: Any) -> Callable[..., None]:
    of_dtype = _normal_block_f32 if out.dtype == types.float32 else _normal_block_f64
    return lambda out, seed, step, stream, block: of_dtype(
        out, np.uint64(seed), np.uint64(step), np.uint64(stream), np.uint64(block)
    )


_BLOCKS = {np.dtype(np.float32): _normal_block_f32, np.dtype(np.float64): _normal_block_f64}


@compile_cached()
def _fill_blocks(out: Any, seed: Any, step: Any, stream: Any, offset: Any, first: Any, last: Any) -> None:
    size = BLOCK_BYTES // out.itemsize
    scratch = np.empty(size, out.dtype)
    skip = offset % size
    for number in range(first, last):
        start, stop = max(number * size - skip, 0), min((number + 1) * size - skip, out.size)
        part, block = out[start:stop], offset // size + number
        # A block is made of 64-bit words: one that starts between two of them, or is incomplete, needs a detour.
        if part.size == size and part.ctypes.data % 8 == 0:
            normal_block(part, seed, step, stream, block)
        else:
            normal_block(scratch, seed, step, stream, block)
            lead = skip if number == 0 else 0
            part[:] = scratch[lead : lead + part.size]


def fill_normal(out: np.ndarray[Any, Any], seed: int, step: int, stream: int, offset: int = 0) -> None:
    """Write out[i] = normal(seed, step, stream, offset + i), the same at any number of threads.

    float32 and float64 draw independent numbers of the same law; float32 reaches 6.76 sigma, float64 8.65.

    Args:
        out: A contiguous vector of float32 or float64.
        seed: The seed, below 2^64.
        step: The step, below 2^32.
        stream: The number of the stream (a tensor, a chain), below 2^32.
        offset: The number of the first element.
    """
    fill = partial(_fill_blocks, out, np.uint64(seed), np.uint64(step), np.uint64(stream), offset)
    run_in_threads(fill, philox.count_blocks(offset, out.size, out.itemsize), torch.get_num_threads())
