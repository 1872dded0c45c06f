r"""Standard normal noise as a pure function of (seed, step, stream, element): the definition, in NumPy.

The bits come from Philox4x32 with 7 rounds, a counter-based generator: with :math:`c` the 128-bit counter
(four 32-bit words), :math:`k` the 64-bit key and :math:`\hi, \lo` the halves of a 64-bit product, a round is

.. math::

    (c_0, c_1, c_2, c_3) \leftarrow
    (\hi(M_1 c_2) \oplus c_1 \oplus k_0,\ \lo(M_1 c_2),\ \hi(M_0 c_0) \oplus c_3 \oplus k_1,\ \lo(M_0 c_0)),
    \qquad (k_0, k_1) \leftarrow (k_0 + W_0, k_1 + W_1) .

Box and Muller's transform turns two uniforms, each of one word, into two independent normals:

.. math::

    (z_0, z_1) = \sqrt{-2 \log u}\,(\cos\theta, \sin\theta), \qquad
    u \in \{(i + 1/2)\,2^{-32}\}, \quad \theta \in \{2 \pi i\,2^{-32}\} .

The key is the seed, the counter is (number of the counter, step, stream), and no state is kept: a chunk of a
tensor, a shard of it on another process, a resumed run and another device see the same numbers. ``stream`` is the
parameter's position in the sampler, and an element is counted in the whole tensor, in the order of memory.

256 counters make a block of ``BLOCK_BYTES`` of output, 1024 float32 or 512 float64. Its pairs of words come in the
order of the counters, of each counter first words 1 and 3, then words 0 and 2 in float32, and in float64 one pair of
64-bit words, 0 and 1, 2 and 3. Pair i of a block gives element i by the cosine, and element i of its second half by the
sine.

Three implementations agree word for word: :func:`normals` here is the reference, :mod:`~spikeslab.kernels.philox_numba`
the fast one, :mod:`~spikeslab.kernels.philox_torch` runs on any device. Their normals differ by at most two units in
the last place, because NumPy and torch have no fused multiply-add.

Seven rounds are the fewest that pass all of TestU01's BigCrush (Salmon et al.: "crush-resistant"); the other
three of the usual ten are a margin that would cost 0.2 ns per number, a quarter of the time.

References:
    J. K. Salmon, M. A. Moraes, R. O. Dror and D. E. Shaw. Parallel random numbers: as easy as 1, 2, 3.
    SC11, 2011.
    G. E. P. Box and M. E. Muller. A note on the generation of random normal deviates.
    Ann. Math. Statist. 29, 1958.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, TypeAlias

import numpy as np

Array: TypeAlias = "np.ndarray[Any, np.dtype[Any]]"

ROUNDS = 7
BLOCK_BYTES = 4096
COUNTERS = BLOCK_BYTES // 16
"""Counters of a block."""

# The multipliers and the Weyl increments of the key.
M0, M1 = 0xD2511F53, 0xCD9E8D57
W0, W1 = 0x9E3779B9, 0xBB67AE85
MASK32 = 0xFFFFFFFF
# The top bit of the counter's second word tells float64 blocks from float32 ones.
FLOAT64_DOMAIN = 0x80000000


def _singles(*values: float) -> tuple[float, ...]:
    return tuple(float(np.float32(value)) for value in values)


# Minimax polynomials in relative error (Remez, from the lowest degree up), largest error beside each.
# fmt: off
# -2 log(1 + g) / g on [-1/2, 0]: 1.5e-7
LOG_F32 = _singles(
    -1.9999998, 1.0000731, -0.66372526, 0.5445009,
    -0.07603775, 1.5708568, 2.163073, 2.3698595,
)
# sin(pi v / 2) / v in v^2 on [0, 1]: 5e-9
SIN_F32 = _singles(1.5707964, -0.6459637, 0.07968968, -0.0046737664, 0.00015148513)
# cos(pi v / 2) / (1 - v^2) in v^2 on [0, 1]: 2e-7
COS_F32 = _singles(0.9999998, -0.23369421, 0.01993807, -0.0008456497)
# The same two for float64: below 3e-19
SIN_F64 = (
    1.5707963267948966, -0.6459640975062462, 0.07969262624616544, -0.004681754135302642,
    0.0001604411847068215, -3.5988430072074545e-06, 5.692134872570759e-08, -6.684321711462924e-10,
    5.870610751654548e-12,
)
COS_F64 = (
    1.0, -0.23370055013616983, 0.01996895776487807, -0.0008945229984735785,
    2.473727635857907e-05, -4.6476599104846925e-07, 6.32144026083398e-09, -6.510489709760251e-11,
    5.107486707605735e-13,
)
# 2 artanh(s) / s in s^2 on [0, 1/9]: 1e-18
ATANH_F64 = (
    2.0, 0.6666666666666613, 0.4000000000019032, 0.28571428544925415,
    0.2222222411175897, 0.1818173978814419, 0.1538663544661244, 0.13300102597282076,
    0.12112248395585694, 0.08315686484813598, 0.17060059017674506,
)
# fmt: on
TWO_LOG2 = 2.0 * math.log(2.0)
(TWO_LOG2_F32,) = _singles(TWO_LOG2)


def normals(index: Array, seed: int, step: int, stream: int, dtype: type[np.floating[Any]] = np.float32) -> Array:
    """Return the normals of some elements.

    >>> normals(np.array([0, 1, 2**40]), seed=0, step=1, stream=0)
    array([-0.7347854, -1.1248751,  1.3772026], dtype=float32)

    Args:
        index: Numbers of the elements, not negative.
        seed: Seed, below 2^64.
        step: Step, below 2^32.
        stream: Position of the parameter, below 2^32.
        dtype: float32 or float64, which draw independent numbers of the same law.
    """
    narrow = np.dtype(dtype) == np.float32
    size = BLOCK_BYTES // np.dtype(dtype).itemsize
    block, within = np.divmod(np.asarray(index, np.int64), size)
    half, pair = np.divmod(within, size // 2)
    counters = (block * COUNTERS + (pair // 2 if narrow else pair)).astype(np.uint64)
    w0, w1, w2, w3 = words(counters, seed, step, stream, dtype)
    if narrow:
        odd = pair % 2 == 1
        cosine, sine = _box_muller_f32(np.where(odd, w0, w1), np.where(odd, w2, w3))
    else:
        cosine, sine = _box_muller_f64(w0 << _U32 | w1, w2 << _U32 | w3)
    return np.where(half == 0, cosine, sine).astype(dtype)


def count_blocks(offset: int, size: int, itemsize: int) -> int:
    """Return the number of blocks that hold ``size`` elements from ``offset`` on.

    >>> count_blocks(0, 1024, 4), count_blocks(1000, 100, 4), count_blocks(5, 0, 8)
    (1, 2, 0)
    """
    length = BLOCK_BYTES // itemsize
    return -(-(offset % length + size) // length) if size else 0


def words(
    counters: Array, seed: int, step: int, stream: int, dtype: type[np.floating[Any]]
) -> tuple[Array, Array, Array, Array]:
    """Return the four words of each counter, for numbers of a dtype; all are uint64."""
    a, b, c, d = counters & _LOW, counters >> _U32, np.full_like(counters, step), np.full_like(counters, stream)
    if np.dtype(dtype) == np.float64:
        b |= np.uint64(FLOAT64_DOMAIN)
    x, y = seed & MASK32, seed >> 32
    for _ in range(ROUNDS):
        p, q = a * np.uint64(M0), c * np.uint64(M1)
        a, b, c, d = (q >> _U32) ^ b ^ np.uint64(x), q & _LOW, (p >> _U32) ^ d ^ np.uint64(y), p & _LOW
        x, y = (x + W0) & MASK32, (y + W1) & MASK32
    return a, b, c, d


_LOW, _U32, _U1, _U11 = (np.uint64(value) for value in (MASK32, 32, 1, 11))
_HALF_32, _HALF_64 = np.uint64(1 << 31), np.uint64(1 << 63)


def _box_muller_f32(x: Array, y: Array) -> tuple[Array, Array]:
    """Return the two normals of pairs of 32-bit words: one is the radius, one the angle.

    The radius word's top bit says on which side of 1/2 the uniform u lies, the others how far from the end, 0
    or 1, of that side. So -log u is accurate at both ends: u is at least 2^-33 (6.76 sigma) and so is 1 - u.
    """

    # The product of two float32 is exact in float64: a sum that is then rounded is a fused multiply-add.
    def fma(a: Array, b: Array | float, c: Array | float) -> Array:
        return rounded(a * b + c)

    def rounded(value: Array) -> Array:
        return value.astype(np.float32).astype(np.float64)

    def horner(coefficients: Sequence[float], value: Array) -> Array:
        total = np.full_like(value, coefficients[-1])
        for coefficient in coefficients[-2::-1]:
            total = fma(total, value, coefficient)
        return total

    # 2^32 u below one half, 2^32 (1 - u) above.
    scaled = rounded(rounded(x & (_HALF_32 - _U1)) + 0.5)
    mantissa, exponent = np.frexp(scaled)
    above = x >= _HALF_32
    # u = 2^-exponent (1 + g) with g in [-1/2, 0]: both terms of -2 log u are positive, nothing cancels.
    g = np.where(above, scaled * -(2.0**-32), mantissa - 1.0)
    g2 = rounded(g * g)
    # Estrin's scheme: a shorter chain of dependent operations than Horner's.
    l0, l1, l2, l3, l4, l5, l6, l7 = LOG_F32
    low, high = fma(fma(g, l3, l2), g2, fma(g, l1, l0)), fma(fma(g, l7, l6), g2, fma(g, l5, l4))
    log = rounded(fma(high, rounded(g2 * g2), low) * g)
    radius = rounded(np.sqrt(fma(np.where(above, 0.0, 32.0 - exponent), TWO_LOG2_F32, log)))
    # The top bit is the sign of the cosine; the others make the angle pi v / 2 in [-pi/2, pi/2).
    v = rounded((y << _U1).astype(np.uint32).view(np.int32)) * 2.0**-31
    v2 = rounded(v * v)
    cosine, sine = rounded(horner(COS_F32, v2) * rounded(1.0 - v2)), rounded(horner(SIN_F32, v2) * v)
    return np.where(y >= _HALF_32, -radius, radius) * cosine, radius * sine


def _box_muller_f64(x: Array, y: Array) -> tuple[Array, Array]:
    """Return the two normals of pairs of 64-bit words, with 53-bit uniforms."""

    # As if the product were exact: those of 24 bits are, and what the sum loses is added at the end.
    def fma(a: Array, b: Array | float, c: Array | float) -> Array:
        a1, b1 = (np.asarray(value).astype(np.float32).astype(np.float64) for value in (a, b))
        product, rest = a1 * b1, a1 * (b - b1) + (a - a1) * b
        total = product + c
        part = total - product
        return total + ((product - (total - part)) + (c - part) + rest)

    def horner(coefficients: Sequence[float], value: Array) -> Array:
        total = np.full_like(value, coefficients[-1])
        for coefficient in coefficients[-2::-1]:
            total = fma(value, total, coefficient)
        return total

    # 2^53 u below one half, 2^53 (1 - u) above.
    scaled = ((x & (_HALF_64 - _U1)) >> _U11).astype(np.float64) + 0.5
    mantissa, exponent = np.frexp(scaled)
    above = x >= _HALF_64
    g = np.where(above, scaled * -(2.0**-53), mantissa - 1.0)
    # log(1 + g) = 2 artanh(s)
    s = g / (2.0 + g)
    log = -2.0 * s * horner(ATANH_F64, s * s)
    radius = np.sqrt(fma(np.where(above, 0.0, 53.0 - exponent), TWO_LOG2, log))
    v = ((y & (_HALF_64 - _U1)) >> _U11).astype(np.float64) * 2.0**-51 + (2.0**-52 - 1.0)
    v2 = v * v
    cosine, sine = horner(COS_F64, v2) * (1.0 - v2), horner(SIN_F64, v2) * v
    return np.where(y >= _HALF_64, -radius, radius) * cosine, radius * sine
