r"""The samplers' update in one pass over memory: noise, prior, momentum, weights, latents and their sums.

The parameters of a step are a table of tensors (`TABLE`, `FACTORS`) and the kernels go over fixed blocks of
their memory (`philox.BLOCK_BYTES` each, counted over all tensors). For one block, while it is in the first-level
cache, with :math:`s = \bar\rho` the smoothed rho, the gradient of U/N is

.. math:: g = \nabla L + (a_1 + b_1 s)\,\mathrm{sign}(w) + (a_2 + b_2 s)\,w, \qquad \mathrm{sign}(0) = 0,

the step is that of SGHMC or, where the tensor has no buffer, of SGLD,

.. math::
    b \leftarrow m\,b + g - \mathrm{std}\,\xi,\quad w \leftarrow w - \mathrm{lr}\,b \qquad\text{or}\qquad
    w \leftarrow w - \mathrm{lr}\,g + \mathrm{std}\,\xi ,

and where the tensor has latents they follow the new weights (eqs. 12 and 13),

.. math::
    \tilde\rho = \mathrm{sigmoid}(|w|\,(c_1 + c_2 |w|) + c_0), \quad
    \rho \leftarrow \rho + \omega(\tilde\rho - \rho), \quad \bar\rho \leftarrow \bar\rho + \omega(\rho - \bar\rho),

while the block's sums of :math:`|w|, w^2, \bar\rho|w|, \bar\rho w^2` and :math:`\rho`, which the maxima of sigma and
delta need (eqs. 14 and 15), go to a row of their own. Where sigma does not follow the weights, that of :math:`\rho` is
all that is summed. Between these loops the next block is fetched into the cache.

Nothing depends on who computes a block: given the same gradients the update is the same to the last bit at any
number of threads. Every fused multiply-add is written as one, sums are folded in a fixed order, and no fast-math flag
is set, so it does not depend on the width of the machine's vectors either.

References:
    W. Deng, X. Zhang, F. Liang and G. Lin. An adaptive empirical Bayesian method for sparse deep learning.
    NeurIPS 2019, equations 12 to 15.
"""

import math
from functools import cache
from typing import Any

import numpy as np
from numba import carray, njit, types
from numba.extending import overload

from spikeslab.kernels import philox_numba as philox_numba  # the sampler draws with it too
from spikeslab.kernels._compiler import release_compiler
from spikeslab.kernels._intrinsics import LARGEST_F32, LARGEST_F64, bits_of, exp2, fma, pointer, prefetch
from spikeslab.kernels.compiling import compile_cached
from spikeslab.kernels.philox import BLOCK_BYTES
from spikeslab.kernels.philox_numba import normal_block

# Columns of the int64 table, a row for each tensor: addresses (0 for none), the number of elements, the stream of its
# noise, the number of its first block, and the number of its first element in the whole tensor: the blocks are those of
# the whole tensor, of which a shard may hold parts.
TABLE = ("weight", "gradient", "buffer", "rho", "rho_bar", "size", "stream", "first_block", "offset")
# Columns of the float64 table: the step, the noise, the elastic net (base and slope of both parts), the log odds of
# the slab, and omega.
FACTORS = ("lr", "momentum", "std", "l1", "l1_slope", "l2", "l2_slope", "linear", "quadratic", "offset", "omega")
# Columns of the float64 sums, a row for each block; the last may be the only one.
SUMS = ("|w|", "w^2", "rho_bar |w|", "rho_bar w^2", "rho")

# A block is folded to this many lanes, which are then added up in pairs.
_LANES = 64
_ROWS = 8
_LINE_BYTES = 64

_LOG2_E = 1.0 / math.log(2.0)
_NOT_SIGN_F32, _INFINITE_F32 = np.int32(0x7FFFFFFF), np.int32(1 << 23)
_NOT_SIGN_F64, _INFINITE_F64 = np.uint64((1 << 63) - 1), np.uint64(1 << 52)


@njit(nogil=True)
def _fetch(address: Any) -> None:
    for line in range(0, BLOCK_BYTES, _LINE_BYTES):
        prefetch(address + line)


# float32's bits are int32 and float64's uint64 (see philox): two versions of one line.
@njit(nogil=True)
def _infinite_bits_f32(x: Any) -> Any:
    bits = np.int32(0)
    for i in range(x.size):
        bits |= np.int32(np.int32(bits_of(x[i]) & _NOT_SIGN_F32) + _INFINITE_F32)
    return bits < np.int32(0)


@njit(nogil=True)
def _infinite_bits_f64(x: Any) -> Any:
    bits = np.uint64(0)
    for i in range(x.size):
        bits |= (bits_of(x[i]) & _NOT_SIGN_F64) + _INFINITE_F64
    return bits > _NOT_SIGN_F64


def _infinite(x: Any) -> bool:
    """Return True if an exponent is all ones: one more in the exponent then carries into the sign."""
    return bool((_infinite_bits_f32 if x.dtype == np.float32 else _infinite_bits_f64)(x))


@overload(_infinite, strict=False)  # type: ignore[untyped-decorator, unused-ignore]
def _infinite_overload(x: Any) -> Any:
    of_dtype = _infinite_bits_f32 if x.dtype == types.float32 else _infinite_bits_f64
    return lambda x: of_dtype(x)


@njit(nogil=True)
def _sign(w: Any, zero: Any, one: Any) -> Any:
    return (one if w > zero else zero) - (one if w < zero else zero)


@njit(nogil=True)
def _add_penalty(out: Any, g: Any, w: Any, l1: Any, l2: Any) -> None:
    zero, one = out.dtype.type(0), out.dtype.type(1)
    for i in range(w.size):
        out[i] = fma(l2, w[i], fma(l1, _sign(w[i], zero, one), g[i]))


@njit(nogil=True)
def _add_elastic_net(out: Any, g: Any, w: Any, smoothed: Any, l1: Any, l1_slope: Any, l2: Any, l2_slope: Any) -> None:
    zero, one = out.dtype.type(0), out.dtype.type(1)
    for i in range(w.size):
        weight1, weight2 = fma(l1_slope, smoothed[i], l1), fma(l2_slope, smoothed[i], l2)
        out[i] = fma(weight2, w[i], fma(weight1, _sign(w[i], zero, one), g[i]))


@njit(nogil=True)
def _sgld(w: Any, g: Any, noise: Any, lr: Any, std: Any) -> None:
    for i in range(w.size):
        w[i] = fma(std, noise[i], fma(-lr, g[i], w[i]))


@njit(nogil=True)
def _sghmc(w: Any, g: Any, noise: Any, buffer: Any, lr: Any, momentum: Any, std: Any) -> None:
    for i in range(w.size):
        # The product is rounded, as in torch.optim.SGD, whose steps these are at temperature 0.
        b = fma(-std, noise[i], momentum * buffer[i] + g[i])
        buffer[i] = b
        w[i] = fma(-lr, b, w[i])


# As the two above, but the gradient stays in registers.
@njit(nogil=True)
def _sghmc_elastic_net(
    w: Any,
    g: Any,
    noise: Any,
    buffer: Any,
    smoothed: Any,
    l1: Any,
    l1_slope: Any,
    l2: Any,
    l2_slope: Any,
    lr: Any,
    momentum: Any,
    std: Any,
) -> None:
    zero, one = w.dtype.type(0), w.dtype.type(1)
    for i in range(w.size):
        old = w[i]
        weight1, weight2 = fma(l1_slope, smoothed[i], l1), fma(l2_slope, smoothed[i], l2)
        gradient = fma(weight2, old, fma(weight1, _sign(old, zero, one), g[i]))
        b = fma(-std, noise[i], momentum * buffer[i] + gradient)
        buffer[i] = b
        w[i] = fma(-lr, b, old)


# Three loops, because the processor overlaps the elements of a short one better: one loop takes half as long again.
# numpy's error model: Python's test for a zero divisor would keep the last one from becoming SIMD code.
@njit(nogil=True, error_model="numpy")
def _adapt(w: Any, rho: Any, rho_bar: Any, scratch: Any, linear: Any, quadratic: Any, offset: Any, omega: Any) -> None:
    one = w.dtype.type(1)
    # Not beyond 2^-120 or 2^-1000: a rho that decays towards 0 would become subnormal, and slow. NaN passes.
    largest = w.dtype.type(LARGEST_F32 if w.itemsize == 4 else LARGEST_F64)
    for i in range(w.size):
        magnitude = abs(w[i])
        t = fma(fma(quadratic, magnitude, linear), magnitude, offset)
        t = largest if t > largest else t
        scratch[i] = -largest if t < -largest else t
    for i in range(w.size):
        scratch[i] = exp2(scratch[i])
    # From the nearer end, so that omega = 1 gives the new value exactly and equal values stay what they are.
    far = omega >= w.dtype.type(0.5)
    rest = one - omega
    for i in range(w.size):
        new = one / (one + scratch[i])
        old, old_bar = rho[i], rho_bar[i]
        r = fma(rest, old - new, new) if far else fma(omega, new - old, old)
        rho[i] = r
        rho_bar[i] = fma(rest, old_bar - r, r) if far else fma(omega, r - old_bar, old_bar)


@njit(nogil=True)
def _total(lanes: Any) -> Any:
    for i in range(_LANES // 8):
        pairs = (lanes[i] + lanes[8 + i]) + (lanes[16 + i] + lanes[24 + i])
        more = (lanes[32 + i] + lanes[40 + i]) + (lanes[48 + i] + lanes[56 + i])
        lanes[i] = pairs + more
    total = 0.0
    for i in range(_LANES // 8):
        total += np.float64(lanes[i])
    return total


@njit(nogil=True)
def _fold_one(x: Any, lanes: Any) -> Any:
    """Return the sum over a whole block, added in the order of :func:`_fold`."""
    lanes[:_LANES] = lanes.dtype.type(0)
    for start in range(0, x.size, _ROWS * _LANES):
        rows = x[start : start + _ROWS * _LANES]
        for i in range(_LANES):
            total = lanes[i]
            for k in range(_ROWS):
                total += rows[i + k * _LANES]
            lanes[i] = total
    return _total(lanes[:_LANES])


@njit(nogil=True)
def _fold(w: Any, rho: Any, rho_bar: Any, lanes: Any, sums: Any) -> None:
    """Write the five sums over a whole block: rows of 64 into 5 x 64 lanes, the lanes into 8, and these in turn."""
    lanes[:] = lanes.dtype.type(0)
    for start in range(0, w.size, _ROWS * _LANES):
        stop = start + _ROWS * _LANES
        _fold_rows(w[start:stop], rho[start:stop], rho_bar[start:stop], lanes)
    for k in range(5):
        sums[k] = _total(lanes[k * _LANES : (k + 1) * _LANES])


@njit(nogil=True)
def _fold_rows(w: Any, rho: Any, rho_bar: Any, lanes: Any) -> None:
    for i in range(_LANES):
        s0, s1, s2 = lanes[i], lanes[_LANES + i], lanes[2 * _LANES + i]
        s3, s4 = lanes[3 * _LANES + i], lanes[4 * _LANES + i]
        for k in range(_ROWS):
            magnitude, s = abs(w[i + k * _LANES]), rho_bar[i + k * _LANES]
            weighted = s * magnitude
            s0 += magnitude
            s1 = fma(magnitude, magnitude, s1)
            s2 += weighted
            s3 = fma(weighted, magnitude, s3)
            s4 += rho[i + k * _LANES]
        lanes[i], lanes[_LANES + i], lanes[2 * _LANES + i] = s0, s1, s2
        lanes[3 * _LANES + i], lanes[4 * _LANES + i] = s3, s4


@njit(nogil=True)
def _pad(x: Any, scratch: Any) -> Any:
    scratch[: x.size] = x
    scratch[x.size :] = x.dtype.type(0)
    return scratch


@compile_cached()
def update(like: Any, table: Any, factors: Any, sums: Any, seed: Any, step: Any, first: Any, last: Any) -> Any:
    """Take one step with the blocks from first to below last, and return True if their new weights are finite.

    Args:
        like: An empty array of the tensors' dtype, float32 or float64.
        table: A row of `TABLE` for each tensor, int64; the blocks are numbered over all tensors, in their order.
        factors: A row of `FACTORS` for each tensor, float64.
        sums: A row of `SUMS`, or of the last of them alone, for each block, float64; written where the tensor has a
            rho.
        seed: The seed of the noise, uint64.
        step: The number of the step, uint64 below 2^32.
        first: The first block.
        last: The block after the last one.
    """
    size = BLOCK_BYTES // like.itemsize
    noise, gradient = np.empty(size, like.dtype), np.empty(size, like.dtype)
    lanes = np.empty(5 * _LANES, like.dtype)
    real = like.dtype.type
    all_finite = True
    tensor = np.searchsorted(table[:, 7], first, side="right") - 1
    for number in range(first, last):
        while tensor + 1 < table.shape[0] and table[tensor + 1, 7] <= number:
            tensor += 1
        block = number - table[tensor, 7]
        skip = table[tensor, 8] % size
        start = max(block * size - skip, 0)
        n = min((block + 1) * size - skip, table[tensor, 5]) - start
        lead = start + skip - block * size
        shift = start * like.itemsize
        w = carray(pointer(table[tensor, 0] + shift, like), n)
        g = carray(pointer(table[tensor, 1] + shift, like), n)
        rho_bar = carray(pointer(table[tensor, 4] + shift, like), n)
        lr, std = real(factors[tensor, 0]), real(factors[tensor, 2])
        l1, l2 = real(factors[tensor, 3]), real(factors[tensor, 5])
        zero = real(0)
        following = shift + BLOCK_BYTES
        _fetch(table[tensor, 0] + following)
        _fetch(table[tensor, 1] + following)
        if std != zero:
            normal_block(noise, seed, step, table[tensor, 6], table[tensor, 8] // size + block)
        else:
            noise[:] = zero
        xi = noise[lead:]
        has_buffer, has_latents, is_smooth = table[tensor, 2] != 0, table[tensor, 3] != 0, table[tensor, 4] != 0
        if has_buffer:
            _fetch(table[tensor, 2] + following)
        buffer = carray(pointer(table[tensor, 2] + shift, like), n)
        l1_slope, l2_slope, momentum = real(factors[tensor, 4]), real(factors[tensor, 6]), real(factors[tensor, 1])
        if has_buffer and is_smooth:
            _sghmc_elastic_net(w, g, xi, buffer, rho_bar, l1, l1_slope, l2, l2_slope, lr, momentum, std)
        else:
            if is_smooth:
                _add_elastic_net(gradient, g, w, rho_bar, l1, l1_slope, l2, l2_slope)
                g = gradient
            elif l1 != zero or l2 != zero:
                _add_penalty(gradient, g, w, l1, l2)
                g = gradient
            if has_buffer:
                _sghmc(w, g, xi, buffer, lr, momentum, std)
            else:
                _sgld(w, g, xi, lr, std)
        # Here, where the block is in the cache, rather than in a pass of its own before the next step.
        if _infinite(w):
            all_finite = False
        if is_smooth:
            _fetch(table[tensor, 4] + following)
        if has_latents:
            _fetch(table[tensor, 3] + following)
            rho = carray(pointer(table[tensor, 3] + shift, like), n)
            linear, quadratic = real(-_LOG2_E * factors[tensor, 7]), real(-_LOG2_E * factors[tensor, 8])
            offset, omega = real(-_LOG2_E * factors[tensor, 9]), real(factors[tensor, 10])
            _adapt(w, rho, rho_bar, noise, linear, quadratic, offset, omega)
            if n < size:
                w, rho = _pad(w, noise), _pad(rho, gradient)
                rho_bar = _pad(rho_bar, np.empty(size, like.dtype))
            if sums.shape[1] == 1:
                sums[number, 0] = _fold_one(rho, lanes)
            else:
                _fold(w, rho, rho_bar, lanes, sums[number])
    return all_finite


@compile_cached()
def are_finite(like: Any, table: Any, column: Any, first: Any, last: Any) -> Any:
    """Return True if the blocks from first to below last are finite, of weights (column 0) or gradients (column 1)."""
    size = BLOCK_BYTES // like.itemsize
    tensor = np.searchsorted(table[:, 7], first, side="right") - 1
    while first < last:
        while tensor + 1 < table.shape[0] and table[tensor + 1, 7] <= first:
            tensor += 1
        block = first - table[tensor, 7]
        skip = table[tensor, 8] % size
        start = max(block * size - skip, 0)
        blocks = min(last - first, (skip + table[tensor, 5] + size - 1) // size - block)
        stop = min(table[tensor, 5], (block + blocks) * size - skip)
        shift = start * like.itemsize
        if _infinite(carray(pointer(table[tensor, column] + shift, like), stop - start)):
            return False
        first += blocks
    return True


@cache
def load(dtype: type[np.floating[Any]]) -> None:
    """Load the kernels for tensors of a dtype, by calling them with no blocks, and let go of the compiler's memory."""
    like, table, zero = np.empty(0, dtype), np.zeros((1, len(TABLE)), np.int64), np.uint64(0)
    are_finite(like, table, 0, 0, 0)
    update(like, table, np.zeros((1, len(FACTORS))), np.zeros((1, len(SUMS))), zero, zero, 0, 0)
    release_compiler()
